"""What a run amounts to: throughput, latencies, hit rate, the cost of a spike."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, nan, sqrt
from typing import Final

from extproc.pages.elasticity import Response, Rise, add_up_over, find_missed_seconds, respond
from extproc.simulator.fleet.fleet import FleetRun
from extproc.simulator.fleet.flight import Flight

TOLERANCE: Final = 0.03


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds; percentiles are exact, interpolated linearly. NaN where there was nothing to measure."""

    mean_ms: float
    median_ms: float
    p90_ms: float
    p95_ms: float
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
            return cls(nan, nan, nan, nan, nan)
        mean = sum(value * count for value, count in pairs) / ends[-1]
        values = [value for value, _ in pairs]
        points = (1000 * _quantile(values, ends, share) for share in (0.5, 0.9, 0.95, 0.99))
        return cls(1000 * mean, *points)


def _quantile(values: Sequence[float], ends: Sequence[int], share: float) -> float:
    """Returns the quantile of sorted values, the i-th of which fills the places up to `ends[i]`."""
    place = share * (ends[-1] - 1)
    low = int(place)
    places = (low, min(low + 1, ends[-1] - 1))
    below, above = (values[bisect_right(ends, index)] for index in places)
    return below + (above - below) * (place - low)


@dataclass(frozen=True, slots=True)
class Elastic:
    """How the fleet took a changing load, or changed itself; by the benchmark's own rules.

    `ready_seconds` counts endpoints that were ready, `held_seconds` also those that started or
    drained: what is paid for. `reaction_s` and `recovery_s` are of the spike, as `pages.elasticity`
    defines them.
    """

    slo_seconds_missed: int
    reaction_s: float | None
    recovery_s: float | None
    least: int
    most: int
    ready_seconds: float
    held_seconds: float


@dataclass(frozen=True, slots=True)
class Summary:
    """What was due between `start_s` and `end_s`: after the warm-up, while sessions still started.

    Latencies count from the sending of a request, `ttft_due` from when it was due. `served_rps` and
    the tokens per second count what ended in the window, `offered_rps` what was due in it,
    `asked_rps` what the schedule has; NaN without a rate. `itl` is over all gaps, `tpot` over
    requests of more than one token. Failed requests count in `requests` and `failed` only.
    `elastic` is there where the load had a spike or the fleet an autoscaler.
    """

    strategy: str
    seed: int
    endpoints: int
    gateways: int
    start_s: float
    end_s: float
    requests: int
    failed: int
    asked_rps: float
    offered_rps: float
    served_rps: float
    output_tok_per_s: float
    total_tok_per_s: float
    ttft: Latency
    ttft_due: Latency
    tpot: Latency
    itl: Latency
    e2e: Latency
    hit_rate: float
    preemptions: int
    reasons: Mapping[str, int]
    elastic: Elastic | None = None

    @property
    def warnings(self) -> list[str]:
        """Why these latencies may not be those of the scheduled load."""
        found = []
        if not self.requests:
            return ["nothing was due in the window: it has no load to measure"]
        # Two standard deviations of a count are chance, of however few requests.
        tolerated = max(TOLERANCE, 2 / sqrt(self.requests))
        if self.offered_rps < (1 - tolerated) * self.asked_rps:
            found.append(
                f"asked for {self.asked_rps:.2f} requests/s, offered {self.offered_rps:.2f}"
            )
        if abs(self.served_rps - self.offered_rps) > tolerated * self.offered_rps:
            found.append(f"offered {self.offered_rps:.2f} requests/s, served {self.served_rps:.2f}")
        if self.failed:
            found.append(f"{self.failed} of {self.requests} requests failed")
        return found


def summarize(run: FleetRun, label: str = "", *, is_whole: bool = False) -> Summary:
    """Measures a run. `is_whole` takes everything in, from the first request to the last answer."""
    setup = run.setup
    start_s, end_s = (0.0, _last_answer(run.flights)) if is_whole else _window(run)
    due = [flight for flight in run.flights if start_s <= flight.due_at <= end_s]
    done = [flight for flight in due if flight.is_answered]
    served = [f for f in run.flights if f.is_answered and start_s <= f.ended_at <= end_s]
    span_s = max(end_s - start_s, 1e-9) if due else inf
    outputs = sum(flight.plan.output_tokens for flight in served)
    return Summary(
        strategy=label or setup.routing.strategy,
        seed=setup.seed,
        endpoints=setup.endpoints,
        gateways=setup.routing.gateways,
        start_s=start_s,
        end_s=end_s,
        requests=len(due),
        failed=sum(flight.is_failed for flight in due),
        asked_rps=nan if is_whole else setup.traffic.asked_rps(start_s, end_s),
        offered_rps=len(due) / span_s,
        served_rps=len(served) / span_s,
        output_tok_per_s=outputs / span_s,
        total_tok_per_s=(outputs + sum(flight.plan.prompt_tokens for flight in served)) / span_s,
        ttft=Latency.of(flight.ttft_s for flight in done),
        ttft_due=Latency.of(flight.due_ttft_s for flight in done),
        tpot=Latency.of(flight.tpot_s for flight in done if flight.plan.output_tokens > 1),
        itl=Latency.of_counted(zip(run.gaps.seconds, run.gaps.counts, strict=True)),
        e2e=Latency.of(flight.e2e_s for flight in done),
        hit_rate=_hit_rate(done),
        preemptions=sum(node.preemptions for node in run.nodes),
        reasons=dict(sorted(Counter(flight.reason for flight in due if flight.reason).items())),
        elastic=_elastic(run, due, start_s, end_s)
        if setup.scaling or setup.traffic.spike
        else None,
    )


def _elastic(run: FleetRun, due: Sequence[Flight], start_s: float, end_s: float) -> Elastic:
    judged = ((f.due_at, f.is_answered and f.due_ttft_s <= run.setup.slo_ttft_s) for f in due)
    missed = find_missed_seconds(judged)
    ready = [(count.at_s, count.ready) for count in run.headcounts]
    headcounts = [(count.at_s, count.held) for count in run.headcounts]
    seen = [count for at_s, count in ready if start_s <= at_s <= end_s] or [run.setup.endpoints]
    spike, response = run.setup.traffic.spike, Response("", None, None)
    if spike:
        response = respond(Rise("spike", spike.after_s, end_s), ready, missed)
    return Elastic(
        slo_seconds_missed=len(missed),
        reaction_s=response.reaction_s,
        recovery_s=response.recovery_s,
        least=min(seen),
        most=max(seen),
        ready_seconds=add_up_over(ready, start_s, end_s),
        held_seconds=add_up_over(headcounts, start_s, end_s),
    )


def _window(run: FleetRun) -> tuple[float, float]:
    """From the end of the warm-up until nothing more was measured, or the last session started."""
    end_s = run.setup.traffic.until_s
    if end_s == inf:
        end_s = max((flight.due_at for flight in run.flights if not flight.turn), default=0.0)
    return run.setup.warmup_s, end_s


def _last_answer(flights: Iterable[Flight]) -> float:
    return max((flight.ended_at for flight in flights), default=0.0)


def _hit_rate(flights: Sequence[Flight]) -> float:
    tokens = sum(flight.plan.prompt_tokens for flight in flights)
    return sum(flight.cached_tokens for flight in flights) / tokens if tokens else 0.0
