"""A report as a row in the published columns, and rows as CSV. Pure."""

import csv
import io
from collections.abc import Sequence

from extproc.bench.measure.metrics import RunMetrics
from extproc.bench.published.tables import COLUMNS, EXTRAS, Cell
from extproc.bench.report.report import Report
from extproc.bench.spec.experiment_sections import Load

# Published latencies count from the sending of a request.
_MEASURES = (
    ("ttft", "ttft_sent"),
    ("tpot", "tpot"),
    ("itl", "itl"),
    ("e2e", "e2e_sent"),
    ("time_per_token",) * 2,
)
_POINTS = (("mean", "mean"), ("median", "p50"), ("p90", "p90"), ("p99", "p99"))


def build_row(said: Report, dataset: str, strategy: str, repeat: int, load: Load) -> Cell:
    """The measured part of a run; latencies from its requests' sending, as the cap holds them back."""
    part = said.measured
    figures = {
        "max_concurrency": float(load.concurrency),
        **({} if load.req_rate is None else {"request_rate": load.req_rate}),
        "requests": part.counts.completed,
        "duration_s": part.window.end_s - part.window.start_s,
        "input_tokens": part.tokens.input,
        "output_tokens": part.tokens.output,
        "req_per_s": part.throughput.requests_rps,
        "output_tok_per_s": part.throughput.output_tps,
        "total_tok_per_s": part.throughput.total_tps,
        "in_flight": part.throughput.in_flight,
        "failed": said.whole.counts.failed,
        "unfinished": said.whole.counts.unfinished,
        **_latencies(part),
    }
    if said.hit_rate is not None:
        figures["hit_rate"] = said.hit_rate
    return Cell(strategy, figures, dataset, repeat, said.verdict.text)


def _latencies(part: RunMetrics) -> dict[str, float]:
    found = {
        f"{short}_{point}_ms": getattr(part.latency_ms[measure], field)
        for short, measure in _MEASURES
        if measure in part.latency_ms
        for point, field in _POINTS
    }
    return {name: value for name, value in found.items() if name in {*COLUMNS, *EXTRAS}}


def write_rows(cells: Sequence[Cell]) -> str:
    """CSV that `read_published` reads: the published columns, then what else is known."""
    text = io.StringIO()
    writer = csv.DictWriter(text, (*COLUMNS, *EXTRAS), lineterminator="\n")
    writer.writeheader()
    for cell in cells:
        figures = {name: float(f"{value:.7g}") for name, value in cell.figures.items()}
        names = {"dataset": cell.dataset, "repeat": cell.repeat, "verdict": cell.verdict}
        writer.writerow({**figures, "strategy": cell.strategy, **names})
    return text.getvalue()
