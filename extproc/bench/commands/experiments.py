"""About more than one run, or about none: compare, ab, sweep, saturate, plan."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import click
from pydantic import ValidationError
from rich.console import Console

from extproc.bench.experiments import saturate, sweep
from extproc.bench.experiments.ab import (
    ab_html,
    ab_markdown,
    count_runs,
    run_ab,
    summarise_trials,
)
from extproc.bench.experiments.compare import Trial, compare, comparison_html, comparison_markdown
from extproc.bench.experiments.plan import plan_here, plan_text
from extproc.bench.experiments.run import Run, show_runs
from extproc.bench.experiments.saturate import saturation_html, saturation_markdown
from extproc.bench.experiments.sweep_rows import write_rows
from extproc.bench.experiments.sweep_table import gather, sweep_html, sweep_markdown
from extproc.bench.load.registry import find_part_faults
from extproc.bench.progress import Pace, run_until_signal
from extproc.bench.report import report
from extproc.bench.report.brief import build_brief
from extproc.bench.report.outputs import make_folder, print_faults, write_brief, write_texts
from extproc.bench.spec.section import list_faults, parse_duration, parse_rate
from extproc.bench.spec.tree import Spec, read_spec
from extproc.bench.status_server import StatusServer, split_location
from extproc.errors import SettingsError

_T = TypeVar("_T")
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
ANY = click.Path(exists=True, path_type=Path)
# The exit status of a result that does not hold.
NOT_COMPARABLE = 3


def removed_option(name: str, instead: str) -> Callable[[Callable[..., _T]], Callable[..., _T]]:
    """A removed flag: using it prints what to do instead."""

    def refuse(_context: click.Context, _option: click.Parameter, value: object) -> None:
        if value:
            raise SettingsError(f"{name} was removed in 0.2: {instead}")

    return click.option(name, hidden=True, multiple=True, callback=refuse, expose_value=False)


brief_option = click.option(
    "--brief",
    type=click.Path(dir_okay=False, path_type=Path),
    hidden=True,
    help="Write verdict and headline figures here.",
)


def display_options(command: Callable[..., _T]) -> Callable[..., _T]:
    """What every command that makes runs has: how it is shown, here and to a program."""
    for option in (
        removed_option(
            "--datasets", "the seed makes the prompts; `bench dataset --output` keeps them"
        ),
        click.option(
            "--board",
            metavar="HOST:PORT",
            hidden=True,
            help="Serve progress and the wanted arm here.",
        ),
        brief_option,
        click.option("--quiet", is_flag=True, help="No live display."),
    ):
        command = option(command)
    return command


def read_checked(path: Path) -> Spec:
    """Reads a spec file, the names and options of its parts included."""
    return read_spec(path, find_part_faults)


def read_spec_or_flags(
    path: Path | None,
    urls: Sequence[str],
    rate: float | None,
    duration: float | None,
    trace: Path | None = None,
) -> Spec:
    """Reads a spec file, or makes one of flags; with several `urls` they are what is compared."""
    if path is not None:
        if urls or rate is not None or duration is not None or trace is not None:
            raise SettingsError("give a spec file, or --url, --rate and --duration, not both")
        return read_checked(path)
    if not urls or (trace is None and (rate is None or duration is None)):
        raise SettingsError(
            "give a spec file (`bench init` writes one), or --url, --rate and --duration"
        )
    # Sessions would offer less in a short time: their turns wait for answers.
    shape: dict[str, object] = {"dataset": {"name": "synthetic", "turns": "prompts"}}
    if trace is not None:
        shape = {
            "dataset": {"name": "trace", "path": trace},
            **({} if rate else {"shape": "trace"}),
        }
    elif duration is not None:
        shape["warm-up"] = duration / 5
    shape |= {"req-rate": rate, "duration": duration}
    tree = {"name": "quick", "endpoint": urls[0], "performance": {"traffic-shape": shape}}
    try:
        return Spec.model_validate({**tree, "ab": {"urls": urls} if len(urls) > 1 else {}})
    except ValidationError as error:
        raise SettingsError(list_faults(error)) from None


def run_with_status(
    address: str | None, work: Callable[[asyncio.Event, StatusServer | None], Awaitable[_T]]
) -> _T:
    """Runs `work` until it is done or gets a signal, with a board that is served at `address`."""

    async def show(stop: asyncio.Event) -> _T:
        if address is None:
            return await work(stop, None)
        board = StatusServer()
        async with board.serving(*split_location(address)):
            return await work(stop, board)

    return run_until_signal(show)


@click.command("compare")
@click.argument("a", metavar="A", type=ANY)
@click.argument("b", metavar="B", type=ANY, required=False)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write a page, an HTML file."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=0.03,
    show_default=True,
    help="The share by which the loads may differ.",
)
def compare_command(a: Path, b: Path | None, output: Path | None, tolerance: float) -> None:
    """Compare two reports, or folders of repeats.

    A and B are a report.json each, or a folder of repeats each, which are paired by seed. With
    repeats, a figure is better or worse only if the interval of its change excludes zero. Exit 3 if
    the two cannot be compared: unequal load, another schedule, a run that is not valid.
    """
    if b is None:
        raise SettingsError("give two reports, or two folders")
    comparison = compare(
        _read_reports(a), _read_reports(b), names=_name_sides(a, b), tolerance=tolerance
    )
    click.echo(comparison_markdown(comparison))
    click.echo(
        f"All figures: {output}."
        if output
        else "`--output FILE.html` writes a page of all figures."
    )
    if output is not None:
        make_folder(output.parent)
        _write(output.parent, {output.name: comparison_html(comparison)})
    _end(comparison.faults, comparison.remarks)


def _name_sides(a: Path, b: Path) -> tuple[str, str]:
    """What tells two paths apart: of a `report.json` each their folders' names."""
    a, b = a.resolve(), b.resolve()
    while a.name == b.name and a != b:
        a, b = a.parent, b.parent
    names = a.name.removesuffix(".json"), b.name.removesuffix(".json")
    return names if a != b else (names[0], f"{names[0]} again")


