"""What a run amounts to: throughput, latencies, hit rates, skew."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, nan
from statistics import fmean, pstdev

from extproc.vllm.fleet.fleet import Run
from extproc.vllm.fleet.flight import Flight
from extproc.vllm.fleet.node import Node
from extproc.vllm.fleet.oracle import ideal_hit_rate


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds; percentiles are exact, interpolated linearly. NaN where there was nothing to measure."""

    mean_ms: float
    median_ms: float
    p99_ms: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Latency":
        return cls.of_counted((value, 1) for value in seconds)

    @classmethod
    def of_counted(cls, counted: Iterable[tuple[float, int]]) -> "Latency":
        """Takes (seconds, how often) pairs."""
        pairs = sorted(counted)
        ends = list(accumulate(count for _, count in pairs))
        if not pairs:
            return cls(nan, nan, nan)
        mean = sum(value * count for value, count in pairs) / ends[-1]
        values = [value for value, _ in pairs]
        return cls(1000 * mean, 1000 * _quantile(values, ends, 0.5), 1000 * _quantile(values, ends, 0.99))


def _quantile(values: Sequence[float], ends: Sequence[int], share: float) -> float:
    """Returns the quantile of sorted values, the i-th of which fills the places up to `ends[i]`."""
    place = share * (ends[-1] - 1)
    low = int(place)
    below, above = (_at(values, ends, index) for index in (low, min(low + 1, ends[-1] - 1)))
    return below + (above - below) * (place - low)


def _at(values: Sequence[float], ends: Sequence[int], place: int) -> float:
    return values[bisect_right(ends, place)]


@dataclass(frozen=True, slots=True)
class Skew:
    """How unevenly the endpoints were loaded: 1 and 0 if not at all."""

    max_over_mean: float
    cv: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Skew":
        mean = fmean(values)
        return cls(max(values) / mean, pstdev(values) / mean) if mean else cls(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class Steady:
    """The window from the end of the warm-up until the last session started; all zero if there is none.

    `served_rps` counts answers that ended in it, `offered_rps` requests that were due in it: strategies
    are comparable where they were offered the same.
    """

    start_s: float
    end_s: float
    offered_rps: float
    served_rps: float
    total_tok_per_s: float
    hit_rate: float

    @classmethod
    def of(cls, flights: Sequence[Flight], warmup_s: float) -> "Steady":
        end_s = max((flight.due_at for flight in flights if not flight.turn), default=0.0)
        span_s = end_s - warmup_s if end_s > warmup_s else inf
        due = [flight for flight in flights if warmup_s <= flight.due_at <= end_s]
        served = [flight for flight in _completed(flights) if warmup_s <= flight.ended_at <= end_s]
        return cls(
            start_s=warmup_s,
            end_s=end_s,
            offered_rps=len(due) / span_s,
            served_rps=len(served) / span_s,
            total_tok_per_s=sum(flight.tokens for flight in served) / span_s,
            hit_rate=_hit_rate(_completed(due)),
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """One run. Latencies count from the sending of a request, `ttft_due` from when it was due.

    `ideal_hit_rate` is that of one unlimited cache shared by all endpoints, `shared_hit_rate` that of one
    shared cache as large as all of theirs together, both under this run's timing; NaN if not asked for.
    `itl` is over all gaps, `tpot` over requests of more than one token. Failed requests count in
    `requests` only.
    """

    strategy: str
    endpoints: int
    requests: int
    failed: int
    duration_s: float
    input_tokens: int
    output_tokens: int
    req_per_s: float
    output_tok_per_s: float
    total_tok_per_s: float
    ttft: Latency
    ttft_due: Latency
    tpot: Latency
    itl: Latency
    hit_rate: float
    ideal_hit_rate: float
    shared_hit_rate: float
    requests_skew: Skew
    uncached_skew: Skew
    preemptions: int
    reasons: Mapping[str, int]
    steady: Steady


def summarize(run: Run, warmup_s: float = 0.0, *, with_ideals: bool = True) -> Summary:
    """Measures a run; the two ideals replay it, which costs more than the run itself."""
    size, blocks = run.setup.profile.block_size, run.setup.profile.blocks * len(run.nodes)
    done = _completed(run.flights)
    duration_s = max((flight.ended_at for flight in done), default=0.0) or 1e-9
    inputs = sum(flight.asked.prompt_tokens for flight in done)
    outputs = sum(flight.asked.output_tokens for flight in done)
    return Summary(
        strategy=run.setup.routing.strategy,
        endpoints=len(run.nodes),
        requests=len(run.flights),
        failed=len(run.flights) - len(done),
        duration_s=duration_s,
        input_tokens=inputs,
        output_tokens=outputs,
        req_per_s=len(done) / duration_s,
        output_tok_per_s=outputs / duration_s,
        total_tok_per_s=(inputs + outputs) / duration_s,
        ttft=Latency.of(flight.ttft_s for flight in done),
        ttft_due=Latency.of(flight.due_ttft_s for flight in done),
        tpot=Latency.of(flight.tpot_s for flight in done if flight.asked.output_tokens > 1),
        itl=Latency.of_counted(_gaps(run.nodes)),
        hit_rate=_hit_rate(done),
        ideal_hit_rate=ideal_hit_rate(done, size, None) if with_ideals else nan,
        shared_hit_rate=ideal_hit_rate(done, size, blocks) if with_ideals else nan,
        requests_skew=Skew.of([node.requests for node in run.nodes]),
        uncached_skew=Skew.of([node.uncached_tokens for node in run.nodes]),
        preemptions=sum(node.preemptions for node in run.nodes),
        reasons=dict(sorted(Counter(flight.reason for flight in run.flights if flight.reason).items())),
        steady=Steady.of(run.flights, warmup_s),
    )


def _completed(flights: Iterable[Flight]) -> list[Flight]:
    return [flight for flight in flights if not flight.is_failed]


def _gaps(nodes: Sequence[Node]) -> Iterable[tuple[float, int]]:
    return (pair for node in nodes for pair in zip(node.gaps_s, node.gap_counts, strict=True))


def _hit_rate(flights: Sequence[Flight]) -> float:
    asked = sum(flight.asked.prompt_tokens for flight in flights)
    return sum(flight.cached_tokens for flight in flights) / asked if asked else 0.0
