"""The commands of `extproc bench` about more than one run, or about none: compare, ab, saturate, plan."""

import asyncio
import os
import resource
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
from rich.console import Console

from extproc.bench.experiments import saturate
from extproc.bench.experiments.ab import Trial, run_trials
from extproc.bench.experiments.ab_formats import ab_csv, ab_html, ab_markdown
from extproc.bench.experiments.ab_report import summarise_trials
from extproc.bench.experiments.arms import open_lab
from extproc.bench.experiments.compare import compare, comparison_markdown
from extproc.bench.experiments.plan import Host, plan, plan_text
from extproc.bench.experiments.run import run
from extproc.bench.experiments.saturation_formats import saturation_html, saturation_markdown
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import build_workload
from extproc.bench.progress import watching
from extproc.bench.published.tables import published_markdown, read_published
from extproc.bench.record import RunResult
from extproc.bench.report import report
from extproc.bench.report.outputs import print_faults, write_reports
from extproc.bench.spec.tree import Spec, read_spec

# The exit status of a result that does not hold, as of a run that is client-limited.
NOT_COMPARABLE = 3

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


@click.command("compare")
@click.argument("a", metavar="A", type=_FILE)
@click.argument("b", metavar="[B]", type=_FILE, required=False)
@click.option("--tolerance", default=0.03, show_default=True, help="How far the loads may differ, a share.")
def compare_command(a: Path, b: Path | None, tolerance: float) -> None:
    """Compare the reports A and B (report.json), or judge the published results in A (a CSV table).

    Exit 3 if the two cannot be compared: unequal load, another schedule, a client that was the limit.
    """
    if b is None:
        click.echo(published_markdown(read_published(a.read_text("utf-8").splitlines())), nl=False)
        return
    comparison = compare(report.decode(a.read_bytes()), report.decode(b.read_bytes()), tolerance=tolerance)
    click.echo(comparison_markdown(comparison), nl=False)
    _end(comparison.faults)


@click.command()
@click.argument("spec_file", metavar="SPEC.yaml", type=_FILE)
@click.option("--output", type=_FOLDER, help="Folder for the comparison and every run's reports.")
@click.option("--quiet", is_flag=True, help="No live display.")
@click.option("--allow-client-limited", is_flag=True, help="Exit 0 even if the arms are not comparable.")
def ab(spec_file: Path, output: Path | None, quiet: bool, allow_client_limited: bool) -> None:
    """Compare strategies over the same schedule at equal offered load.

    Each arm is switched to live, caches are emptied, then it is measured; again with other seeds. Exit 3
    if the arms are not comparable.
    """
    spec = read_spec(spec_file)
    trials = asyncio.run(_run_ab(spec, output, quiet=quiet))
    compared = summarise_trials(trials, spec.ab)
    click.echo(ab_markdown(compared), nl=False)
    if output is not None:
        _write(
            output,
            {
                "ab.json": report.encode(compared).decode(),
                "ab.html": ab_html(compared),
                "ab.csv": ab_csv(compared),
                "ab.md": ab_markdown(compared),
            },
        )
    _end(compared.faults, compared.remarks, allow_faults=allow_client_limited)


async def _run_ab(spec: Spec, output: Path | None, *, quiet: bool) -> list[Trial]:
    reports = build_registry(spec.plugins).reports

    def keep(trial: Trial, result: RunResult) -> None:
        if output is not None:
            folder = output / f"{trial.arm}-{trial.repeat + 1}"
            write_reports(result, trial.report, folder, reports)

    async with open_lab(spec) as lab:
        return await run_trials(spec, lambda seeded, title: _run(seeded, title, quiet=quiet), lab, keep)


async def _run(spec: Spec, title: str, *, quiet: bool) -> RunResult:
    with watching(title, Console(stderr=True), None, quiet=quiet) as progress:
        return await run(spec, progress=progress)


@click.command("saturate")
@click.argument("spec_file", metavar="SPEC.yaml", type=_FILE)
@click.option("--output", type=_FOLDER, help="Folder for the reports.")
@click.option("--quiet", is_flag=True, help="No live display.")
def saturate_command(spec_file: Path, output: Path | None, quiet: bool) -> None:
    """Find the rate beyond which more requests bring latency and no throughput.

    Exit 3 if the client was the limit before the server was.
    """
    spec = read_spec(spec_file)
    found = saturate.summarise_rungs(
        asyncio.run(saturate.climb(spec, lambda seeded, title: _run(seeded, title, quiet=quiet))),
        spec.saturate,
    )
    click.echo(saturation_markdown(found), nl=False)
    if output is not None:
        _write(
            output,
            {"saturation.json": report.encode(found).decode(), "saturation.html": saturation_html(found)},
        )
    _end(found.faults)


@click.command("plan")
@click.argument("spec_file", metavar="SPEC.yaml", type=_FILE)
@click.option("--latency", default=5.0, show_default=True, help="Seconds that a request may take, assumed.")
def plan_command(spec_file: Path, latency: float) -> None:
    """Print schedule, tokens, ports and CPU of a run without running it. Exit 2 if it is impossible."""
    spec = read_spec(spec_file)
    planned = plan(spec, build_workload(spec, build_registry(spec.plugins)), _this_host(), latency_s=latency)
    click.echo(plan_text(planned), nl=False)
    print_faults(planned.faults, planned.remarks, Console(stderr=True), good="possible", bad="impossible")
    if planned.faults:
        sys.exit(2)


def _this_host() -> Host:
    low, high = map(int, _PORTS.read_text("ascii").split()) if _PORTS.exists() else (32768, 60999)
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Host(cores=len(os.sched_getaffinity(0)), ports=high - low + 1, files=files)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
        click.echo(str(folder / name), err=True)


def _end(faults: Iterable[str], remarks: Iterable[str] = (), *, allow_faults: bool = False) -> None:
    faults = tuple(faults)
    print_faults(faults, tuple(remarks), Console(stderr=True), good="comparable", bad="not comparable")
    if faults and not allow_faults:
        sys.exit(NOT_COMPARABLE)
