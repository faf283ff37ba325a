"""When requests begin in an open loop."""

import math

import numpy as np

from extproc.bench.load.shapes import Shape, ShapeFactory, Times, add_spike
from extproc.bench.spec.traffic import TrafficShape

_MAX_STARTS = 50_000_000


def build_shape(traffic: TrafficShape, factory: ShapeFactory, scale: float = 1.0) -> Shape:
    """Returns the traffic's shape with its spike; rates are divided by `scale` requests per start."""
    shape = add_spike(factory(traffic.shape.options, traffic.req_rate or 0.0), traffic)
    return shape if scale == 1.0 else _Thinned(shape, scale)


def build_schedule(traffic: TrafficShape, shape: Shape, count: int | None, rng: np.random.Generator) -> Times:
    """Returns start times in seconds: at most `count`, all before `duration`.

    An infinite rate starts everything at once. Raises `ValueError` for more starts than fit in memory.
    """
    if traffic.req_rate == math.inf:
        return np.zeros(count or 0)
    end_s = traffic.duration if traffic.duration is not None else _find_end(shape, count or 0)
    knots = shape.knots(end_s)
    counts = shape.count_until(knots)
    expected = counts[-1] if count is None else min(counts[-1], count)
    if expected > _MAX_STARTS:
        raise ValueError(f"the schedule has {expected:.0f} starts: more than {_MAX_STARTS}")
    wanted = count if count is not None else _enough(counts[-1], traffic.burstiness)
    arrivals = draw_unit_arrivals(traffic.arrivals, traffic.burstiness, wanted, rng)
    arrivals = arrivals[arrivals < counts[-1]]
    starts: Times = np.interp(arrivals, counts, knots)
    return starts


def count_due(traffic: TrafficShape, shape: Shape) -> int:
    """Returns how many starts the duration may bring: the mean, and four deviations if they are random."""
    expected = float(shape.count_until(np.array([traffic.duration or 0.0]))[0])
    spread = 0.0 if traffic.arrivals == "constant" else 4 * math.sqrt(expected / min(traffic.burstiness, 1.0))
    return math.ceil(expected + spread)


def _find_end(shape: Shape, count: int) -> float:
    """Returns a time by which far more than `count` requests are due, by doubling."""
    end_s, enough = 1.0, count + 10 * math.sqrt(count) + 10
    while shape.count_until(np.array([end_s]))[0] < enough:
        end_s *= 2
    return end_s


def _enough(expected: float, burstiness: float) -> int:
    """Returns how many random arrivals surely cover a mean of `expected`: ten deviations more."""
    return int(expected + 10 * math.sqrt(expected / min(burstiness, 1.0)) + 10)


def draw_unit_arrivals(kind: str, burstiness: float, count: int, rng: np.random.Generator) -> Times:
    """Returns `count` ascending arrivals at a mean rate of one.

    `constant`: exactly one apart, the first at zero. `poisson`: exponential gaps. `gamma`: gaps with
    shape `burstiness` and mean one, so below one is burstier than Poisson (vLLM's definition).
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
