"""Schedules: exact counts per window, and gaps of the right distribution."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from extproc.bench.load.registry import build_registry
from extproc.bench.load.shapes import ShapeFactory, build_schedule, build_shape
from extproc.bench.spec.section import Component
from extproc.bench.spec.traffic import TrafficShape
from tests.tables import table

Times = npt.NDArray[np.float64]


def schedule(seed: int = 1, **fields: Any) -> Times:
    traffic = TrafficShape.model_validate(fields)
    factory: ShapeFactory = build_registry().shape(traffic.shape.name)
    rng = np.random.default_rng(seed)
    return build_schedule(traffic, build_shape(traffic, factory), traffic.total_prompts, rng)


def ks_ratio(uniform: Times) -> float:
    """Kolmogorov-Smirnov: the distance from uniform, over what a true sample exceeds once in a thousand."""
    ordered, steps = np.sort(uniform), np.arange(len(uniform) + 1) / len(uniform)
    distance = max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1]))
    return float(distance * np.sqrt(len(uniform)) / 1.95)


def test_constant_means_exactly_constant_and_count_and_duration_bound_it() -> None:
    assert schedule(req_rate=40, duration=5) == pytest.approx(np.arange(200) / 40, abs=1e-9)
    assert len(schedule(req_rate=3, total_prompts=500, arrivals="poisson")) == 500
    assert len(schedule(req_rate=10, duration=2, total_prompts=500)) == 20
    assert schedule(req_rate="inf", total_prompts=5).tolist() == [0.0] * 5


STEPS = [{"req_rate": 5, "duration": 2}, {"req-rate": 20, "duration": "1s"}]
SPIKE = {"burst": "1s", "req-rate": "50 qps", "after": "2s", "every": "4s"}


@table(
    ("traffic", "expected"),
    [
        ({"shape": {"name": "ramp", "to": 50, "over": 4}}, [15, 25, 35, 45, 50, 50]),
        ({"shape": {"name": "steps", "steps": STEPS}}, [5, 5, 20, 20, 20, 20]),
        ({"traffic_spike": SPIKE}, [10, 10, 50, 10, 10, 10, 50, 10]),
        # Without a rate of its own it doubles the traffic.
        ({"traffic_spike": {"burst": 1, "after": 1}}, [10, 20, 10, 10]),
    ],
)
def test_shape_has_its_rate_in_every_window(traffic: dict[str, Any], expected: list[int]) -> None:
    seconds = len(expected)
    counts, _ = np.histogram(
        schedule(req_rate=10, duration=seconds, **traffic), np.arange(seconds + 1)
    )

    assert counts.tolist() == pytest.approx(expected, abs=1 if "shape" in traffic else 0)


def test_steps_need_no_rate_beside_their_own() -> None:
    shape = {"name": "steps", "steps": [{"req-rate": 0, "duration": 1}, *STEPS]}
    alone, beside = (schedule(shape=shape, duration=4, **more) for more in ({}, {"req_rate": 9}))

    assert alone.tolist() == beside.tolist()


def test_poisson_gaps_are_exponential_and_constant_ones_are_not() -> None:
    gaps = np.diff(schedule(req_rate=50, total_prompts=20_000, arrivals="poisson"))
    constant = np.diff(schedule(req_rate=50, total_prompts=1000))

    assert ks_ratio(1 - np.exp(-50 * gaps)) < 1
    assert ks_ratio(1 - np.exp(-50 * constant)) > 5


@table("burstiness", [0.3, 4.0])
def test_gamma_gaps_have_shape_burstiness(burstiness: float) -> None:
    gaps = np.diff(
        schedule(req_rate=50, total_prompts=20_000, arrivals="gamma", burstiness=burstiness)
    )

    reference = np.random.default_rng(99).gamma(burstiness, 1 / burstiness / 50, 400_000)
    assert ks_ratio(np.searchsorted(np.sort(reference), gaps) / len(reference)) < 1
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_random_arrivals_follow_a_shape_by_time_rescaling() -> None:
    """Mapped through the shape's integral, arrivals must be Poisson at a rate of one."""
    ramp = Component.model_validate({"name": "ramp", "to": 200, "over": 100})
    traffic = TrafficShape(req_rate=50, duration=100, arrivals="poisson", shape=ramp)
    shape = build_shape(traffic, build_registry().shape("ramp"))
    times = build_schedule(traffic, shape, None, np.random.default_rng(5))

    gaps = np.diff(shape.count_until(times))
    assert ks_ratio(1 - np.exp(-gaps)) < 1
    assert len(times) == pytest.approx(12_500, rel=0.03)
