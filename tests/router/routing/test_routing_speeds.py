"""Which endpoints are slower than most, by what their engines say of their prefills."""

import random
from collections.abc import Mapping

import pytest

from extproc.router.routing.strategies.prefix_cache.speeds import Prefills, Speeds
from tests.tables import table

EXPECTED_MS = 200.0


def speeds_after(slowness: Mapping[str, float], requests: int = 25, rounds: int = 15) -> Speeds:
    """Every endpoint tells of so many requests in each round; each took that many times as expected."""
    speeds, rng = Speeds(), random.Random(3)
    speeds.follow(slowness)
    for _ in range(rounds):
        for name, factor in slowness.items():
            ms = requests * EXPECTED_MS * factor * rng.uniform(0.7, 1.4)
            speeds.add(name, Prefills(requests, requests * 900, ms), requests * EXPECTED_MS)
    return speeds


@table(
    ("slowness", "slow"),
    [
        ({"a": 1, "b": 1, "c": 1, "d": 1}, {}),
        ({"a": 3, "b": 3, "c": 3}, {}),  # constants that are wrong are wrong for all
        ({"a": 1, "b": 1.2, "c": 0.9}, {}),
        ({"a": 1, "b": 1, "c": 2}, {"c": 2}),
        ({"a": 0.17, "b": 1, "c": 1, "d": 1}, {"a": 0.17}),
        ({"a": 1, "b": 2}, {"b": 2}),  # of two kinds the faster one is the measure
        ({"a": 1, "b": 1, "c": 400}, {"c": 8}),
        ({"a": 5}, {}),
        ({}, {}),
    ],
)
def test_those_that_differ_by_much_have_a_factor(
    slowness: dict[str, float], slow: dict[str, float]
) -> None:
    assert speeds_after(slowness).slow == pytest.approx(slow, rel=0.2)


def test_nothing_is_said_of_an_endpoint_after_few_requests() -> None:
    assert speeds_after({"a": 1, "b": 1, "c": 9}, requests=6, rounds=8).slow == {}


def test_an_endpoint_that_gets_few_requests_stays_known_and_one_that_recovers_is_forgotten() -> (
    None
):
    speeds = speeds_after({"a": 1, "b": 1, "c": 4})
    for name in "ab" * 500:
        speeds.add(name, Prefills(25, 0, 25 * EXPECTED_MS), 25 * EXPECTED_MS)
    assert speeds.slow == pytest.approx({"c": 4}, rel=0.2)

    for _ in range(40):
        speeds.add("c", Prefills(25, 0, 25 * EXPECTED_MS), 25 * EXPECTED_MS)
    assert speeds.slow == {}


def test_a_stall_is_no_slowness() -> None:
    """A process that stood still looked twice as slow, and got hardly a request afterwards."""
    speeds = speeds_after({"a": 1, "b": 1, "c": 1})
    stalled = Prefills(25, 0, 25 * EXPECTED_MS + 40_000)
    speeds.add("c", stalled, 25 * EXPECTED_MS)
    assert speeds.slow == {}


def test_one_that_leaves_is_no_measure_any_more() -> None:
    speeds = speeds_after({"a": 1, "b": 1, "c": 4})
    speeds.follow(["a", "c"])
    speeds.add("a", Prefills(1, 0, EXPECTED_MS), EXPECTED_MS)
    assert [*speeds.slow] == ["c"]
    speeds.follow(["a"])
    assert speeds.slow == {}


def test_engines_that_say_nothing_are_alike() -> None:
    speeds = Speeds()
    speeds.follow("ab")
    for name in "ab":
        speeds.add(name, Prefills(100, 0, 0.0), 100.0)
    assert speeds.slow == {}
