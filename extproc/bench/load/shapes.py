"""Traffic shapes, how the request rate changes over time, and the schedules they make of open loops.

A shape is its cumulative number of requests up to a time; the schedule inverts that. Random
arrivals follow by time rescaling: unit arrivals mapped through the inverse are a process with the
shape's rate.
"""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field

from extproc.bench.spec.section import Rate, Seconds, SpecSection
from extproc.bench.spec.traffic import Spike, StepsOptions, TrafficShape

Times = npt.NDArray[np.float64]


class Shape(Protocol):
    """A request rate over time, known by its integral."""

    def count_until(self, at_s: Times) -> Times:
        """Returns the requests due in `[0, t)` for each time: never falling."""
        ...

    def knots(self, end_s: float) -> Times:
        """Returns the times up to `end_s` between which a straight line is a good integral."""
        ...


class PiecewiseRate:
    """A rate that is linear between points; two points at one time are a jump."""

    def __init__(self, times: list[float], rates: list[float]) -> None:
        self._times = np.array([*times, np.inf])
        self._rates = np.array([*rates, rates[-1]])
        widths = np.diff(self._times[:-1])
        self._counts = np.concatenate(
            ([0.0], np.cumsum(widths * (self._rates[:-2] + self._rates[1:-1]) / 2))
        )

    def count_until(self, at_s: Times) -> Times:
        i = np.clip(np.searchsorted(self._times, at_s, side="right") - 1, 0, len(self._counts) - 1)
        into = at_s - self._times[i]
        widths = self._times[i + 1] - self._times[i]
        slope = np.where(np.isfinite(widths), (self._rates[i + 1] - self._rates[i]) / widths, 0.0)
        counts: Times = self._counts[i] + into * (self._rates[i] + slope * into / 2)
        return counts

    def knots(self, end_s: float) -> Times:
        fine = np.linspace(0.0, end_s, 20_001)
        own = self._times[self._times < end_s]
        return np.unique(np.concatenate((fine, own)))


class RampOptions(SpecSection):
    """`ramp`: from `req-rate` to `to` over `over` seconds, then steady."""

    to: Rate = Field(gt=0)
    over: Seconds = Field(gt=0)


ShapeFactory = Callable[[dict[str, object], float], Shape]


def build_constant(options: dict[str, object], rate: float) -> Shape:
    SpecSection.model_validate(options)
    return PiecewiseRate([0.0], [rate])


def build_ramp(options: dict[str, object], rate: float) -> Shape:
    ramp = RampOptions.model_validate(options)
    return PiecewiseRate([0.0, ramp.over], [rate, ramp.to])


def build_steps(options: dict[str, object], rate: float) -> Shape:
    """`req-rate` is not read: every step has its own."""
    del rate
    times, rates, at_s = [], [], 0.0
    for step in StepsOptions.model_validate(options).steps:
        times += [at_s, at_s + step.duration]
        rates += [step.req_rate, step.req_rate]
        at_s += step.duration
    return PiecewiseRate(times, rates)


class SpikedRate:
    """Another shape with bursts added on top of it."""

    def __init__(self, base: Shape, spike: Spike, extra: float) -> None:
        self._base, self._spike, self._extra = base, spike, extra

    def count_until(self, at_s: Times) -> Times:
        since = np.maximum(at_s - self._spike.after, 0.0)
        burst, every = self._spike.burst, self._spike.every
        if every is None:
            burst_s = np.minimum(since, burst)
        else:
            burst_s = since // every * burst + np.minimum(since % every, burst)
        return self._base.count_until(at_s) + self._extra * burst_s

    def knots(self, end_s: float) -> Times:
        first, burst = self._spike.after, self._spike.burst
        starts = (
            np.array([first])
            if self._spike.every is None
            else np.arange(first, end_s, self._spike.every)
        )
        edges = np.concatenate((starts, starts + burst))
        return np.unique(np.concatenate((self._base.knots(end_s), edges[edges < end_s])))


def add_spike(base: Shape, traffic: TrafficShape) -> Shape:
    """Returns the shape with the spike's bursts: at `req-rate` of the spike, else at twice the traffic's."""
    spike = traffic.traffic_spike
    if spike is None:
        return base
    usual = traffic.req_rate or 0.0
    return SpikedRate(base, spike, (spike.req_rate or 2 * usual) - usual)


_MAX_STARTS = 50_000_000


