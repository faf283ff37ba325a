"""Two runs side by side, and published results with their verdicts, as tables."""

from collections.abc import Sequence

from extproc.bench.experiments.compare import Change, Comparison
from extproc.bench.judge.published import Row
from extproc.bench.judge.verdict import judge_cell
from extproc.bench.measure.words import DASH, fixed
from extproc.bench.report.figures import FIGURES
from extproc.bench.report.markdown import markdown_table


def comparison_markdown(comparison: Comparison) -> str:
    """A row per figure that at least one of the runs has."""
    known = [change for change in comparison.changes if (change.a, change.b) != (None, None)]
    return markdown_table(("", "A", "B", "B / A", ""), [_row(change) for change in known])


def _row(change: Change) -> Sequence[str]:
    better = {None: "", True: "better", False: "worse"}[change.is_better]
    digits = 4 if change.name in {"hit_rate", "goodput"} else 2
    ratio = DASH if change.ratio is None else f"{change.ratio:.3f}"
    return FIGURES[change.name].heading, fixed(change.a, digits), fixed(change.b, digits), ratio, better


def published_markdown(rows: Sequence[Row]) -> str:
    """The published cells, what was in flight against what an on-time client would have had, the verdict."""
    header = (
        "strategy",
        "asked req/s",
        "cap",
        "req/s",
        "tok/s",
        "TTFT mean",
        "in flight",
        "on time",
        "verdict",
    )
    return markdown_table(header, [_judged(row) for row in rows])


def _judged(row: Row) -> Sequence[str]:
    verdict = judge_cell(row.cell)
    figures = verdict.figures
    return (
        row.strategy,
        fixed(row.figures["request_rate"], 0),
        str(row.cap),
        fixed(row.figures["req_per_s"]),
        fixed(row.figures["total_tok_per_s"], 0),
        f"{fixed(row.figures['ttft_mean_ms'], 0)} ms",
        fixed(figures.in_flight, 0),
        fixed(figures.on_time_in_flight, 0),
        str(verdict),
    )
