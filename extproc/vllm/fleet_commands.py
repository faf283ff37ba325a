"""`extproc simulate fleet` and `extproc simulate fit`."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
import orjson
import yaml

from extproc.errors import SettingsError
from extproc.routing.strategies.factory import STRATEGIES
from extproc.vllm.fleet import seed_preset
from extproc.vllm.fleet.change import parse_change
from extproc.vllm.fleet.client import Traffic
from extproc.vllm.fleet.fleet import Setup, simulate
from extproc.vllm.fleet.gateway import Routing
from extproc.vllm.fleet.report import render
from extproc.vllm.fleet.summary import Summary, summarize
from extproc.vllm.fleet.workloads import WORKLOADS, Demand, draw_sessions
from extproc.vllm.profiles import DEFAULT_PROFILE, find_profile

_POSITIVE = click.IntRange(1)
_SECONDS = click.FloatRange(0)
_RATE = click.FloatRange(0, min_open=True)


@click.command
@click.option("--preset", type=click.Choice(["seed-000"]), help="KubeAI's 8 x L4 benchmark, all 12 cells.")
@click.option("--workload", type=click.Choice([*WORKLOADS]), default="sessions", show_default=True)
@click.option("--requests", type=_POSITIVE, default=8000, show_default=True)
@click.option("--think-s", type=_SECONDS, default=0.0, help="Mean pause before a session's next turn.")
@click.option("--tenants", type=_POSITIVE, default=150, show_default=True, help="Shared prefixes.")
@click.option("--endpoints", type=_POSITIVE, default=8, show_default=True)
@click.option(
    "--profile", "profile_name", help=f"A profile's name or YAML file. [default: {DEFAULT_PROFILE}]"
)
@click.option(
    "--strategy",
    "strategies",
    type=click.Choice([*STRATEGIES]),
    multiple=True,
    default=["round_robin", "least_load", "prefix_hash"],
    show_default=True,
    help="Each one is run with the same arrivals.",
)
@click.option("--load-factor", type=click.FloatRange(1), default=1.25, show_default=True)
@click.option("--load-floor", type=click.IntRange(0), default=4, show_default=True)
@click.option("--positions", type=_POSITIVE, default=256, show_default=True)
@click.option("--gateways", type=_POSITIVE, default=1, show_default=True, help="Independent pickers.")
@click.option("--signal-delay-s", type=_SECONDS, default=0.0, help="How late gateways hear of an end.")
@click.option("--discovery-delay-s", type=_SECONDS, default=0.0, help="How late they hear of endpoints.")
@click.option("--rate", type=_RATE, help="Open loop: requests per second; without, all start at once.")
@click.option("--users", type=_POSITIVE, help="Closed loop: so many sessions at a time.")
@click.option("--cap", type=_POSITIVE, help="Most requests in flight.")
@click.option("--ceiling", type=_RATE, help="Most requests per second that the client's one core can do.")
@click.option(
    "--change",
    "changes",
    multiple=True,
    metavar="SECONDS:join|drain|crash:ENDPOINT",
    help="Endpoints that come and go; SECONDS:slow:ENDPOINT:FACTOR slows one down.",
)
@click.option("--warmup-s", type=_SECONDS, default=0.0, help="Left out of the steady window.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Writes all figures there.")
def fleet(
    *,
    preset: str | None,
    workload: str,
    requests: int,
    think_s: float,
    tenants: int,
    endpoints: int,
    profile_name: str | None,
    strategies: Sequence[str],
    load_factor: float,
    load_floor: int,
    positions: int,
    gateways: int,
    signal_delay_s: float,
    discovery_delay_s: float,
    rate: float | None,
    users: int | None,
    cap: int | None,
    ceiling: float | None,
    changes: Sequence[str],
    warmup_s: float,
    seed: int,
    json_path: Path | None,
) -> None:
    """Simulate a fleet of endpoints behind the picker, in virtual time."""
    if preset:
        _print_preset(profile_name or seed_preset.PROFILE, seed, json_path)
        return
    traffic = Traffic(rate, users, cap, ceiling)
    sessions = draw_sessions(workload, Demand(requests, think_s, tenants), seed)
    options = {"prefix_hash": {"load_factor": load_factor, "load_floor": load_floor, "positions": positions}}
    summaries = []
    for strategy in strategies:
        routing = Routing(strategy, options.get(strategy, {}), gateways, signal_delay_s, discovery_delay_s)
        setup = Setup(
            profile=find_profile(profile_name or DEFAULT_PROFILE),
            endpoints=endpoints,
            routing=routing,
            traffic=traffic,
            changes=[parse_change(change) for change in changes],
            seed=seed,
        )
        summaries.append(summarize(simulate(setup, sessions), warmup_s))
    click.echo(render(summaries), nl=False)
    _write_json(json_path, summaries)


def _print_preset(profile_name: str, seed: int, json_path: Path | None) -> None:
    profile = find_profile(profile_name)
    click.echo(f"KubeAI's published 8 x L4 benchmark; profile {profile.name}: {profile.note}")
    click.echo(seed_preset.NOTE)
    cells = [
        cell
        for has_ceiling in (True, False)
        for cell in seed_preset.simulate_cells(profile, seed, has_ceiling=has_ceiling)
    ]
    click.echo(seed_preset.render_cells(cells), nl=False)
    _write_json(json_path, cells)


def _write_json(path: Path | None, values: Sequence[Summary | seed_preset.Cell]) -> None:
    if path is None:
        return
    try:
        path.write_bytes(orjson.dumps([asdict(value) for value in values], option=orjson.OPT_INDENT_2))
    except OSError as fault:
        raise SettingsError(f"{path}: {fault.strerror}") from None


@click.command
@click.argument("steps", type=click.Path(path_type=Path))
@click.option("--name", default="fitted", show_default=True, help="What to call the new profile.")
@click.option(
    "--like", default=DEFAULT_PROFILE, show_default=True, help="Where all but the costs comes from."
)
def fit(steps: Path, name: str, like: str) -> None:
    """Fit a profile's costs to STEPS, measured ones, and print it as YAML.

    STEPS is CSV with a heading or JSON lines: context_tokens (in the KV cache of all that runs),
    prefill_tokens (prompt tokens computed) and step_ms of each step.
    """
    from extproc.vllm import fit as fitting  # noqa: PLC0415  # numpy takes time to load

    fitted = fitting.fit(fitting.read_steps(steps))
    profile = asdict(find_profile(like)) | {
        "base_ms": fitted.base_ms,
        "kv_us_per_ctx_token": fitted.kv_us_per_ctx_token,
        "prefill_ms_per_token": fitted.prefill_ms_per_token,
        "is_calibrated": True,
        "note": f"Fitted to {fitted.steps} measured steps; root mean squared error {fitted.error_ms:.3g} ms.",
    }
    del profile["name"]
    click.echo(yaml.safe_dump({name: profile}, sort_keys=False), nl=False)
