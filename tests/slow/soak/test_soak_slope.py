"""A line through samples, how sure it is; and the plan of what goes wrong."""

import random
from collections import Counter
from math import isclose

import pytest

from tests.slow.soak.plan import OF_BROKER, Kind, plan
from tests.slow.soak.slope import find_slope


def test_a_straight_line_has_its_slope_and_no_error() -> None:
    slope = find_slope([(at_s, 100 + at_s / 360) for at_s in range(1_000)])

    assert isclose(slope.per_h, 10, rel_tol=1e-6)
    assert slope.error < 1e-6
    assert (slope.exceeds(9.9), slope.exceeds(10.1)) == (True, False)


@pytest.mark.parametrize("per_h", [0.0, 20.0])
def test_the_slope_is_within_three_errors_of_what_it_is(per_h: float) -> None:
    """Of 100 noisy lines as good as all: the error is one."""
    rng = random.Random(1)

    def is_near() -> bool:
        slope = find_slope([(at_s, at_s * per_h / 3600 + rng.gauss(100, 3)) for at_s in range(0, 1_000, 2)])
        return abs(slope.per_h - per_h) <= 3 * slope.error

    assert sum(is_near() for _ in range(100)) >= 95


@pytest.mark.parametrize("samples", [[], [(1.0, 5.0)], [(1.0, 5.0), (2.0, 6.0)]])
def test_too_few_samples_say_nothing(samples: list[tuple[float, float]]) -> None:
    assert not find_slope(samples).exceeds(0)


def test_a_plan_is_the_seeds_and_has_every_kind_alike() -> None:
    steps = plan(1_800, 1)
    counts = Counter(step.kind for step in steps)

    assert steps == plan(1_800, 1) != plan(1_800, 2)
    assert set(counts) == {*Kind}
    assert max(counts.values()) - min(counts.values()) <= 1


def test_without_a_broker_nothing_happens_to_it() -> None:
    assert not {step.kind for step in plan(600, 1, has_broker=False)} & OF_BROKER


def test_in_the_second_half_the_first_gateway_and_endpoint_live_on() -> None:
    kills = [step for step in plan(1_800, 1) if "killed" in step.kind and step.kind not in OF_BROKER]
    late = [step for step in kills if step.at_s > 900]

    assert late
    assert not [step for step in late if step.gateway == 0 or step.endpoint == 0]
    assert [step for step in kills if step.gateway == 0]
