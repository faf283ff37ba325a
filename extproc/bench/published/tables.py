"""Published results as a table: read, judged from its means alone, and shown."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from extproc.bench.judge.verdict import CLIENT_LIMITED, Figures, Reason, Verdict, build_verdict
from extproc.bench.measure.words import fixed
from extproc.bench.report.markdown import markdown_table
from extproc.bench.spec.tree import Limits
from extproc.errors import ExtprocError

COLUMNS = (
    "max_concurrency",
    "request_rate",
    "strategy",
    "requests",
    "duration_s",
    "input_tokens",
    "output_tokens",
    "req_per_s",
    "output_tok_per_s",
    "total_tok_per_s",
    *(f"{measure}_{point}_ms" for measure in ("ttft", "tpot", "itl") for point in ("mean", "median", "p99")),
)
_HEADER = (
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


class PublishedError(ExtprocError):
    """A table lacks a column or holds something that is no number."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One published result: the strategy, and what was asked and came out, by column of `COLUMNS`."""

    strategy: str
    figures: Mapping[str, float]

    @property
    def rate(self) -> float:
        return self.figures["request_rate"]

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
        """The mean in flight by Little's law, a request lasting TTFT and a gap per further token."""
        tokens = self.figures["output_tokens"] / self.requests
        latency_ms = self.figures["ttft_mean_ms"] + self.figures["itl_mean_ms"] * (tokens - 1)
        return self.throughput * latency_ms / 1000


def read_published(lines: Iterable[str]) -> list[Cell]:
    """Reads CSV with the header `COLUMNS`, in any order; raises `PublishedError`."""
    reader = csv.DictReader(lines)
    missing = set(COLUMNS) - set(reader.fieldnames or ())
    if missing:
        raise PublishedError(f"the table lacks columns: {', '.join(sorted(missing))}")
    return [_read_cell(fields) for fields in reader]


def _read_cell(fields: Mapping[str, str]) -> Cell:
    try:
        figures = {name: float(fields[name]) for name in COLUMNS if name != "strategy"}
    except (TypeError, ValueError) as error:
        raise PublishedError(
            f"the row {list(fields.values())} holds something that is no number: {error}"
        ) from None
    return Cell(fields["strategy"], figures)


def judge_cell(cell: Cell, limits: Limits | None = None) -> Verdict:
    """Judges a published result, of which only means are known.

    An on-time client would have had a known number in flight (`on_time_in_flight`). Far fewer means
    that the client did not ask as often as it says.
    """
    limits = limits or Limits()
    figures = Figures(
        offered_rps=cell.rate,
        achieved_rps=cell.throughput,
        in_flight=cell.in_flight,
        on_time_in_flight=on_time_in_flight(cell.rate, cell.cap, cell.requests, cell.throughput),
    )
    return build_verdict(_find_idle_client(figures, limits), (), figures)


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


def _find_idle_client(figures: Figures, limits: Limits) -> Iterator[Reason]:
    expected, had = figures.on_time_in_flight or 0.0, figures.in_flight or 0.0
    if had < limits.in_flight * expected:
        yield Reason(
            CLIENT_LIMITED,
            f"{had:.0f} in flight by Little's law where {figures.offered_rps:.0f} req/s on time would "
            f"have had {expected:.0f}: the client sent about {figures.achieved_rps:.1f} req/s",
        )


def published_markdown(cells: Sequence[Cell]) -> str:
    """The published cells, what was in flight against what an on-time client would have had, the verdict."""
    return markdown_table(_HEADER, [_list_judged(cell) for cell in cells])


def _list_judged(cell: Cell) -> Sequence[str]:
    verdict = judge_cell(cell)
    figures = verdict.figures
    return (
        cell.strategy,
        fixed(cell.rate, 0),
        str(cell.cap),
        fixed(cell.figures["req_per_s"]),
        fixed(cell.figures["total_tok_per_s"], 0),
        f"{fixed(cell.figures['ttft_mean_ms'], 0)} ms",
        fixed(figures.in_flight, 0),
        fixed(figures.on_time_in_flight, 0),
        str(verdict),
    )
