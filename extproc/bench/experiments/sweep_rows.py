"""A row for each run of a sweep: strategy, load, figures and verdict; and the rows as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from extproc.bench.judge.verdict import RunVerdict
from extproc.bench.report.report import Report
from extproc.bench.spec.tree import Load

# The columns of KubeAI's published table, and what we know beside them. Whoever has a script for
# theirs reads ours.
PUBLISHED_COLUMNS = (
    *("max_concurrency", "request_rate", "strategy", "requests", "duration_s", "input_tokens"),
    *("output_tokens", "req_per_s", "output_tok_per_s", "total_tok_per_s"),
    *(
        f"{measure}_{point}_ms"
        for measure in ("ttft", "tpot", "itl")
        for point in ("mean", "median", "p99")
    ),
)
OWN_COLUMNS = (
    *("dataset", "repeat", "endpoints", "in_flight", "hit_rate", "failed", "unfinished"),
    *(
        f"{measure}_{point}_ms"
        for measure in ("e2e", "time_per_token")
        for point in ("mean", "median", "p90")
    ),
    "verdict",
)
_COLUMNS = (*PUBLISHED_COLUMNS, *OWN_COLUMNS)
# Published latencies count from the sending of a request.
_MEASURES = {
    "ttft": "ttft_sent",
    "tpot": "tpot",
    "itl": "itl",
    "e2e": "e2e_sent",
    "time_per_token": "time_per_token",
}
_POINTS = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One run under a load. `figures` are by column; repeats count from 1."""

    strategy: str
    load: Load
    figures: Mapping[str, float]
    verdict: RunVerdict
    dataset: str = ""
    repeat: int = 1


def build_row(report: Report, dataset: str, strategy: str, repeat: int, load: Load) -> SweepRow:
    """The measured part of a run; latencies from its requests' sending, as the cap holds them back."""
    part = report.measured
    figures: dict[str, float | None] = {
        "requests": part.counts.completed,
        "duration_s": part.window.end_s - part.window.start_s,
        "input_tokens": part.tokens.input,
        "output_tokens": part.tokens.output,
        "req_per_s": part.throughput.requests_rps,
        "output_tok_per_s": part.throughput.output_tps,
        "total_tok_per_s": part.throughput.total_tps,
        "in_flight": part.throughput.in_flight,
        "failed": report.whole.counts.failed,
        "unfinished": report.whole.counts.unfinished,
        "hit_rate": report.hit_rate,
    }
    for column, measure in _MEASURES.items():
        for label, point in _POINTS.items():
            if (name := f"{column}_{label}_ms") in _COLUMNS:
                figures[name] = part.latency(measure, point)
    known = {name: value for name, value in figures.items() if value is not None}
    return SweepRow(strategy, load, known, report.verdict, dataset, repeat)


def write_rows(rows: Sequence[SweepRow]) -> str:
    """CSV: the published columns, then what else is known."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        figures = {name: float(f"{value:.7g}") for name, value in row.figures.items()}
        rate = row.load.req_rate
        run = {
            "strategy": row.strategy,
            "max_concurrency": float(row.load.concurrency),
            "request_rate": None if rate is None else float(f"{rate:.7g}"),
            "dataset": row.dataset,
            "repeat": row.repeat,
            "verdict": row.verdict,
        }
        writer.writerow({**figures, **run})
    return text.getvalue()
