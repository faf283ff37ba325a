"""A run by what its traffic did: each step of the load or number of users; before, during and after a spike. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from extproc.bench.measure.metrics import RunMetrics, is_good, measure
from extproc.bench.record import FleetSample, Record, Window
from extproc.bench.spec.traffic import Spike, StepsOptions, TrafficShape, UserStage
from extproc.bench.spec.tree import Slo
from extproc.pages.elasticity import Response, Rise, add_up_over, find_missed_seconds, respond

_MOST_PHASES = 40


@dataclass(frozen=True, slots=True)
class LoadPhase:
    """A part of the run and its figures; `ready`: endpoints ready on average, where somebody looked."""

    name: str
    figures: RunMetrics
    slo_seconds_missed: int | None
    ready: float | None


@dataclass(frozen=True, slots=True)
class Elasticity:
    """What a changing load cost: seconds that missed the limits, endpoints times seconds; each rise."""

    slo_seconds_missed: int | None
    endpoint_seconds: float | None
    responses: tuple[Response, ...]


@dataclass(frozen=True, slots=True)
class LoadStretch:
    """A part of the schedule; `is_rise`: with more load than what was before it."""

    name: str
    start_s: float
    end_s: float
    is_rise: bool = False


def list_stretches(traffic: TrafficShape, end_s: float) -> list[LoadStretch]:
    """The schedule's parts up to `end_s`: spikes and what lies between, else its steps; often none."""
    if traffic.traffic_spike is not None:
        found = _list_spikes(traffic.traffic_spike, end_s)
    elif traffic.shape.name == "steps":
        found = _list_steps(StepsOptions.model_validate(traffic.shape.options), end_s)
    elif traffic.stages:
        found = _list_stages(traffic.stages)
    else:
        return []
    return [
        part
        for part, _ in zip(found, range(_MOST_PHASES), strict=False)
        if part.start_s < part.end_s
    ]


def _list_spikes(spike: Spike, end_s: float) -> Iterator[LoadStretch]:
    every, at_s, number = spike.every or math.inf, spike.after, 1
    yield LoadStretch("before", 0.0, min(at_s, end_s))
    while at_s < end_s:
        name = f" {number}" if spike.every else ""
        calm_s = min(at_s + spike.burst, end_s)
        yield LoadStretch(f"spike{name}", at_s, calm_s, is_rise=True)
        yield LoadStretch(
            f"after{' spike' if name else ''}{name}", calm_s, min(at_s + every, end_s)
        )
        at_s, number = at_s + every, number + 1


def _list_steps(steps: StepsOptions, end_s: float) -> Iterator[LoadStretch]:
    at_s, number = 0.0, 0
    for step in steps.steps:
        if step.req_rate:
            number += 1
            yield LoadStretch(
                f"{number}: {step.req_rate:g} req/s", at_s, min(at_s + step.duration, end_s)
            )
        at_s += step.duration


def _list_stages(stages: Sequence[UserStage]) -> Iterator[LoadStretch]:
    at_s, before = 0.0, 0
    for number, stage in enumerate(stages, 1):
        is_rise, end_s = 0 < before < stage.vus, at_s + stage.duration
        yield LoadStretch(f"{number}: {stage.vus:,} users", at_s, end_s, is_rise=is_rise)
        at_s, before = end_s, stage.vus


def measure_phases(
    records: Sequence[Record],
    stretches: Sequence[LoadStretch],
    slo: Slo,
    samples: Sequence[FleetSample],
) -> tuple[LoadPhase, ...]:
    """The figures of each stretch: of what was due in it, and for throughput of what arrived in it."""
    missed = find_missed(records, slo)
    seen = [
        [sample.ready for sample in samples if part.start_s <= sample.at_s < part.end_s]
        for part in stretches
    ]
    return tuple(
        LoadPhase(
            part.name,
            measure(records, Window(part.start_s, part.end_s), slo),
            None
            if missed is None
            else sum(part.start_s <= second < part.end_s for second in missed),
            float(np.mean(ready)) if ready else None,
        )
        for part, ready in zip(stretches, seen, strict=True)
    )


def find_missed(records: Sequence[Record], slo: Slo) -> list[int] | None:
    """The seconds in which too few of the requests due were good; `None` without limits."""
    if slo == Slo():
        return None
    return find_missed_seconds((record.intended_s, is_good(record, slo)) for record in records)


def measure_elasticity(
    records: Sequence[Record],
    stretches: Sequence[LoadStretch],
    slo: Slo,
    samples: Sequence[FleetSample],
    duration_s: float,
) -> Elasticity | None:
    """`None` where the load did not change and nobody watched the endpoints."""
    if not stretches and not samples:
        return None
    missed = find_missed(records, slo)
    ready = [(sample.at_s, sample.ready) for sample in samples]
    return Elasticity(
        None if missed is None else len(missed),
        add_up_over(ready, 0.0, max(duration_s, ready[-1][0])) if ready else None,
        tuple(respond(rise, ready, missed) for rise in _list_rises(stretches, duration_s)),
    )


def _list_rises(stretches: Sequence[LoadStretch], end_s: float) -> Iterator[Rise]:
    rising = [part for part in stretches if part.is_rise]
    edges = [*(part.start_s for part in rising[1:]), end_s]
    for part, until_s in zip(rising, edges, strict=True) if rising else ():
        yield Rise(part.name, part.start_s, until_s)
