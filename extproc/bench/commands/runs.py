"""`extproc bench`: the group, and the commands for one run, its spec, its dataset and its report.

`serve` takes the flags that KubeAI's published jobs gave to their copy of vLLM's benchmark, and no
other.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import click
from pydantic import ValidationError
from rich.console import Console

from extproc.bench.commands.experiments import (
    ANY,
    FILE,
    FOLDER,
    ab,
    brief_option,
    compare_command,
    display_options,
    plan_command,
    read_checked,
    read_spec_or_flags,
    removed_option,
    run_with_status,
    saturate_command,
    sweep_command,
)
from extproc.bench.datasets.chats import write_prepared
from extproc.bench.experiments.plan import account_for
from extproc.bench.experiments.run import run
from extproc.bench.load.parts import parse_part, read_run
from extproc.bench.load.registry import build_schema, open_registry
from extproc.bench.load.workload import build_workload
from extproc.bench.progress import exporting, run_until_signal, watching
from extproc.bench.record import RunResult
from extproc.bench.report.brief import brief_report
from extproc.bench.report.headline import summary_text
from extproc.bench.report.outputs import (
    OutputError,
    make_folder,
    print_verdict,
    write_brief,
    write_reports,
)
from extproc.bench.report.report import Report
from extproc.bench.report.report import build as build_report
from extproc.bench.report.vllm import vllm_text
from extproc.bench.spec.section import find_tokenizer, list_faults, parse_duration, parse_rate
from extproc.bench.spec.tree import Spec, read_spec, spec_text
from extproc.bench.status_server import StatusServer
from extproc.command_help import CommandGroup
from extproc.errors import SettingsError


@click.command("init")
@click.argument(
    "file", metavar="[FILE]", type=click.Path(dir_okay=False, path_type=Path), required=False
)
@click.option(
    "--from", "source", type=FILE, help="Another spec, or a configuration of inference-perf."
)
@click.option(
    "--quick", "template", flag_value="quick", help="A short one: five lines, one minute."
)
@click.option("--ab", "template", flag_value="ab", help="One that compares two strategies.")
def init_command(file: Path | None, source: Path | None, template: str | None) -> None:
    """Write a commented spec to FILE, or print it.

    FILE must not be there yet.
    """
    shipped = files("extproc.bench.spec").joinpath(f"{template or 'template'}.yaml")
    text = shipped.read_text("utf-8") if source is None else spec_text(read_spec(source))
    if file is None:
        click.echo(text, nl=False)
        return
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise OutputError(f"{file}: {error.strerror}") from None
    click.echo(f"{file}: `extproc bench plan {file}` says what it would do", err=True)


@click.command("schema")
def schema_command() -> None:
    """Print the JSON schema of a spec file, for editors."""
    click.echo(json.dumps(build_schema(), indent=2, allow_nan=False))


# Exit statuses beside 0 and 2 (the spec cannot be run): the result does not hold; it misses a
# threshold.
DOES_NOT_HOLD = 3
THRESHOLD_MISSED = 4


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure what routing does to latency and throughput."""


@bench.command("run")
@click.argument("spec_file", metavar="[SPEC.yaml]", type=FILE, required=False)
@click.option(
    "--url", help="Without a spec: the server. Prompts are generated, a fifth is warm-up."
)
@click.option("--rate", type=parse_rate, metavar="RATE", help="With --url: requests per second.")
@click.option(
    "--duration", type=parse_duration, metavar="TIME", help="With --url: how long, such as 60s."
)
@click.option("--trace", type=FILE, help="With --url: this trace at its own times, or at --rate.")
@click.option("--output", type=FOLDER, help="Folder for all reports, and for a line per request.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="Serve live Prometheus metrics here."
)
@click.option(
    "--linger", type=parse_duration, default="0s", hidden=True, help="Metrics so long after."
)
@removed_option("--pushgateway", "scrape --metrics-port, see docs/how-to/benchmark.md")
@click.option("--part", metavar="I/N", help="Send part I (from 0) of N equal ones; needs --output.")
@click.option(
    "--start-at", metavar="TIME", help="When all parts begin: RFC 3339 or seconds since 1970."
)
@click.option(
    "--allow-client-limited", is_flag=True, help="Exit 0 even if the client was the limit."
)
@display_options
def run_command(
    *,
    spec_file: Path | None,
    url: str | None,
    rate: float | None,
    duration: float | None,
    trace: Path | None,
    output: Path | None,
    metrics_port: int | None,
    linger: float,
    part: str | None,
    start_at: str | None,
    quiet: bool,
    allow_client_limited: bool,
    brief: Path | None,
    board: str | None,
) -> None:
    """Run a benchmark.

    Exit 2 if it cannot be done, 3 if the result is not valid, 4 if it misses a threshold. The first
    Ctrl-C or SIGTERM ends it early, with partial reports. For a part, `bench report` makes the
    report.
    """
    spec = read_spec_or_flags(spec_file, [url] if url else [], rate, duration, trace)
    if part is None and start_at is not None:
        raise SettingsError("--start-at: give --part i/n, too")
    if part is not None and output is None:
        raise SettingsError("--part: give --output, the folder of all parts' journals")
    own = None if part is None else parse_part(part, start_at)
    journal = None
    if output is not None:
        make_folder(output)
        journal = output / ("run.jsonl" if own is None else own.journal)
    with exporting(metrics_port, linger) as exporter:

        async def work(stop: asyncio.Event, on: StatusServer | None) -> RunResult:
            if on is not None:
                on.begin(spec.name)
            with watching(spec.name, Console(stderr=True), exporter, on, quiet=quiet) as progress:
                return await run(spec, progress=progress, stop=stop, journal=journal, part=own)

        result = run_with_status(board, work)
        if own is not None:
            click.echo(
                f"{own}: {len(result.records):,} requests; extproc bench report {output}", err=True
            )
            return
        said = build_report(result)
        _print_result(result, said, output)
        write_brief(brief, brief_report(said))
    _end(said, is_excused=allow_client_limited and said.verdict.is_client_limited_only)