def _read_reports(path: Path) -> list[report.Report]:
    paths = sorted(path.rglob("report.json")) if path.is_dir() else [path]
    if not paths:
        raise report.ReportError(f"{path}: no report.json in it")
    reports = []
    for each in paths:
        try:
            reports.append(report.decode_report(each.read_bytes()))
        except report.ReportError as error:
            raise report.ReportError(f"{each}: {error}") from None
    return reports


@click.command()
@click.argument("spec_file", metavar="[SPEC.yaml]", type=FILE, required=False)
@click.option(
    "--url", "urls", multiple=True, help="Without a spec: a server; give two or more to compare."
)
@click.option("--rate", type=parse_rate, metavar="RATE", help="With --url: requests per second.")
@click.option(
    "--duration", type=parse_duration, metavar="TIME", help="With --url: of each run, such as 60s."
)
@click.option("--output", type=FOLDER, help="Folder for the comparison and every run's reports.")
@click.option(
    "--allow-client-limited", is_flag=True, help="Exit 0 even if the client was the limit."
)
@display_options
def ab(
    *,
    spec_file: Path | None,
    urls: tuple[str, ...],
    rate: float | None,
    duration: float | None,
    output: Path | None,
    quiet: bool,
    allow_client_limited: bool,
    brief: Path | None,
    board: str | None,
) -> None:
    """Compare strategies or servers at equal load.

    All get the same schedule. For each arm it switches the running service, empties the caches and
    measures, again with each seed. Exit 3 if the arms are not comparable.
    """
    spec = read_spec_or_flags(spec_file, urls, rate, duration)
    if output is not None:
        make_folder(output)

    async def work(run: Run, stop: asyncio.Event, on: StatusServer | None) -> list[Trial]:
        return await run_ab(spec, run, output, board=on, stop=stop)

    compared = summarise_trials(
        _run_all(board, Pace(count_runs(spec.ab)), work, quiet=quiet), spec.ab
    )
    text, page = ab_markdown(compared), ab_html(compared)
    click.echo(text)
    rest = f"All figures: {output / 'ab.html'}, {output / 'ab.json'}." if output else None
    click.echo(rest or "`--output DIR` writes a page of all figures, and every run's reports.")
    _write(
        output, {"ab.json": report.encode_report(compared).decode(), "ab.html": page, "ab.md": text}
    )
    is_excused = allow_client_limited and compared.is_client_limited_only
    _end(compared.faults, compared.remarks, brief=brief, is_excused=is_excused)


