"""`extproc bench serve`: the published prefix-hash runs by their own arguments.

It takes the flags that KubeAI's published jobs gave to their copy of vLLM's benchmark, and no other.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click
from pydantic import ValidationError
from rich.console import Console

from extproc.bench.experiments.run import run
from extproc.bench.progress import run_until_signal, watching
from extproc.bench.record import RunResult
from extproc.bench.report import report
from extproc.bench.report.outputs import make_folder, print_verdict, write_reports
from extproc.bench.report.vllm import vllm_text
from extproc.bench.spec.section import find_tokenizer, list_faults
from extproc.bench.spec.tree import Spec, spec_text
from extproc.errors import SettingsError

# The exit status of a result that does not hold, as of `bench run`.
_DOES_NOT_HOLD = 3
# vLLM waits this long for an answer.
_TIMEOUT_S = 6 * 60 * 60


@click.command("serve", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--backend", type=click.Choice(["openai"]), default="openai")
@click.option("--base-url", required=True)
@click.option("--dataset-name", type=click.Choice(["sharegpt"]), default="sharegpt")
@click.option("--dataset-path", required=True, help="ShareGPT's JSON: prompts of whole conversations.")
@click.option("--model", required=True)
@click.option("--tokenizer", help="A local folder or tokenizer.json, or a name in the local hub cache.")
@click.option("--seed", type=int, default=0)
@click.option("--request-rate", type=float, default=float("inf"))
@click.option("--max-concurrency", type=int)
@click.option("--num-prompts", type=click.IntRange(1), default=1000)
@click.option("--max-conversations", type=int, help="So many prompts, in the file's order.")
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for all reports.")
@click.option("--print-spec", is_flag=True, help="Print the spec that this is, and run nothing.")
@click.pass_context
def serve_command(
    context: click.Context, /, *, output: Path | None, print_spec: bool, **flags: object
) -> None:
    """Run a published benchmark by its own flags.

    Those of KubeAI's jobs; prints vLLM's text. Exit 3 if the result does not hold.
    """
    if context.args:
        name = context.args[0].partition("=")[0]
        raise SettingsError(
            f"{name} is not supported; use vLLM's own `vllm bench serve`, or a spec: docs/how-to/benchmark.md"
        )
    spec = build_serve_spec(flags, os.environ)
    if print_spec:
        click.echo(spec_text(spec), nl=False)
        return
    journal = None
    if output is not None:
        make_folder(output)
        journal = output / "run.jsonl"

    async def work(stop: asyncio.Event) -> RunResult:
        with watching(spec.name, Console(stderr=True), quiet=False) as progress:
            return await run(spec, progress=progress, stop=stop, journal=journal)

    result = run_until_signal(work)
    said = report.build(result)
    click.echo(vllm_text(said.whole), nl=False)
    print_verdict(said, Console(stderr=True))
    if output is not None:
        for path in write_reports(result, said, output):
            click.echo(str(path), err=True)
    if not said.verdict.is_valid:
        sys.exit(_DOES_NOT_HOLD)


def build_serve_spec(flags: Mapping[str, object], environment: Mapping[str, str]) -> Spec:
    """The spec of a published run; raises `SettingsError`."""
    tokenizer = find_tokenizer(str(flags["tokenizer"] or flags["model"]), environment)
    dataset = {"name": "kubeai-sharegpt", "path": flags["dataset_path"], "seed": flags["seed"]}
    traffic = {
        "req-rate": flags["request_rate"],
        "total-prompts": flags["num_prompts"],
        "max-concurrency": flags["max_concurrency"],
        "dataset": dataset | {"max-prompts": flags["max_conversations"]},
    }
    if flags["request_rate"] != float("inf"):
        traffic["arrivals"] = "poisson"
    target = {"api": "openai-completions", "model": flags["model"], "timeout": _TIMEOUT_S}
    tree = {
        "name": flags["dataset_name"],
        "endpoint": flags["base_url"],
        "seed": flags["seed"],
        "target": target if tokenizer is None else target | {"tokenizer": str(tokenizer)},
        "performance": {"traffic-shape": traffic},
    }
    try:
        return Spec.model_validate(tree)
    except ValidationError as error:
        raise SettingsError(list_faults(error)) from None
