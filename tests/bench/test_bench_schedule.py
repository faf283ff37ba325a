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
from tests.bench.ks import exponential_cdf, ks_distance, ks_limit, sampled_cdf
from tests.tables import table

Times = npt.NDArray[np.float64]


def schedule(seed: int = 1, **fields: Any) -> Times:
    traffic = TrafficShape.model_validate(fields)
    factory: ShapeFactory = build_registry().shape(traffic.shape.name)
    rng = np.random.default_rng(seed)
    return build_schedule(traffic, build_shape(traffic, factory), traffic.total_prompts, rng)


def count_per_second(times: Times, seconds: int) -> list[int]:
    counts, _ = np.histogram(times, bins=np.arange(seconds + 1))
    return [int(count) for count in counts]


def test_constant_means_exactly_constant() -> None:
    times = schedule(req_rate=40, duration=5)

    assert times == pytest.approx(np.arange(200) / 40, abs=1e-9)


def test_count_bounds_a_schedule_without_duration() -> None:
    assert len(schedule(req_rate=3, total_prompts=500, arrivals="poisson")) == 500


def test_duration_bounds_a_schedule_with_a_higher_count() -> None:
    assert len(schedule(req_rate=10, duration=2, total_prompts=500)) == 20


def test_infinite_rate_starts_all_at_once() -> None:
    assert schedule(req_rate="inf", total_prompts=5).tolist() == [0.0] * 5


@table(
    ("shape", "expected"),
    [
        ({"name": "ramp", "to": 50, "over": 4}, [15, 25, 35, 45, 50, 50]),
        (
            {"name": "steps", "steps": [{"req_rate": 5, "duration": 2}, {"req-rate": 20, "duration": "1s"}]},
            [5, 5, 20, 20, 20, 20],
        ),
    ],
)
def test_shape_has_its_rate_in_every_window(shape: dict[str, object], expected: list[int]) -> None:
    assert count_per_second(schedule(req_rate=10, duration=6, shape=shape), 6) == pytest.approx(
        expected, abs=1
    )


def test_spike_bursts_and_comes_again() -> None:
    spike = {"burst": "1s", "req-rate": "50 qps", "after": "2s", "every": "4s"}
    times = schedule(req_rate=10, duration=8, traffic_spike=spike)

    assert count_per_second(times, 8) == [10, 10, 50, 10, 10, 10, 50, 10]


def test_spike_without_a_rate_doubles_the_traffic() -> None:
    times = schedule(req_rate=10, duration=4, traffic_spike={"burst": 1, "after": 1})

    assert count_per_second(times, 4) == [10, 20, 10, 10]


def test_poisson_gaps_are_exponential() -> None:
    gaps = np.diff(schedule(req_rate=50, total_prompts=20_000, arrivals="poisson"))

    assert ks_distance(exponential_cdf(gaps, 1 / 50)) < ks_limit(len(gaps))


@table("burstiness", [0.3, 4.0])
def test_gamma_gaps_have_shape_burstiness(burstiness: float) -> None:
    gaps = np.diff(schedule(req_rate=50, total_prompts=20_000, arrivals="gamma", burstiness=burstiness))

    reference = np.random.default_rng(99).gamma(burstiness, 1 / burstiness / 50, 400_000)
    assert ks_distance(sampled_cdf(gaps, reference)) < ks_limit(len(gaps))
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_random_arrivals_follow_a_shape_by_time_rescaling() -> None:
    """Mapped through the shape's integral, arrivals must be Poisson at a rate of one."""
    ramp = Component.model_validate({"name": "ramp", "to": 200, "over": 100})
    traffic = TrafficShape(req_rate=50, duration=100, arrivals="poisson", shape=ramp)
    shape = build_shape(traffic, build_registry().shape("ramp"))
    times = build_schedule(traffic, shape, None, np.random.default_rng(5))

    gaps = np.diff(shape.count_until(times))
    assert ks_distance(exponential_cdf(gaps, 1.0)) < ks_limit(len(gaps))
    assert len(times) == pytest.approx(12_500, rel=0.03)


def test_constant_gaps_fail_the_test_that_poisson_gaps_pass() -> None:
    gaps = np.diff(schedule(req_rate=50, total_prompts=1000))

    assert ks_distance(exponential_cdf(gaps, 1 / 50)) > 5 * ks_limit(len(gaps))


def test_same_seed_same_schedule_other_seed_another() -> None:
    same = [schedule(seed=3, req_rate=5, total_prompts=50, arrivals="poisson") for _ in range(2)]

    assert same[0].tolist() == same[1].tolist()
    assert same[0].tolist() != schedule(seed=4, req_rate=5, total_prompts=50, arrivals="poisson").tolist()


def test_options_that_a_shape_does_not_know_are_refused() -> None:
    with pytest.raises(ValueError, match="slope"):
        schedule(req_rate=1, duration=1, shape={"name": "ramp", "to": 2, "over": 1, "slope": 3})


def test_more_starts_than_memory_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="more than"):
        schedule(req_rate=1e6, duration="10h")