def build_shape(traffic: TrafficShape, factory: ShapeFactory, scale: float = 1.0) -> Shape:
    """Returns the traffic's shape with its spike; rates are divided by `scale` requests per start."""
    shape = add_spike(factory(traffic.shape.options, traffic.req_rate or 0.0), traffic)
    return shape if scale == 1.0 else _Thinned(shape, scale)


# The schedule of an open loop is worked out before the run, whole, and never looked at again.
#
# The rule is that of queueing measurements: what a server does must not change when it is asked.
# A client that sleeps between two requests, or takes a slot before it looks at the clock, asks less
# often as the server gets slower, and the queue that the server built is then nowhere in the
# figures ("coordinated omission"). Tools that we read do both, and some call a rate constant that
# is exponential. So starts are absolute times, `constant` is exactly constant, and what held a
# request back is measured from its start (`Record.intended_s`).
#
# How: a shape is known by its integral, the number of requests due until a time. Arrivals are drawn
# once for a rate of one (`draw_unit_arrivals`), and mapped through the inverse of that integral.
# That is the time-rescaling theorem: the result has the shape's rate at every moment, and gaps of
# the wanted kind, also where the rate jumps. The inverse is read off straight lines between `knots`:
# 20,000 even ones, and the shape's own corners, so that a step is not rounded off.
#
# What must hold: at most `count` starts, ascending, all before `duration`; the same for the same
# seed, on every machine of a run in parts (`load/parts.py`), as each builds all of it and sends its
# share. `gamma` is vLLM's: shape `burstiness`, mean one.
def build_schedule(
    traffic: TrafficShape, shape: Shape, count: int | None, rng: np.random.Generator
) -> Times:
    """Returns start times in seconds: at most `count`, all before `duration`.

    An infinite rate starts everything at once. Raises `ValueError` for more starts than fit in
    memory.
    """
    if traffic.req_rate == math.inf:
        return np.zeros(count or 0)
    end_s = traffic.duration if traffic.duration is not None else _find_end(shape, count or 0)
    knots = shape.knots(end_s)
    counts = shape.count_until(knots)
    expected = counts[-1] if count is None else min(counts[-1], count)
    if expected > _MAX_STARTS:
        raise ValueError(f"the schedule has {expected:.0f} starts: more than {_MAX_STARTS}")
    # As many random arrivals as surely cover the mean: ten deviations more.
    enough = int(counts[-1] + 10 * math.sqrt(counts[-1] / min(traffic.burstiness, 1.0)) + 10)
    wanted = enough if count is None else count
    arrivals = draw_unit_arrivals(traffic.arrivals, traffic.burstiness, wanted, rng)
    arrivals = arrivals[arrivals < counts[-1]]
    starts: Times = np.interp(arrivals, counts, knots)
    return starts


def count_due(traffic: TrafficShape, shape: Shape) -> int:
    """Returns how many starts the duration may bring: the mean, and four deviations if they are random."""
    expected = float(shape.count_until(np.array([traffic.duration or 0.0]))[0])
    spread = (
        0.0
        if traffic.arrivals == "constant"
        else 4 * math.sqrt(expected / min(traffic.burstiness, 1.0))
    )
    return math.ceil(expected + spread)


def _find_end(shape: Shape, count: int) -> float:
    """Returns a time by which far more than `count` requests are due, by doubling."""
    end_s, enough = 1.0, count + 10 * math.sqrt(count) + 10
    while shape.count_until(np.array([end_s]))[0] < enough:
        end_s *= 2
    return end_s


def draw_unit_arrivals(kind: str, burstiness: float, count: int, rng: np.random.Generator) -> Times:
    """Returns `count` ascending arrivals at a mean rate of one.

    `constant`: exactly one apart, the first at zero. `poisson`: exponential gaps. `gamma`: gaps
    with shape `burstiness` and mean one, so below one is burstier than Poisson (vLLM's definition).
    """
    if kind == "constant":
        return np.arange(count, dtype=np.float64)
    shape = 1.0 if kind == "poisson" else burstiness
    return np.cumsum(rng.gamma(shape, 1 / shape, count))


class _Thinned:
    """A shape of conversations: that of their requests over the requests of each."""

    def __init__(self, shape: Shape, scale: float) -> None:
        self._shape, self._scale = shape, scale

    def count_until(self, at_s: Times) -> Times:
        counts: Times = self._shape.count_until(at_s) / self._scale
        return counts

    def knots(self, end_s: float) -> Times:
        return self._shape.knots(end_s)
