"""The figures of one request, in seconds, and of many: counts, throughput, latency, goodput. Pure.

Latencies exist twice: from the intended start, which includes all waiting that a slow server causes
("coordinated omission"), and from the moment the request was written, as most other tools report.
A figure that a request does not have is `None`, never 0.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from extproc.bench.measure.stats import Floats, Stats
from extproc.bench.record import INTERRUPTED, Record, RunResult, TokenSource, Window
from extproc.bench.spec.tree import Slo

Measure = Callable[[Record], float | None]


def _gap(end_s: float | None, start_s: float | None) -> float | None:
    return None if end_s is None or start_s is None else end_s - start_s


def ttft(record: Record) -> float | None:
    """Time to the first chunk with content, from the intended start."""
    return _gap(record.first_token_s, record.intended_s)


def ttft_sent(record: Record) -> float | None:
    return _gap(record.first_token_s, record.sent_s)


def e2e(record: Record) -> float | None:
    """Time to the last byte, from the intended start."""
    return _gap(record.end_s, record.intended_s)


def e2e_sent(record: Record) -> float | None:
    return _gap(record.end_s, record.sent_s)


def tpot(record: Record) -> float | None:
    """Time per output token after the first: (last chunk - first chunk) / (output tokens - 1).

    Undefined where tokens cannot be counted apart in time: fewer than two tokens, or all in one
    chunk.
    """
    if record.output_tokens < 2 or len(record.chunk_s) < 2:
        return None
    return (record.chunk_s[-1] - record.chunk_s[0]) / (record.output_tokens - 1)


def ntpot(record: Record) -> float | None:
    """Normalised time per output token: end to end from the intended start / output tokens."""
    whole_s = e2e(record)
    return None if whole_s is None or record.output_tokens < 1 else whole_s / record.output_tokens


def time_per_token(record: Record) -> float | None:
    """KubeAI's k6 script's figure: the request's duration from its sending / completion tokens."""
    whole_s = e2e_sent(record)
    return None if whole_s is None or record.output_tokens < 1 else whole_s / record.output_tokens


def lag(record: Record) -> float | None:
    """How late the client itself was; the wait at the concurrency cap is not its fault."""
    return record.lag_s


def held(record: Record) -> float | None:
    """The wait at the concurrency cap."""
    return _gap(record.admitted_s, record.intended_s)


MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        each.__name__: each
        for each in (ttft, ttft_sent, e2e, e2e_sent, tpot, ntpot, time_per_token, lag, held)
    }
)


_MS = 1000.0


@dataclass(frozen=True, slots=True)
class Counts:
    """How many requests, and what became of them. `unfinished` ones were cut off by the run's end."""

    offered: int
    sent: int
    completed: int
    unfinished: int
    failures: dict[str, int]

    @property
    def failed(self) -> int:
        return sum(self.failures.values())

    @property
    def failed_share(self) -> float:
        return self.failed / self.offered if self.offered else 0.0


@dataclass(frozen=True, slots=True)
class Throughput:
    """Per second of the span, completed requests only. `in_flight` is the mean number of sent requests.

    `begun_rps`: answers whose first chunk arrived; reports of older versions lack it.
    """

    started_rps: float
    requests_rps: float
    input_tps: float
    output_tps: float
    in_flight: float
    begun_rps: float | None = None

    @property
    def served_rps(self) -> float:
        """What the server kept up with: answers are long, and those in flight at the end are served, too."""
        return self.requests_rps if self.begun_rps is None else self.begun_rps

    @property
    def total_tps(self) -> float:
        return self.input_tps + self.output_tps


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that meet every limit; failures count against `share`, whose base is all offered ones."""

    good: int
    share: float
    good_rps: float


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token totals of completed requests, who counted them, and the hit rate that usage reports.

    `estimate_error` is (estimated - server's) / server's over input and output, where the server
    counted.
    """

    input: int
    output: int
    sources: dict[str, int]
    estimate_error: float | None
    hit_rate: float | None


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """All figures of the requests whose intended start lies in `window`; latencies in milliseconds.

    `latency_ms` has a summary per name of `MEASURES`, and `itl`, over completed requests; a name
    that no request has is absent. Throughput counts what arrived within the window, whenever it was
    sent.
    """

    window: Window
    counts: Counts
    throughput: Throughput
    tokens: Tokens
    goodput: Goodput | None
    latency_ms: dict[str, Stats]

    def latency(self, name: str, point: str) -> float | None:
        """A value of a latency's summary in milliseconds; `None` where no request has the latency."""
        summary = self.latency_ms.get(name)
        value = None if summary is None else getattr(summary, point)
        return None if value is None else float(value)

    @property
    def good_share(self) -> float | None:
        return None if self.goodput is None else self.goodput.share


