"""Results as a table, published ones or our own: read, written, and judged from their means alone."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan

from extproc.bench.judge.verdict import (
    CLIENT_LIMITED,
    FaultReason,
    Figures,
    RunVerdict,
    build_verdict,
)
from extproc.bench.report.report import Report
from extproc.bench.spec.tree import Limits, Load
from extproc.errors import ExtprocError

# Published latencies count from the sending of a request.
_MEASURES = (
    *(("ttft", "ttft_sent"), ("tpot", "tpot"), ("itl", "itl"), ("e2e", "e2e_sent")),
    ("time_per_token",) * 2,
)
_POINTS = (("mean", "mean"), ("median", "p50"), ("p90", "p90"), ("p99", "p99"))


COLUMNS = (
    *("max_concurrency", "request_rate", "strategy", "requests", "duration_s", "input_tokens"),
    *("output_tokens", "req_per_s", "output_tok_per_s", "total_tok_per_s"),
    *(
        f"{measure}_{point}_ms"
        for measure in ("ttft", "tpot", "itl")
        for point in ("mean", "median", "p99")
    ),
)
# Optional columns of a table. `dataset`, `repeat` and `verdict` say what a row is, the others are
# figures.
EXTRAS = (
    *("dataset", "repeat", "endpoints", "in_flight", "hit_rate", "failed", "unfinished"),
    *(
        f"{measure}_{point}_ms"
        for measure in ("e2e", "time_per_token")
        for point in ("mean", "median", "p90")
    ),
    "verdict",
)
_TEXTS = frozenset({"strategy", "dataset", "repeat", "verdict"})
# Without these there is nothing to judge or to draw.
_NEEDED = frozenset({"max_concurrency", "requests", "duration_s"})


class PublishedError(ExtprocError):
    """A table lacks a column or holds something that is no number."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One result: the strategy, its load and its figures, by column of `COLUMNS` and `EXTRAS`.

    A loop of users has no request rate. `said` is the verdict of who measured it, where there is
    one.
    """

    strategy: str
    figures: Mapping[str, float]
    dataset: str = ""
    repeat: int = 1
    said: RunVerdict | None = None

    @property
    def rate(self) -> float | None:
        return self.figures.get("request_rate")

    @property
    def verdict(self) -> RunVerdict:
        """The verdict when it was measured, else one by its means."""
        return self.said or judge_cell(self)

    @property
    def cap(self) -> int:
        return int(self.figures["max_concurrency"])

    @property
    def requests(self) -> int:
        return int(self.figures["requests"])

    @property
    def throughput(self) -> float:
        return self.requests / self.figures["duration_s"]

    @property
    def in_flight(self) -> float:
        """The mean in flight, measured; else by Little's law, a request lasting TTFT and a gap per token."""
        if (measured := self.figures.get("in_flight")) is not None:
            return measured
        latency_ms = self.figures.get("e2e_mean_ms", nan)
        if "e2e_mean_ms" not in self.figures and {"ttft_mean_ms", "itl_mean_ms"} <= set(
            self.figures
        ):
            tokens = self.figures["output_tokens"] / self.requests
            latency_ms = self.figures["ttft_mean_ms"] + self.figures["itl_mean_ms"] * (tokens - 1)
        return self.throughput * latency_ms / 1000


def read_published(lines: Iterable[str]) -> list[Cell]:
    """Reads CSV with the columns `COLUMNS`, those of `EXTRAS` if there are some; raises `PublishedError`."""
    reader = csv.DictReader(lines)
    missing = set(COLUMNS) - set(reader.fieldnames or ())
    if missing:
        raise PublishedError(f"the table lacks columns: {', '.join(sorted(missing))}")
    return [_read_cell(fields) for fields in reader]


def _read_cell(fields: Mapping[str, str]) -> Cell:
    named = [name for name in (*COLUMNS, *EXTRAS) if name not in _TEXTS]
    try:
        figures = {name: float(text) for name in named if (text := fields.get(name))}
        repeat = int(fields.get("repeat") or 1)
    except ValueError as error:
        raise PublishedError(
            f"the row {list(fields.values())} holds something that is no number: {error}"
        ) from None
    if missing := _NEEDED - set(figures):
        raise PublishedError(f"the row {list(fields.values())} lacks {', '.join(sorted(missing))}")
    said = RunVerdict.parse(text) if (text := fields.get("verdict")) else None
    return Cell(fields["strategy"], figures, fields.get("dataset") or "", repeat, said)


def judge_cell(cell: Cell, limits: Limits | None = None) -> RunVerdict:
    """Judges a published result, of which only means are known.

    An on-time client would have had a known number in flight (`on_time_in_flight`). Far fewer means
    that the client did not ask as often as it says.
    """
    limits = limits or Limits()
    figures = Figures(achieved_rps=cell.throughput, in_flight=cell.in_flight)
    if cell.rate is None:
        return build_verdict((), (), figures)
    expected = on_time_in_flight(cell.rate, cell.cap, cell.requests, cell.throughput)
    figures = replace(figures, offered_rps=cell.rate, on_time_in_flight=expected)
    reasons = []
    # Without latencies the comparison with NaN is false: nothing speaks against the client.
    if cell.in_flight < limits.in_flight * expected:
        text = (
            f"{cell.in_flight:.0f} in flight by Little's law where {cell.rate:.0f} req/s on time would "
            f"have had {expected:.0f}: the client sent about {cell.throughput:.1f} req/s"
        )
        reasons.append(FaultReason(CLIENT_LIMITED, text))
    return build_verdict(reasons, (), figures)


def on_time_in_flight(rate: float, cap: float, count: int, throughput: float) -> float:
    """Returns the mean in flight of a client that asks on time, if the server answers evenly.

    A fluid model: requests in flight grow at `rate - throughput` until the cap or the last request,
    stay there while requests are left, then fall at `throughput`.
    """
    if rate <= throughput:
        return 0.0
    grow_s = min(cap / (rate - throughput), count / rate)
    peak = grow_s * (rate - throughput)
    drain_s = peak / throughput
    hold_s = count / throughput - grow_s - drain_s
    return peak * (grow_s / 2 + hold_s + drain_s / 2) / (grow_s + hold_s + drain_s)


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
    }
    for short, measure in _MEASURES:
        if summary := part.latency_ms.get(measure):
            named = {f"{short}_{point}_ms": getattr(summary, field) for point, field in _POINTS}
            figures |= {name: value for name, value in named.items() if name in {*COLUMNS, *EXTRAS}}
    if said.hit_rate is not None:
        figures["hit_rate"] = said.hit_rate
    return Cell(strategy, figures, dataset, repeat, said.verdict)


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
