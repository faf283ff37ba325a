"""Traffic shapes: how the request rate changes over time.

A shape is its cumulative number of requests up to a time; the schedule inverts that. Random arrivals
follow by time rescaling: unit arrivals mapped through the inverse are a process with the shape's rate.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt
from pydantic import Field

from extproc.bench.spec.section import Rate, Seconds, SpecSection
from extproc.bench.spec.traffic import Spike, TrafficShape

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
        self._counts = np.concatenate(([0.0], np.cumsum(widths * (self._rates[:-2] + self._rates[1:-1]) / 2)))

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


class SineRate:
    """`mean * (1 + amplitude * sin(2 pi t / period))`: days and nights, `amplitude` at most one."""

    def __init__(self, mean: float, amplitude: float, period_s: float) -> None:
        self._mean, self._amplitude, self._omega = mean, amplitude, 2 * np.pi / period_s

    def count_until(self, at_s: Times) -> Times:
        swing = self._amplitude / self._omega * (1 - np.cos(self._omega * at_s))
        counts: Times = self._mean * (at_s + swing)
        return counts

    def knots(self, end_s: float) -> Times:
        per_period = 2000
        periods = end_s * self._omega / (2 * np.pi)
        return np.linspace(0.0, end_s, max(2, int(periods * per_period) + 2))


class RampOptions(SpecSection):
    """`ramp`: from `req-rate` to `to` over `over` seconds, then steady."""

    to: Rate = Field(gt=0)
    over: Seconds = Field(gt=0)


class Step(SpecSection):
    """One rate for one stretch of time."""

    req_rate: Rate = Field(gt=0)
    duration: Seconds = Field(gt=0)


class StepsOptions(SpecSection):
    """`steps`: one rate after another; the last one stays."""

    steps: tuple[Step, ...] = Field(min_length=1)


class SineOptions(SpecSection):
    """`sine`: `req-rate` is the mean."""

    amplitude: float = Field(default=0.5, gt=0, le=1)
    period: Seconds = Field(gt=0)


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


def build_sine(options: dict[str, object], rate: float) -> Shape:
    sine = SineOptions.model_validate(options)
    return SineRate(rate, sine.amplitude, sine.period)


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
            np.array([first]) if self._spike.every is None else np.arange(first, end_s, self._spike.every)
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
