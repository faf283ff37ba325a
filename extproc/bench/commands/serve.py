"""`extproc bench serve`: vLLM's own benchmark by its arguments, run by this one."""

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import yaml
from rich.console import Console

from extproc.bench.experiments.run import Interrupted, run
from extproc.bench.load.driver import LoadError
from extproc.bench.load.registry import open_registry
from extproc.bench.progress import Broadcast, Exporter, Progress, exporting, until_told, watching
from extproc.bench.record import RunResult
from extproc.bench.report import report
from extproc.bench.report.outputs import make_folder, print_verdict, push_report, write_reports, write_texts
from extproc.bench.report.serve import name_result_file, serve_json, serve_text
from extproc.bench.spec.serve import Serve, translate
from extproc.bench.spec.serve_arguments import build_parser, parse_arguments
from extproc.bench.spec.tree import Spec

# The exit status of a result that does not hold, as of `bench run`.
_DOES_NOT_HOLD = 3
_RETRY_S = 5.0


@click.command(
    "serve", add_help_option=False, context_settings={"ignore_unknown_options": True, "help_option_names": []}
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve_command(arguments: Sequence[str]) -> None:
    """Take the arguments of `vllm bench serve`; print vLLM's text and write its JSON. `--help` lists them.

    Exit 3 if the result does not hold, 2 for arguments that would mean another benchmark here.
    """
    if {"-h", "--help"} & set(arguments):
        click.echo(build_parser().format_help(), nl=False)
        return
    parsed = parse_arguments(arguments)
    asked = translate(parsed, os.environ)
    for warning in asked.warnings:
        click.echo(f"warning: {warning}", err=True)
    if parsed.print_spec:
        tree = asked.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        click.echo(yaml.safe_dump(tree, sort_keys=False), nl=False)
        return
    folder = None if parsed.output is None else Path(parsed.output)
    options = _Options(
        folder,
        parsed.num_warmups,
        parsed.ready_check_timeout_sec,
        is_quiet=parsed.disable_tqdm,
    )
    if folder is not None:
        make_folder(folder)
    with exporting(parsed.metrics_port, parsed.linger) as exporter:
        result = _run(asked.spec, options, exporter)
        said = report.build(result)
        click.echo(serve_text(result, said.whole, asked.telling), nl=False)
        print_verdict(said, Console(stderr=True))
        if parsed.pushgateway is not None:
            push_report(said, parsed.pushgateway)
    if folder is not None:
        _name(write_reports(result, said, folder, open_registry(asked.spec).reports))
    if parsed.save_result or parsed.append_result:
        _name(
            [_save(asked, result, said, parsed.result_dir, parsed.result_filename, is_new=parsed.save_result)]
        )
    if not said.verdict.is_valid and not (
        parsed.allow_client_limited and said.verdict.is_client_limited_only
    ):
        sys.exit(_DOES_NOT_HOLD)


@dataclass(frozen=True, slots=True)
class _Options:
    """How a run is prepared and watched."""

    folder: Path | None
    warmups: int
    ready_within_s: float
    is_quiet: bool


def _run(spec: Spec, options: _Options, exporter: Exporter | None) -> RunResult:
    journal = None if options.folder is None else options.folder / "run.jsonl"

    async def work(stop: asyncio.Event) -> RunResult:
        await _wait_until_ready(spec, options.ready_within_s, stop)
        if options.warmups:
            await run(_only_first(spec, options.warmups), progress=Broadcast([]), stop=stop)
        return await run(spec, progress=progress, stop=stop, journal=journal)

    progress: Progress
    with watching(spec.name, Console(stderr=True), exporter, quiet=options.is_quiet) as progress:
        return until_told(work)


def _only_first(spec: Spec, count: int) -> Spec:
    """The first prompt alone, `count` times, as soon as the cap allows."""
    tree = spec.model_dump(by_alias=True, exclude_defaults=True)
    traffic = tree["performance"]["traffic-shape"]
    for name in ("arrivals", "burstiness"):
        traffic.pop(name, None)
    traffic |= {"req-rate": float("inf"), "total-prompts": count}
    traffic["dataset"] |= {"max-prompts": 1}
    return Spec.model_validate({**tree, "processes": 1})


async def _wait_until_ready(spec: Spec, within_s: float, stop: asyncio.Event) -> None:
    """Asks the first prompt until it is answered, for `within_s` at most; 0 asks nothing."""
    until_s = time.monotonic() + within_s
    while within_s and not stop.is_set():
        try:
            result = await run(_only_first(spec, 1), progress=Broadcast([]), stop=stop)
            fault = result.records[0].failure_detail or result.records[0].failure
        except LoadError as error:
            fault = str(error)
        if fault is None:
            return
        if time.monotonic() + _RETRY_S > until_s:
            raise LoadError(f"the server is not ready after {within_s:g} s: {fault}")
        await asyncio.sleep(_RETRY_S)
    if stop.is_set():
        raise Interrupted("interrupted before the first request")


def _save(
    asked: Serve,
    result: RunResult,
    said: report.Report,
    folder: str | None,
    name: str | None,
    *,
    is_new: bool,
) -> Path:
    text = serve_json(result, said.whole, asked.telling)
    at = result.info.started_at.strftime("%Y%m%d-%H%M%S")
    path = Path(folder or ".") / (name or name_result_file(asked.telling, result.info.model, at))
    make_folder(path.parent)
    before = "" if is_new or not path.exists() else path.read_text("utf-8")
    return write_texts(path.parent, {path.name: before + text})[0]


def _name(paths: Sequence[Path]) -> None:
    for path in paths:
        click.echo(str(path), err=True)