@click.command("sweep")
@click.argument("spec_file", metavar="SPEC.yaml", type=FILE)
@click.option(
    "--output", type=FOLDER, required=True, help="Folder that keeps the runs and the page."
)
@click.option("--again", is_flag=True, help="Do runs again that are not valid.")
@click.option(
    "--allow-client-limited", is_flag=True, help="Exit 0 even if the client was the limit."
)
@display_options
def sweep_command(
    *,
    spec_file: Path,
    output: Path,
    quiet: bool,
    again: bool,
    allow_client_limited: bool,
    brief: Path | None,
    board: str | None,
) -> None:
    """Measure every strategy at every concurrency.

    With every dataset, in every repeat. Runs that the folder has are not done again. So a stopped
    command continues, and one with more arms, loads or repeats adds to it. Exit 3 if runs are
    missing or not valid.
    """
    spec = read_checked(spec_file)
    tasks = sweep.list_tasks(spec)
    make_folder(output)
    missing = sweep.find_missing(tasks, output, again=again)
    pace = Pace(len(missing) * (2 if spec.ab.prime else 1))

    def print_measured(task: sweep.SweepTask, said: report.Report) -> None:
        click.echo(f"{pace.render(1.0)}: {task.title}: {said.title}", err=True)

    async def work(run: Run, stop: asyncio.Event, on: StatusServer | None) -> None:
        await sweep.run_sweep(spec, missing, run, output, print_measured, board=on, stop=stop)

    _run_all(board, pace, work, quiet=quiet)
    rows = sweep.build_rows(tasks, output)
    done = gather(
        spec.name,
        rows,
        baseline=spec.ab.baseline,
        confidence=spec.ab.confidence,
        faults=[*sweep.find_sweep_faults(tasks, output)],
        tolerance=spec.ab.tolerance,
    )
    click.echo(sweep_markdown(done), nl=False)
    _write(
        output,
        {
            "sweep.html": sweep_html(done),
            "sweep.csv": write_rows(rows),
            "sweep.md": sweep_markdown(done),
        },
    )
    good, bad = "every run is valid", "the sweep does not hold as a whole"
    is_excused = allow_client_limited and done.is_client_limited_only
    _end(done.faults, done.remarks, brief=brief, is_excused=is_excused, good=good, bad=bad)


def _run_all(
    address: str | None,
    pace: Pace,
    work: Callable[[Run, asyncio.Event, StatusServer | None], Awaitable[_T]],
    *,
    quiet: bool,
) -> _T:
    """Does the runs of an experiment, each shown on the terminal and on a board."""
    return run_with_status(
        address, lambda stop, on: work(show_runs(stop, pace, quiet=quiet, board=on), stop, on)
    )


@click.command("saturate")
@click.argument("spec_file", metavar="SPEC.yaml", type=FILE)
@click.option("--output", type=FOLDER, help="Folder for the reports.")
@display_options
def saturate_command(
    *, spec_file: Path, output: Path | None, quiet: bool, brief: Path | None, board: str | None
) -> None:
    """Find the highest rate that the server can keep up with.

    Beyond it, more requests only add latency. Exit 3 if there is no answer: the client reached its
    limit before the server did, the lowest rate was not served, or an answer lasts longer than the
    warm-up.
    """
    spec = read_checked(spec_file)
    if output is not None:
        make_folder(output)

    async def work(run: Run, _stop: asyncio.Event, _on: StatusServer | None) -> list[saturate.Rung]:
        return await saturate.climb(spec, run)

    rungs = _run_all(board, Pace(spec.saturate.steps, is_known=False), work, quiet=quiet)
    found = saturate.summarise_rungs(rungs, spec.saturate)
    click.echo(saturation_markdown(found), nl=False)
    page = saturation_html(found)
    _write(
        output, {"saturation.json": report.encode_report(found).decode(), "saturation.html": page}
    )
    figures = {
        "req_per_s": found.best_rps,
        "total_tok_per_s": found.best_tps,
        "inflection_rps": found.inflection_rps,
    }
    good, bad = "the search holds", "the search does not hold"
    _end(found.faults, found.remarks, brief=brief, figures=figures, good=good, bad=bad)


@click.command("plan")
@click.argument("spec_file", metavar="SPEC.yaml", type=FILE)
@click.option(
    "--latency",
    type=click.FloatRange(0, min_open=True),
    help="Seconds that a request takes, as a guess. [default: 45 ms for each token of an answer, 5 at least]",
)
def plan_command(spec_file: Path, latency: float | None) -> None:
    """Say what a run would do; exit 2 if it cannot be done."""
    try:
        planned = plan_here(read_checked(spec_file), latency_s=latency)
    except SettingsError as error:
        # What `run` refuses, in the words of `run`.
        _end_plan(str(error).splitlines())
        return
    click.echo(plan_text(planned), nl=False)
    _end_plan(planned.faults, planned.remarks)


def _end_plan(faults: Sequence[str], remarks: Sequence[str] = ()) -> None:
    print_faults(faults, remarks, Console(stderr=True), good="possible", bad="impossible")
    if faults:
        sys.exit(2)


def _write(folder: Path | None, texts: Mapping[str, str]) -> None:
    if folder is not None:
        for path in write_texts(folder, texts):
            click.echo(str(path), err=True)


def _end(
    faults: Sequence[str],
    remarks: Sequence[str],
    *,
    brief: Path | None = None,
    figures: Mapping[str, float | None] = MappingProxyType({}),
    is_excused: bool = False,
    good: str = "comparable",
    bad: str = "not comparable",
) -> None:
    """Says whether an experiment holds, on the terminal and to a program, and by the exit status."""
    write_brief(brief, build_brief(bad if faults else good, not faults, faults, remarks, figures))
    print_faults(faults, remarks, Console(stderr=True), good=good, bad=bad)
    if faults and not is_excused:
        sys.exit(NOT_COMPARABLE)
