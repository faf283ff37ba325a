"""Where a run's reports go: a folder with every format, and the terminal."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from extproc.bench.judge.verdict import Verdict
from extproc.bench.record import RunResult
from extproc.bench.report.csv_table import csv_table
from extproc.bench.report.report import Report, encode
from extproc.bench.report.run_page import html_report
from extproc.bench.report.textfile import textfile
from extproc.bench.report.vllm import vllm_json, vllm_text

Render = Callable[[RunResult, Report], str]

REPORTS: Mapping[str, Render] = MappingProxyType(
    {
        "report.json": lambda _, said: encode(said).decode(),
        "report.html": html_report,
        "report.txt": lambda _, said: vllm_text(said.whole),
        "vllm.json": lambda result, said: vllm_json(result, said.whole),
        "requests.csv": lambda result, _: csv_table(result),
        "metrics.prom": lambda _, said: textfile(said),
    }
)


def write_reports(
    result: RunResult, said: Report, folder: Path, own: Mapping[str, Callable[[RunResult, Verdict], str]]
) -> list[Path]:
    """Writes every format into `folder`, made if missing, under its name; `own` are a user's additions."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {name: render(result, said) for name, render in REPORTS.items()}
    texts |= {name: render(result, said.verdict) for name, render in own.items()}
    for name, text in texts.items():
        (folder / name).write_text(text, "utf-8")
    return [folder / name for name in texts]


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
