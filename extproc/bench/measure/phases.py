"""A run by what its traffic did: before, during and after a spike, or stage by stage. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from extproc.bench.measure.metrics import Metrics, is_good, measure
from extproc.bench.record import FleetSample, Record, Window
from extproc.bench.spec.traffic import Spike, TrafficShape
from extproc.bench.spec.tree import Slo

# A second is missed if fewer of the requests due in it were good.
GOOD_SHARE = 0.95
_MOST_PHASES = 40


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run and its figures; `ready`: endpoints ready on average, where somebody looked."""

    name: str
    figures: Metrics
    slo_seconds_missed: int | None
    ready: float | None


@dataclass(frozen=True, slots=True)
class Response:
    """How the fleet took a rise of its load, in seconds from the rise.

    `reaction_s`: until more endpoints were ready than before; `None` if there never were, or nobody looked.
    `recovery_s`: until the end of the last second that missed its limits, 0 if none did; `None` if they
    were still missed when the load changed again, or without limits.
    """

    name: str
    reaction_s: float | None
    recovery_s: float | None


@dataclass(frozen=True, slots=True)
class Elasticity:
    """What a changing load cost: seconds that missed the limits, endpoints times seconds; each rise."""

    slo_seconds_missed: int | None
    endpoint_seconds: float | None
    responses: tuple[Response, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the schedule; `is_rise`: with more load than what was before it."""

    name: str
    start_s: float
    end_s: float
    is_rise: bool = False


def list_stretches(traffic: TrafficShape, end_s: float) -> list[Stretch]:
    """The schedule's parts up to `end_s`: spikes and what lies between, or users' stages; else none."""
    if traffic.traffic_spike is not None:
        found = _list_spikes(traffic.traffic_spike, end_s)
    elif traffic.stages:
        found = _list_stages(traffic)
    else:
        found = iter(())
    return [part for part, _ in zip(found, range(_MOST_PHASES), strict=False) if part.start_s < part.end_s]


def _list_spikes(spike: Spike, end_s: float) -> Iterator[Stretch]:
    every, at_s, number = spike.every or math.inf, spike.after, 1
    yield Stretch("before", 0.0, min(at_s, end_s))
    while at_s < end_s:
        name = f" {number}" if spike.every else ""
        calm_s = min(at_s + spike.burst, end_s)
        yield Stretch(f"spike{name}", at_s, calm_s, is_rise=True)
        yield Stretch(f"after{' spike' if name else ''}{name}", calm_s, min(at_s + every, end_s))
        at_s, number = at_s + every, number + 1


def _list_stages(traffic: TrafficShape) -> Iterator[Stretch]:
    edges = [0.0, *accumulate(stage.duration for stage in traffic.stages)]
    users = [traffic.vus or 0, *(stage.vus for stage in traffic.stages)]
    for (start_s, end_s), (low, high) in zip(pairwise(edges), pairwise(users), strict=True):
        way = f"{low} users" if low == high else f"{low} to {high} users"
        yield Stretch(way, start_s, end_s, is_rise=high > low)


def measure_phases(
    records: Sequence[Record], stretches: Sequence[Stretch], slo: Slo, samples: Sequence[FleetSample]
) -> tuple[Phase, ...]:
    """The figures of each stretch: of what was due in it, and for throughput of what arrived in it."""
    missed = find_missed(records, slo)
    return tuple(
        Phase(
            part.name,
            measure(records, Window(part.start_s, part.end_s), slo),
            None if missed is None else sum(part.start_s <= second < part.end_s for second in missed),
            _mean_ready(samples, part),
        )
        for part in stretches
    )


def _mean_ready(samples: Sequence[FleetSample], part: Stretch) -> float | None:
    ready = [sample.ready for sample in samples if part.start_s <= sample.at_s < part.end_s]
    return float(np.mean(ready)) if ready else None


def find_missed(records: Sequence[Record], slo: Slo) -> list[int] | None:
    """The seconds in which too few of the requests due were good; `None` without limits."""
    if slo == Slo():
        return None
    goods: dict[int, list[bool]] = {}
    for record in records:
        goods.setdefault(math.floor(record.intended_s), []).append(is_good(record, slo))
    return sorted(second for second, good in goods.items() if sum(good) < GOOD_SHARE * len(good))


def measure_elasticity(
    records: Sequence[Record],
    stretches: Sequence[Stretch],
    slo: Slo,
    samples: Sequence[FleetSample],
    duration_s: float,
) -> Elasticity | None:
    """`None` where the load did not change and nobody watched the endpoints."""
    if not stretches and not samples:
        return None
    missed = find_missed(records, slo)
    rises = [(place, part) for place, part in enumerate(stretches) if part.is_rise]
    return Elasticity(
        None if missed is None else len(missed),
        _sum_ready(samples, duration_s),
        tuple(
            _respond(part, _next_rise(stretches, place, duration_s), missed, samples) for place, part in rises
        ),
    )


def _next_rise(stretches: Sequence[Stretch], place: int, end_s: float) -> float:
    """Until when a rise can be recovered from."""
    return next((part.start_s for part in stretches[place + 1 :] if part.is_rise), end_s)


def _sum_ready(samples: Sequence[FleetSample], end_s: float) -> float | None:
    """Endpoints ready times seconds; a sample holds until the next one, the first one from the start."""
    if not samples:
        return None
    edges = [0.0, *(sample.at_s for sample in samples[1:]), max(end_s, samples[-1].at_s)]
    return sum(
        sample.ready * max(0.0, until_s - from_s)
        for sample, (from_s, until_s) in zip(samples, pairwise(edges), strict=True)
    )


def _respond(
    part: Stretch, until_s: float, missed: Sequence[int] | None, samples: Sequence[FleetSample]
) -> Response:
    before = [sample.ready for sample in samples if sample.at_s <= part.start_s]
    more = [
        sample.at_s - part.start_s
        for sample in samples
        if before and part.start_s < sample.at_s < until_s and sample.ready > before[-1]
    ]
    return Response(part.name, more[0] if more else None, _recover(part, until_s, missed))


def _recover(part: Stretch, until_s: float, missed: Sequence[int] | None) -> float | None:
    if missed is None:
        return None
    own = [second for second in missed if math.floor(part.start_s) <= second < until_s]
    if not own:
        return 0.0
    # The last second with a request in it is the last that can be good again.
    return None if own[-1] + 1 >= until_s else own[-1] + 1 - part.start_s
