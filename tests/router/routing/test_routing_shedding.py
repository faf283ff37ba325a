"""New conversations are refused where those that go on find nothing any more; and nowhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import Cold
from extproc.router.routing.strategies.prefix_cache.strategy import Shedding
from tests.router.routing.fleet import Fleet, words
from tests.tables import table

# One conversation that is long as four of these fills an endpoint's cache.
TOKENS = 4_096


def fleet() -> Fleet:
    return Fleet("ab", kv_tokens=TOKENS, shed_cold=True)


def overgrow(fleet: Fleet, conversations: int = 16, rounds: int = 12) -> None:
    """Conversations that take turns, more of them than the caches hold."""
    said = [[words(f"Why {number}?", TOKENS // 4)] for number in range(conversations)]
    for _ in range(rounds):
        for texts in said:
            try:
                fleet.visit(*texts, after_s=0.1)
            except Cold:
                continue
            texts += ["Because.", "And?"]


def refused(fleet: Fleet, count: int, *rest: str, system: str = "") -> int:
    """How many of so many chats that nobody has seen, which begin alike and go on with `rest`."""
    shed = 0
    for number in range(count):
        try:
            fleet.visit(words(f"Something new {number}", 100), *rest, system=system, after_s=0.0)
        except Cold:
            shed += 1
    return shed


@table(("found", "refused"), [(1.0, 0.0), (0.9, 0.0), (0.75, 0.5), (0.6, 1.0), (0.0, 1.0)])
def test_the_less_is_found_the_more_are_refused(found: float, refused: float) -> None:
    cliff = Shedding()
    cliff.found = found

    assert cliff.refused == pytest.approx(refused)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6))))
def test_a_share_is_a_share_whatever_is_heard(heard: list[tuple[int, int]]) -> None:
    cliff = Shedding()
    for answered, reach in heard:
        cliff.take(answered, reach)

    assert 0 <= cliff.found <= 1
    assert 0 <= cliff.refused <= 1


def test_over_the_cliff_new_conversations_are_refused_until_those_that_go_on_find_theirs_again() -> None:
    over = fleet()
    overgrow(over)
    assert refused(over, 50) >= 40
    assert refused(over, 20, "Answered", "And now?") == 0

    said = ["One that goes on"]
    for _ in range(200):
        said = [said[0], "Because.", "And?"]
        over.visit(*said, after_s=0.5)

    assert refused(over, 20) == 0


def test_conversations_of_which_most_is_cached_are_not_refused() -> None:
    """Instructions that others have brought along."""
    over = fleet()
    system = words("Be kind.", 400)
    over.visit("The first", "who", "brings it", system=system, after_s=0.0)
    overgrow(over, rounds=8)
    over.visit("The first", "who", "brings it", "once", "more", system=system, after_s=0.0)

    assert refused(over, 10, system=system) == 0


def test_nobody_is_refused_unasked_nor_where_conversations_fit_nor_right_after_a_start() -> None:
    unasked, roomy, fresh = Fleet("ab", kv_tokens=TOKENS), fleet(), fleet()
    overgrow(unasked)
    overgrow(roomy, conversations=4)
    # It has seen none of the conversations that go on, and its caches are far from full.
    for number in range(200):
        fresh.visit(f"Old {number}", "Answer", "Next", after_s=1.0)

    assert (refused(unasked, 50), refused(roomy, 1), refused(fresh, 20)) == (0, 0, 0)
