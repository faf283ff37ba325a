"""Homes: what is presumed where, and how the number of gateways is estimated from conversations."""

import itertools
import random
from collections.abc import Iterator

from msgspec.structs import replace

from extproc.router.routing.prompt.chain import Chain
from extproc.router.routing.strategies.base import PeerCounts
from extproc.router.routing.strategies.prefix_cache.homes import (
    NO_HOMES,
    GatewayCount,
    Homes,
    find_homes,
)
from tests.tables import table

ROOT, HOME = 1, 2
QUESTIONS = itertools.count()


def walk(key: int) -> Iterator[str]:
    yield from {ROOT: ("r", "x"), HOME: ("h", "y")}[key]


def first_turn(answered: int = 0, rooted: int = 0) -> Chain:
    """A turn of a conversation that nobody has seen before."""
    root, question, answers = ROOT if rooted else 0, next(QUESTIONS), 2 * bool(answered)
    return Chain([5], [900], [900], 900, HOME, answered, root, rooted, question, answers=answers)


@table(
    ("asked", "reach", "presumed", "own"),
    [
        (first_turn(), 0, {}, "h"),
        (first_turn(rooted=500), 0, {"r": 500}, ""),
        (first_turn(rooted=500), 500, {}, "h"),
        (first_turn(answered=800), 0, {"h": 800}, "h"),
        (first_turn(answered=800), 799, {"h": 800}, "h"),
        (first_turn(answered=800), 800, {}, ""),
        (first_turn(answered=800, rooted=500), 0, {"r": 500, "h": 800}, "h"),
        (first_turn(answered=800, rooted=500), 500, {"h": 800}, "h"),
    ],
)
def test_what_is_presumed_where(
    asked: Chain, reach: int, presumed: dict[str, int], own: str
) -> None:
    homes = find_homes(asked, reach, walk)

    assert (homes.presumed, homes.own) == (presumed, own)
    assert set(homes.names) == {*presumed, *filter(None, [own])}


def test_nothing_is_presumed_where_there_is_no_endpoint() -> None:
    assert find_homes(first_turn(answered=800, rooted=500), 0, lambda _: iter(())) == Homes({}, "")
    assert NO_HOMES.names == []


@table("gateways", [1, 2, 3, 4, 8, 12])
@table("seed", range(20))
def test_company_is_found_out_from_turns(gateways: int, seed: int) -> None:
    rng, company = random.Random(seed), GatewayCount()
    for _ in range(600):
        company.note_turn(first_turn(answered=800), 900 if rng.randrange(gateways) == 0 else 0)

    assert 1 <= company.count <= 64
    assert gateways / 3 <= company.count <= max(1, gateways * 6)
    assert (company.count == 1) is (gateways == 1)


@table(("step", "is_ours"), [(1, True), (2, False)])
def test_a_turn_is_ours_if_its_last_one_was_whatever_became_of_its_blocks(
    step: int, is_ours: bool
) -> None:
    """Evicted blocks, or a head that changes with each turn, make no second gateway."""
    company, first = GatewayCount(), first_turn()
    company.note_turn(first, 0)
    for answers in range(1, 400, step):
        company.note_turn(replace(first, answered_bytes=800, answers=answers), 0)

    assert company.is_alone if is_ours else company.count > 8


def test_conversations_are_forgotten_beyond_a_bound() -> None:
    company, first = GatewayCount(), first_turn()
    company.note_turn(first, 0)
    for _ in range(100_000):
        company.note_turn(first_turn(), 0)
    before = company.count
    company.note_turn(replace(first, answered_bytes=800, answers=1), 0)

    assert company.count >= before


def test_first_turns_and_a_few_lost_ones_are_no_company_and_a_configured_count_is_believed() -> (
    None
):
    first, lost, reported = GatewayCount(), GatewayCount(), GatewayCount(3)
    for number in range(1_000):
        first.note_turn(first_turn(), 0)
        lost.note_turn(first_turn(answered=800), 0 if number % 5 == 0 else 900)
    reported.note_turn(first_turn(answered=800), 0)

    assert [company.count for company in (first, lost, reported)] == [1, 1, 3]


@table(("known", "prompt", "at_least", "at_most"), [(0, 0, 3, 64), (3, 3, 3, 64), (3, 0, 4, 4)])
def test_who_is_late_is_not_counted_twice(
    known: int, prompt: int, at_least: float, at_most: float
) -> None:
    """Late news make turns miss, as if that gateway's letters did not come at all."""
    company = GatewayCount()
    company.set_peers(PeerCounts(known, prompt, 0), 0.0)
    for number in range(400):
        company.note_turn(first_turn(answered=800), 900 if number % 10 < 3 else 0)

    assert company.count > 2
    assert at_least <= company.times <= at_most


def test_after_a_loss_a_third_of_a_conversation_shows_where_all_of_it_is() -> None:
    chain = Chain([1, 2], [500, 1_000], [500, 1_000], 1_200, 1, 1_000)
    gateways = GatewayCount()
    gateways.set_peers(PeerCounts(1, 1, 0), 10.0)
    assert not gateways.is_whole_at_one(chain, 500, 5.0)

    for now in (20.0, 60.0):
        gateways.set_peers(PeerCounts(0, 0, 1), now)
    are_whole = [gateways.is_whole_at_one(chain, reach, 5.0) for reach in (0, 299, 301, 1_000)]

    assert are_whole == [False, False, True, False]
    assert not gateways.is_whole_at_one(chain, 500, 19.8), "it began when they were lost already"
    assert not gateways.is_whole_at_one(replace(chain, root=1, root_bytes=500), 500, 5.0), (
        "others have that, too"
    )