def sample(records: Iterable[Record], measure: Measure) -> Floats:
    """One value per completed request that has the figure."""
    values = (measure(record) for record in records if record.is_ok)
    return np.fromiter((value for value in values if value is not None), dtype=np.float64)


def chunk_gaps(records: Iterable[Record]) -> Floats:
    """Inter-token latency as it can be seen: the gaps between chunks, which may carry several tokens."""
    gaps = [
        np.diff(record.chunk_s) for record in records if record.is_ok and len(record.chunk_s) > 1
    ]
    return np.concatenate(gaps) if gaps else np.empty(0)


def latencies(records: Sequence[Record]) -> dict[str, Stats]:
    samples = {name: sample(records, measure) for name, measure in MEASURES.items()}
    samples["itl"] = chunk_gaps(records)
    summaries = {name: Stats.of(values, scale=_MS) for name, values in samples.items()}
    return {name: summary for name, summary in summaries.items() if summary}


def counts(records: Sequence[Record]) -> Counts:
    failures = Counter(
        record.failure for record in records if record.failure not in {None, INTERRUPTED}
    )
    completed = sum(record.is_ok for record in records)
    return Counts(
        offered=len(records),
        sent=sum(record.sent_s is not None for record in records),
        completed=completed,
        unfinished=len(records) - completed - failures.total(),
        failures={str(cause): count for cause, count in sorted(failures.items())},
    )


def tokens(records: Sequence[Record]) -> Tokens:
    done = [record for record in records if record.is_ok]
    return Tokens(
        input=sum(record.input_tokens for record in done),
        output=sum(record.output_tokens for record in done),
        sources=dict(sorted(Counter(str(record.token_source) for record in done).items())),
        estimate_error=_estimate_error(done),
        hit_rate=hit_rate(done),
    )


def _estimate_error(done: Iterable[Record]) -> float | None:
    served = [record for record in done if record.token_source is TokenSource.SERVER]
    truth = sum(record.input_tokens + record.output_tokens for record in served)
    guess = sum(record.estimated_input_tokens + record.estimated_output_tokens for record in served)
    return (guess - truth) / truth if truth else None


def hit_rate(records: Iterable[Record]) -> float | None:
    """Cached prompt tokens per prompt token, of the requests whose usage has both."""
    counted = [record for record in records if record.is_ok and record.cached_tokens is not None]
    prompt_tokens = sum(record.input_tokens for record in counted)
    return (
        sum(record.cached_tokens or 0 for record in counted) / prompt_tokens
        if prompt_tokens
        else None
    )


