"""What the live page says that least load would have found."""

import pytest

from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.router.service.live.least_load import CacheShares, LeastLoadEstimate
from tests.router.routing.fleet import Fleet, words


def chat_with_fleet(fleet: Fleet, estimate: LeastLoadEstimate, turns: int, begun: int = 0) -> None:
    """One chat, turn by turn; the first ones before anybody looks."""
    texts: list[str] = []
    for turn in range(turns):
        texts += [words(f"turn {turn}", 1_000)] * (turn > 0) + [words(f"question {turn}", 1_000)]
        pick = fleet.pick(*texts)
        if turn >= begun:
            estimate.note(pick, fleet.clock.now_s)
        pick.release()


def test_of_a_chat_least_load_finds_what_the_endpoint_whose_turn_it_is_was_sent() -> None:
    fleet, estimate = Fleet("abcd"), LeastLoadEstimate()
    assert estimate.shares(fleet.pool.strategy, fleet.clock.now_s) is None
    chat_with_fleet(fleet, estimate, turns=9)
    shares = estimate.shares(fleet.pool.strategy, fleet.clock.now_s)
    assert shares

    # Of the nth turn's 2n - 1 parts an endpoint has what the last turn left, 2(n - 1), or that four
    # before.
    assert [shares.predicted, shares.by_least_load] == pytest.approx([72 / 81, 30 / 81], abs=0.01)


def test_what_began_before_anybody_looked_and_what_other_endpoints_had_does_not_count() -> None:
    fleet, estimate = Fleet("abcd"), LeastLoadEstimate()
    chat_with_fleet(fleet, estimate, turns=4, begun=1)
    assert estimate.shares(fleet.pool.strategy, 0) is None

    fleet.follow("ab")
    chat_with_fleet(fleet, estimate, turns=1)

    assert estimate.shares(fleet.pool.strategy, fleet.clock.now_s) == CacheShares(0, 0, 0)


def test_each_strategy_begins_anew_and_says_for_how_long_it_has_been_looked_at() -> None:
    fleet, estimate = Fleet("abcd"), LeastLoadEstimate()
    before = fleet.pool.strategy
    chat_with_fleet(fleet, estimate, turns=9)
    began_s = fleet.clock.now_s
    fleet.pool.strategy = PrefixCache(fleet.outside)
    fleet.follow("abcd")
    assert estimate.shares(fleet.pool.strategy, began_s) is None

    chat_with_fleet(fleet, estimate, turns=1)

    assert estimate.shares(before, began_s) is None
    assert estimate.shares(fleet.pool.strategy, began_s + 360) == CacheShares(0, 0, 360)
