"""Where a run's reports go: a folder with every format, and the terminal."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from extproc.bench.measure.metrics import MEASURES
from extproc.bench.record import Record, RunResult
from extproc.bench.report.brief import Brief, encode_brief
from extproc.bench.report.headline import summary_text
from extproc.bench.report.report import Report, encode_report
from extproc.bench.report.run_page import html_report
from extproc.bench.report.vllm import vllm_json, vllm_text
from extproc.errors import ExtprocError

_FIELDS = (
    *(
        "index",
        "session",
        "turn",
        "intended_s",
        "admitted_s",
        "started_s",
        "sent_s",
        "first_byte_s",
    ),
    *(
        "first_token_s",
        "end_s",
        "input_tokens",
        "output_tokens",
        "token_source",
        "estimated_input_tokens",
    ),
    *(
        "estimated_output_tokens",
        "cached_tokens",
        "endpoint",
        "status",
        "failure",
        "failure_detail",
    ),
    "retry_after_s",
)


def csv_table(result: RunResult) -> str:
    """A header and a line per request; what a request does not have is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_FIELDS, "chunks", *(f"{name}_ms" for name in MEASURES)])
    writer.writerows(_row(record) for record in result.records)
    return text.getvalue()


def _row(record: Record) -> list[object]:
    figures = [measure(record) for measure in MEASURES.values()]
    return [
        *(getattr(record, name) for name in _FIELDS),
        len(record.chunk_s),
        *(None if value is None else round(value * 1000, 6) for value in figures),
    ]


class OutputError(ExtprocError):
    """A report could not be made or written."""


Render = Callable[[RunResult, Report], str]

REPORTS: Mapping[str, Render] = MappingProxyType(
    {
        "report.json": lambda _, said: encode_report(said).decode(),
        "report.html": html_report,
        "summary.txt": lambda _, said: summary_text(said),
        "report.txt": lambda _, said: vllm_text(said.whole),
        "vllm.json": lambda result, said: vllm_json(result, said.whole),
        "requests.csv": lambda result, _: csv_table(result),
    }
)


def write_reports(result: RunResult, said: Report, folder: Path) -> list[Path]:
    """Writes every format into `folder`, made if missing, under its name."""
    make_folder(folder)
    return write_texts(folder, {name: render(result, said) for name, render in REPORTS.items()})


def make_folder(folder: Path) -> None:
    """Makes sure of a folder to write to; before a run, not after it. Raises `OutputError`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written to: {error.strerror}") from None


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """Writes files into a folder that is there. Raises `OutputError`."""
    for name, text in texts.items():
        try:
            (folder / name).write_text(text, "utf-8")
        except OSError as error:
            raise OutputError(f"{folder / name}: {error.strerror}") from None
    return [folder / name for name in texts]


def write_brief(path: Path | None, brief: Brief) -> None:
    """Writes the verdict and the headline figures for a program to read; no path, nothing."""
    if path is not None:
        try:
            path.write_bytes(encode_brief(brief))
        except OSError as error:
            raise OutputError(f"{path}: {error.strerror}") from None


def print_verdict(said: Report, console: Console) -> None:
    """Prints the verdict as a banner: nobody shall read the figures without it."""
    doubtful = said.verdict.has_doubts
    print_faults(
        said.faults,
        said.verdict.remarks,
        console,
        good=said.title,
        bad=said.title,
        is_doubtful=doubtful,
    )


def print_faults(
    faults: Sequence[str],
    remarks: Sequence[str],
    console: Console,
    *,
    good: str,
    bad: str,
    is_doubtful: bool = False,
) -> None:
    """Prints a banner: `bad` in red with the faults, or `good` in green, or amber; the remarks below."""
    colour, title = ("red", bad) if faults else ("yellow" if is_doubtful else "green", good)
    lines = [
        f"[bold {colour}]{title}[/]",
        *(f"• {escape(fault)}" for fault in faults),
        *(f"[dim]• {escape(remark)}[/]" for remark in remarks),
    ]
    console.print(Panel("\n".join(lines), border_style=colour, expand=False))