# What belongs to the measured window, and what happens at its two edges.
#
# A request belongs to the window in which it was *due*: `Window.holds`, start included, end not.
# Counts, latencies and goodput follow that rule, so that a request which the server answers too
# late stays where it was asked for, and each is in one window only. A request that was never sent
# belongs to one, too, and failures stay in every denominator.
#
# Throughput cannot follow it: the answers to requests of the window come after its end, and their
# share grows as the server slows down. It counts what *arrived* within the window, whenever it was
# asked for: the last byte of a request, the first chunk for its input tokens, and chunk by chunk
# its output tokens. Whether a server keeps up is read from answers that *began* (`begun_rps`): with
# a warm-up shorter than an answer none ends at first, and a server that is idle would seem to be
# too slow. Here both edges belong to the window, because the last byte of a whole run
# comes exactly at its end. Two windows that meet then count an arrival at the very edge twice; no
# figure adds windows up, and tests cut where nothing happens.
#
# Totals over a time that includes the last straggler, as other tools give them, depend on that one
# answer; the whole run is reported so, too, but beside the window. Ramp and drain are left out by
# `warm-up` and `cool-down`, which the spec says before there are figures. Where a cap turns the
# schedule into a queue there is no steady part, and the whole run is measured.
def throughput(records: Iterable[Record], window: Window) -> Throughput:
    """What arrived within the window, per second of it.

    Output tokens are spread evenly over their request's chunks; input tokens count with the first
    one.
    """
    started = requests = begun = input_tokens = 0
    output_tokens = busy_s = 0.0
    for record in records:
        started += record.sent_s is not None and _is_within(record.sent_s, window)
        busy_s += _overlap(record, window)
        if is_failure(record) or record.end_s is None:
            continue
        arrivals = record.chunk_s or [record.end_s]
        begun += (record.is_ok or bool(record.chunk_s)) and _is_within(arrivals[0], window)
        if not record.is_ok:
            continue
        requests += _is_within(record.end_s, window)
        input_tokens += record.input_tokens * _is_within(arrivals[0], window)
        inside = bisect_right(arrivals, window.end_s) - bisect_left(arrivals, window.start_s)
        output_tokens += record.output_tokens * inside / len(arrivals)
    span_s = window.end_s - window.start_s
    per_second = (
        value / span_s for value in (started, requests, input_tokens, output_tokens, busy_s, begun)
    )
    return Throughput(*per_second) if span_s > 0 else Throughput(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def is_failure(record: Record) -> bool:
    """Whether a request failed; one that the run's own end broke off did not."""
    return record.failure is not None and record.failure != INTERRUPTED


def _is_within(at_s: float, window: Window) -> bool:
    # Both ends belong to the window: the last byte of a run arrives exactly at its end.
    return window.start_s <= at_s <= window.end_s


def _overlap(record: Record, window: Window) -> float:
    if record.sent_s is None:
        return 0.0
    end_s = window.end_s if record.end_s is None else record.end_s
    return max(0.0, min(end_s, window.end_s) - max(record.sent_s, window.start_s))


def is_good(record: Record, slo: Slo) -> bool:
    """Whether a request ended well within every limit, latencies from its intended start.

    A figure that the request does not have (one token has no TPOT) breaks no limit.
    """
    gap_s = float(np.diff(record.chunk_s).mean()) if len(record.chunk_s) > 1 else None
    figures_s = (ttft(record), tpot(record), gap_s, e2e(record))
    pairs = zip(figures_s, (slo.ttft_ms, slo.tpot_ms, slo.itl_ms, slo.e2e_ms), strict=True)
    return record.is_ok and all(
        value_s is None or limit_ms is None or value_s * _MS <= limit_ms
        for value_s, limit_ms in pairs
    )


def goodput(records: Sequence[Record], slo: Slo, span_s: float) -> Goodput | None:
    """Counts good requests; `None` when no limit is set."""
    if slo == Slo() or not records:
        return None
    good = sum(is_good(record, slo) for record in records)
    return Goodput(good, good / len(records), good / span_s if span_s > 0 else 0.0)


def measure(records: Sequence[Record], window: Window, slo: Slo) -> RunMetrics:
    """All figures of one window. `records` are those of the whole run."""
    inside = [record for record in records if window.holds(record)]
    return RunMetrics(
        window=window,
        counts=counts(inside),
        throughput=throughput(records, window),
        tokens=tokens(inside),
        goodput=goodput(inside, slo, window.end_s - window.start_s),
        latency_ms=latencies(inside),
    )


def whole_run(result: RunResult) -> Window:
    """From 0 to the end of the run, so that every request lies within it."""
    last_s = max((record.intended_s for record in result.records), default=0.0)
    return Window(0.0, max(result.info.duration_s, math.nextafter(last_s, math.inf)))
