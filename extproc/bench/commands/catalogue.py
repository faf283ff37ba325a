"""`extproc bench history`: many reports, lined up."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console

from extproc.bench.experiments.history import Entry, enter_report, trace_lines
from extproc.bench.experiments.history_formats import (
    history_html,
    history_markdown,
    list_regressions,
    list_remarks,
)
from extproc.bench.report import report
from extproc.bench.report.outputs import make_folder, print_faults, write_texts

# The exit status of a figure that is not what it should be, as of a threshold.
_WORSE = 4

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command("history")
@click.argument("folder", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--runs", type=click.IntRange(1), default=5, show_default=True, help="Earlier runs held against."
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=0.05,
    show_default=True,
    help="By what share a figure may be worse.",
)
@click.option("--output", type=_FOLDER, help="Folder for the page and the table.")
def history_command(folder: Path, runs: int, tolerance: float, output: Path | None) -> None:
    """Line up the runs below DIR by kind and time; exit 4 if the last valid one of a kind got worse.

    Reads every report.json. Runs are of a kind if name, model, load, accelerators, engine and labels are the
    same; versions may differ.
    """
    entries = list(_read_entries(folder))
    if not entries:
        raise report.ReportError(f"{folder}: no report.json in it")
    history = trace_lines(entries, tolerance=tolerance, runs=runs)
    text = history_markdown(history, tolerance=tolerance, runs=runs)
    click.echo(text, nl=False)
    if output is not None:
        make_folder(output)
        page = history_html(history, tolerance=tolerance, runs=runs)
        for path in write_texts(output, {"history.md": text, "history.html": page}):
            click.echo(str(path), err=True)
    worse = list_regressions(history)
    print_faults(worse, list_remarks(history), Console(stderr=True), good="no regression", bad="got worse")
    if worse:
        sys.exit(_WORSE)


def _read_entries(folder: Path) -> Iterator[Entry]:
    reports = sorted(folder.rglob("report.json"))
    for path in reports:
        try:
            yield enter_report(report.decode_report(path.read_bytes()), str(path))
        except report.ReportError as error:
            click.echo(f"left out: {path}: {error}", err=True)
