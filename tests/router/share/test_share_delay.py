"""How late a peer's news are, and when that is too late to count."""

import random

import pytest

from extproc.router.share.delay import Delay, limit_s
from tests.tables import table

# What our clock shows has nothing to do with what theirs shows.
AHEAD_S = 5_000.0


class Way:
    """Letters between us and a peer, one each 10 ms, an echo in every hundredth; seconds each way."""

    def __init__(self) -> None:
        self.delay = Delay()
        self.now = 100.0

    def travel(
        self, letters: int, here_s: float, there_s: float | None = None, limit_s: float = 0.02
    ) -> None:
        for number in range(letters):
            self.now += 0.01
            sent_s = self.now - here_s + AHEAD_S
            if number % 100 == 0:
                self.delay.echo(sent_s, self.now, here_s + (here_s if there_s is None else there_s))
            self.delay.measure(sent_s, self.now, limit_s)


@table(("late_s", "is_prompt"), [(0.0, True), (0.009, True), (0.03, False), (1.0, False)])
def test_delay_is_measured_between_clocks_that_differ(late_s: float, is_prompt: bool) -> None:
    way = Way()
    way.travel(200, late_s)

    assert way.delay.seconds == pytest.approx(late_s, abs=1e-6)
    assert way.delay.is_prompt is is_prompt


@table("has_echo", [False, True])
def test_nobody_is_prompt_before_a_round_trip_was_seen_and_one_from_the_future_is_none(
    has_echo: bool,
) -> None:
    delay = Delay()
    if has_echo:
        delay.echo(1.0, 2.0, -1.0)
    delay.measure(1.0, 2.0, 0.02)

    assert (delay.is_prompt, delay.seconds) == (False, None)


@table(("letters", "late_s", "is_prompt"), [(1, 0.05, True), (10, 0.1, False)])
def test_a_bus_that_becomes_slow_is_noticed_within_ten_letters_without_an_echo_but_not_by_one(
    letters: int, late_s: float, is_prompt: bool
) -> None:
    way = Way()
    way.travel(100, 0.001)
    for _ in range(letters):
        way.now += 0.01
        way.delay.measure(way.now - late_s + AHEAD_S, way.now, 0.02)

    assert way.delay.is_prompt is is_prompt


def test_between_the_limit_and_three_quarters_of_it_nothing_changes() -> None:
    way = Way()
    states = []
    for late_s in (0.018, 0.005, 0.018):
        way.travel(200, late_s)
        states.append(way.delay.is_prompt)

    assert states == [False, True, True]


def test_the_shortest_round_trip_sets_the_clocks_apart_whatever_others_took() -> None:
    rng = random.Random(1)
    way = Way()
    for _ in range(50):
        way.travel(1, 0.004, 0.004 + rng.random())
    way.travel(1, 0.004, 0.004)
    way.travel(50, 0.004, 0.3)

    assert way.delay.seconds == pytest.approx(0.004, abs=1e-3)


def test_what_clocks_showed_is_not_believed_for_ever() -> None:
    """A clock that runs off by a tenth of a second is believed again two minutes later."""
    way = Way()
    way.travel(100, 0.002)
    for _ in range(180):
        way.now += 1.0
        sent_s = way.now - 0.002 + AHEAD_S - 0.1
        way.delay.echo(sent_s, way.now, 0.0041)
        way.delay.measure(sent_s, way.now, 0.02)

    assert way.delay.seconds == pytest.approx(0.002, abs=1e-3)


@table(
    ("picks_per_s", "endpoints", "limit"),
    [
        (0, 8, 0.5),
        (2.2, 8, 0.4545),
        (6, 8, 0.1667),
        (36, 8, 0.0278),
        (1_000, 8, 0.02),
        (1_000, 800, 0.1),
    ],
)
def test_the_more_is_picked_the_sooner_counts_are_too_old(
    picks_per_s: float, endpoints: int, limit: float
) -> None:
    assert limit_s(picks_per_s, endpoints) == pytest.approx(limit, rel=1e-3)
