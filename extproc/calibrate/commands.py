"""`extproc calibrate`: what an engine's work costs, as a pool's `engine` and as a simulator's profile."""

import asyncio
import json
import os
from dataclasses import asdict
from pathlib import Path
from random import Random

import aiohttp
import click

from extproc.calibrate.fit import USUAL_PROMPT, Capacity, FittedCosts, fit
from extproc.calibrate.measure import (
    Measured,
    VllmOverHttp,
    find_served_model,
    measure_engine,
    read_cache_size,
)


@click.command()
@click.argument("url")
@click.option("--model", help="Its name at the server. Omitted: the first that the server lists.")
@click.option("--api-key-env", help="The environment variable that has the engine's API key.")
@click.option(
    "--max-num-batched-tokens", default=8_192, show_default=True, help="As the engine was started."
)
@click.option("--max-num-seqs", default=256, show_default=True, help="As the engine was started.")
@click.option("--note", default="", help="A line for the profile: card, model, versions.")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder for engine.yaml, profile.yaml and measured.json, too.",
)
def calibrate(
    url: str,
    *,
    model: str | None,
    api_key_env: str | None,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    note: str,
    output: Path | None,
) -> None:
    """Measure what an engine's work costs.

    URL is a vLLM server that nothing else should use meanwhile. It takes one to three minutes.
    Prints a pool's `engine` section and a profile for `extproc simulate`.
    """
    key = os.environ.get(api_key_env, "") if api_key_env else ""
    capacity, measured = asyncio.run(
        _measure(url.rstrip("/"), model, key, max_num_batched_tokens, max_num_seqs)
    )
    costs = fit(measured.firsts, measured.gaps, max_num_batched_tokens)
    section, profile = engine_text(costs, capacity), profile_text(costs, capacity, note)
    click.echo(f"{section}\n{profile}", nl=False)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        (output / "engine.yaml").write_text(section)
        (output / "profile.yaml").write_text(profile)
        figures = {
            "capacity": asdict(capacity),
            "costs": asdict(costs) | {"usual_prefill_ms": costs.usual_prefill_ms},
            **asdict(measured),
        }
        (output / "measured.json").write_text(json.dumps(figures, indent=1) + "\n")


async def _measure(
    url: str, model: str | None, key: str, batched_tokens: int, seqs: int
) -> tuple[Capacity, Measured]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=600)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        headers=headers, timeout=timeout, connector=connector
    ) as session:
        name, longest = await find_served_model(session, url, model)
        kv_tokens, block_size = await read_cache_size(session, url)
        capacity = Capacity(kv_tokens, block_size, longest, batched_tokens, seqs)
        engine = VllmOverHttp(session, url, name)
        measured = await measure_engine(engine, capacity, Random(), _say)  # noqa: S311  # prompts
    return capacity, measured


def _say(words: str) -> None:
    click.echo(f"# {words}", err=True)


def engine_text(costs: FittedCosts, capacity: Capacity) -> str:
    """The constants of `prefix_cache`, as a pool's settings have them."""
    return (
        f"# For a pool. Prefill is that of a prompt of {USUAL_PROMPT:,} tokens, attention included.\n"
        "strategy:\n"
        "  name: prefix_cache\n"
        "  engine:\n"
        f"    prefill_ms_per_token: {costs.usual_prefill_ms:.4g}\n"
        f"    step_ms: {costs.base_ms:.4g}\n"
        f"    kv_tokens: {capacity.kv_tokens}\n"
        f"    context_us_per_token: {costs.kv_us_per_ctx_token:.4g}\n"
    )


def profile_text(costs: FittedCosts, capacity: Capacity, note: str) -> str:
    """A profile file of the simulator."""
    errors = f"median error of a time {costs.error_median:.1%}, worst {costs.error_worst:.1%}"
    figures = {name: value for name, value in asdict(costs).items() if not name.startswith("error")}
    lines = [f"  {name}: {value:.4g}" for name, value in figures.items()]
    lines += [f"  {name}: {value}" for name, value in asdict(capacity).items()]
    return "\n".join(
        (
            "# For `extproc simulate … --profile FILE`.",
            "measured:",
            *lines,
            "  is_calibrated: true",
            f"  note: {json.dumps(note or 'measured by extproc calibrate')}",
            f"  misses: {json.dumps(errors)}\n",
        )
    )
