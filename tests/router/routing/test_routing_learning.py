"""What an engine takes, learnt from samples of which many may be anything."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.router.routing.strategies.prefix_cache.learning import (
    Learner,
    LearntCosts,
    Slowdown,
    fit_line,
)
from tests.tables import table

START = LearntCosts(0.19 / 4, 39.0)


def first_token_ms(
    rng: random.Random, missing: float, costs: LearntCosts, wrong: float = 0.0
) -> float:
    """The rest of a step, a step, the prefill; and of `wrong` of the requests anything up to ten seconds."""
    if rng.random() < wrong:
        return rng.uniform(0, 10_000)
    return costs.step_ms * (1 + rng.random()) + missing * costs.ms_per_byte


def learn(costs: LearntCosts, samples: int, wrong: float = 0.0, seed: int = 1) -> Learner:
    rng = random.Random(seed)
    learner = Learner(START, rng)
    for _ in range(samples):
        missing = rng.lognormvariate(7.5, 1)
        learner.add(missing, first_token_ms(rng, missing, costs, wrong))
    return learner


@table("factor", [0.25, 0.5, 1, 2, 4])
@table("wrong", [0.0, 0.2])
def test_engines_of_another_speed_are_known_after_a_thousand_samples(
    factor: float, wrong: float
) -> None:
    truth = LearntCosts(START.ms_per_byte * factor, START.step_ms * factor)
    learner = learn(truth, 1_500, wrong)

    assert learner.costs.ms_per_byte == pytest.approx(truth.ms_per_byte, rel=0.15)
    assert learner.costs.step_ms == pytest.approx(truth.step_ms, rel=0.35 if wrong else 0.15)


def test_nothing_is_believed_at_once() -> None:
    double = LearntCosts(START.ms_per_byte * 2, START.step_ms * 2)
    costs = [learn(double, samples).costs.ms_per_byte for samples in (127, 128, 512, 1_500)]

    assert costs[0] == START.ms_per_byte
    assert 1 < costs[1] / START.ms_per_byte < 1.3
    assert costs == sorted(costs)


@table("at_once_ms", [3.0, 50.0])
def test_a_head_that_is_sent_at_once_says_nothing(at_once_ms: float) -> None:
    """VLLM sends a stream's head before it has begun with the prompt."""
    rng = random.Random(3)
    learner = Learner(START, rng)
    for _ in range(5_000):
        learner.add(rng.lognormvariate(7.5, 1), at_once_ms * rng.uniform(0.8, 1.5))

    assert (learner.costs, learner.samples, learner.lines) == (START, 5_000, 0)


def test_whole_answers_are_no_first_tokens() -> None:
    """Seconds that have nothing to do with the prompt."""
    rng = random.Random(3)
    learner = Learner(START, rng)
    for _ in range(5_000):
        learner.add(rng.lognormvariate(7.5, 1), rng.expovariate(1 / 4_000))

    assert learner.costs.ms_per_byte == pytest.approx(START.ms_per_byte, rel=0.3)


@given(
    st.lists(st.tuples(st.floats(0, 1e7), st.floats(0, 1e7)), min_size=1, max_size=20),
    st.integers(0, 100),
)
def test_whatever_is_measured_costs_stay_within_reason(
    samples: list[tuple[float, float]], seed: int
) -> None:
    learner = Learner(START, random.Random(seed))
    for number in range(600):
        learner.add(*samples[number % len(samples)])

        assert START.ms_per_byte / 8.001 <= learner.costs.ms_per_byte <= START.ms_per_byte * 8.001
        assert START.step_ms / 8.001 <= learner.costs.step_ms <= START.step_ms * 8.001


def test_a_line_goes_through_its_points_unless_they_are_one() -> None:
    line = fit_line([(float(x), 3.0 * x + 7) for x in range(50)], random.Random(1))

    assert line is not None
    assert [line.slope, line.base, line.rising] == pytest.approx([3, 7, 1])
    assert fit_line([(5.0, 1.0), (5.0, 2.0)] * 9, random.Random(1)) is None


@table(("slower", "factor"), [(1.0, 1.0), (1.2, 1.0), (2.0, 2.0), (0.5, 0.5), (100.0, 4.0)])
def test_a_slower_endpoint_is_found_and_one_that_is_alike_is_not(
    slower: float, factor: float
) -> None:
    rng, pace = random.Random(1), Slowdown()
    for _ in range(400):
        pace.add(100.0, 100.0 * slower * rng.lognormvariate(0, 0.3))

    assert pace.factor == pytest.approx(factor, rel=0.2)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), max_size=300))
def test_a_pace_stays_within_its_limits(paces: list[tuple[float, float]]) -> None:
    pace = Slowdown()
    for expected, measured in paces:
        pace.add(expected, measured)

    assert 0.25 <= pace.factor <= 4.001