def _print_result(
    result: RunResult, said: Report, output: Path | None, summary: str | None = None
) -> None:
    click.echo(summary_text(said) if summary is None else summary)
    print_verdict(said, Console(stderr=True))
    if output is not None:
        for path in write_reports(result, said, output):
            click.echo(str(path), err=True)


def _end(said: Report, *, is_excused: bool) -> None:
    if not said.verdict.is_valid and not is_excused:
        sys.exit(DOES_NOT_HOLD)
    if any(not outcome.is_met for outcome in said.thresholds):
        sys.exit(THRESHOLD_MISSED)


@bench.command("report")
@click.argument("journals", metavar="RUN.jsonl|FOLDER...", nargs=-1, required=True, type=ANY)
@click.option("--output", type=FOLDER, help="Folder for every report.")
@brief_option
def report_command(journals: tuple[Path, ...], output: Path | None, brief: Path | None) -> None:
    """Make a run's reports again, from its journal.

    It also works for a run that was killed. The parts of a run make one report. If a part is
    missing, it is not valid.
    """
    result = read_run(journals)
    said = build_report(result)
    if output is not None:
        make_folder(output)
    _print_result(result, said, output)
    write_brief(brief, brief_report(said))
    _end(said, is_excused=False)


@bench.command()
@click.argument("spec_file", metavar="SPEC.yaml", type=FILE)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write the dataset here."
)
@click.option(
    "--endpoints", type=click.IntRange(1), help="How many there are. [default: those in `scrape`]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def dataset(spec_file: Path, output: Path | None, endpoints: int | None, as_json: bool) -> None:
    """Prepare a spec's dataset, and say what is in it."""
    spec = read_checked(spec_file)
    registry = open_registry(spec)
    workload = build_workload(spec, registry)
    honesty = account_for(spec, workload, registry.ruler, endpoints)
    if output is not None:
        write_prepared(output, workload.conversations)
    click.echo(json.dumps(asdict(honesty), indent=2) if as_json else str(honesty))


# vLLM waits this long for an answer.
_TIMEOUT_S = 6 * 60 * 60


@click.command("serve", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@click.option("--backend", type=click.Choice(["openai"]), default="openai")
@click.option("--base-url", required=True)
@click.option("--dataset-name", type=click.Choice(["sharegpt"]), default="sharegpt")
@click.option(
    "--dataset-path", required=True, help="ShareGPT's JSON: prompts of whole conversations."
)
@click.option("--model", required=True)
@click.option(
    "--tokenizer", help="A local folder or tokenizer.json, or a name in the local hub cache."
)
@click.option("--seed", type=int, default=0)
@click.option("--request-rate", type=float, default=float("inf"))
@click.option("--max-concurrency", type=int)
@click.option("--num-prompts", type=click.IntRange(1), default=1000)
@click.option("--max-conversations", type=int, help="This many prompts, in the file's order.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for all reports."
)
@click.option("--print-spec", is_flag=True, help="Print this run as a spec, and run nothing.")
@click.pass_context
def serve_command(
    context: click.Context, /, *, output: Path | None, print_spec: bool, **flags: object
) -> None:
    """Run a published benchmark with its own flags.

    It takes the flags of KubeAI's jobs, and prints vLLM's text. Exit 3 if the result is not valid.
    """
    if context.args:
        name = context.args[0].partition("=")[0]
        raise SettingsError(
            f"{name} is not supported; use vLLM's own `vllm bench serve`, or a spec: docs/how-to/benchmark.md"
        )
    spec = build_serve_spec(flags, os.environ)
    if spec.target.tokenizer is None:
        wanted = flags["tokenizer"] or flags["model"]
        click.echo(f"tokenizer {wanted}: not on this machine: four bytes are a token", err=True)
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
    said = build_report(result)
    _print_result(result, said, output, vllm_text(said.whole).rstrip("\n"))
    if not said.verdict.is_valid:
        sys.exit(DOES_NOT_HOLD)


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


_SINGLE = (compare_command, ab, sweep_command, saturate_command, plan_command)
for _command in (*_SINGLE, serve_command, init_command, schema_command):
    bench.add_command(_command)
