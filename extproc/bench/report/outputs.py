"""Where a run's reports go: a folder with every format, and the terminal."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from extproc.bench.judge.verdict import Verdict
from extproc.bench.record import RunResult
from extproc.bench.report import report
from extproc.bench.report.csv_table import csv_table
from extproc.bench.report.run_page import html_report
from extproc.bench.report.textfile import textfile
from extproc.bench.report.vllm_json import vllm_json
from extproc.bench.report.vllm_text import vllm_text

Render = Callable[[RunResult, Verdict], str]

REPORTS: Mapping[str, Render] = MappingProxyType(
    {
        "report.json": lambda result, verdict: report.encode(report.build(result, verdict)).decode(),
        "report.html": html_report,
        "report.txt": lambda result, _: vllm_text(result),
        "vllm.json": lambda result, _: vllm_json(result),
        "requests.csv": lambda result, _: csv_table(result),
        "metrics.prom": textfile,
    }
)


def write_reports(result: RunResult, verdict: Verdict, folder: Path, own: Mapping[str, Render]) -> list[Path]:
    """Writes every report into `folder`, made if missing, under its name; `own` are a user's additions."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, render in {**REPORTS, **own}.items():
        path = folder / name
        path.write_text(render(result, verdict), "utf-8")
        written.append(path)
    return written


def print_verdict(verdict: Verdict, console: Console) -> None:
    """Prints the verdict as a banner: nobody shall read the figures without it."""
    print_faults(verdict.reasons, verdict.remarks, console, good=str(verdict), bad=str(verdict))


def print_faults(
    faults: Sequence[str], remarks: Sequence[str], console: Console, *, good: str, bad: str
) -> None:
    """Prints a banner: `bad` in red with the faults, or `good` in green; the remarks below."""
    colour, title = ("red", bad) if faults else ("green", good)
    lines = [
        f"[bold {colour}]{title}[/]",
        *(f"• {escape(fault)}" for fault in faults),
        *(f"[dim]• {escape(remark)}[/]" for remark in remarks),
    ]
    console.print(Panel("\n".join(lines), border_style=colour, expand=False))
