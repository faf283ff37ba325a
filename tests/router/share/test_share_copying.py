"""A gateway that comes in copies what another one knows, and serves meanwhile."""

from extproc.router.share.copying import PAGE_S
from extproc.router.share.letters import (
    PAGE_BLOCKS,
    IndexPage,
    IndexRequest,
    Letter,
    PageEnd,
    links_in,
    name_of,
    tell_links,
)
from extproc.router.share.sealed import Seal
from tests.router.routing.fleet import words
from tests.router.share.town import Gateway, Town, town
from tests.tables import table

CHATS = [words(f"{number} Why?", 500) for number in range(40)]


def matches(gateway: Gateway) -> list[object]:
    """What is known of each chat, where most is known."""
    told = [gateway.explain(said).values() for said in CHATS]
    return [max(int(str(offer["match_tokens"])) for offer in offers) for offers in told]


def turn_pages(both: Town, seconds: float = 10.0, lost: frozenset[int] = frozenset()) -> int:
    """Carries what is asked for; returns how many pieces there were."""
    count = 0
    for _ in range(round(seconds / PAGE_S)):
        both.wait(PAGE_S)
        for sender in both.gateways:
            letter = sender.share.page(sender.clock.now_s)
            if letter is not None and count not in lost:
                for gateway in both.gateways:
                    if gateway is not sender:
                        gateway.hear([letter])
            count += letter is not None
    return count


def settle(both: Town) -> None:
    """All of them came in at once, and ask each other."""
    for _ in range(12):
        both.beat()
        turn_pages(both, 0.2)


def old_town(count: int = 2) -> Town:
    """Gateways that have long been there and know some chats."""
    both = town(count)
    settle(both)
    for place, said in enumerate(CHATS):
        both.gateways[place % count].visit(said, after_s=0)
        both.post()
    return both


def join(both: Town) -> Gateway:
    fresh = Gateway(50, "abcd")
    fresh.clock.now_s = both.gateways[0].clock.now_s
    both.gateways.append(fresh)
    return fresh


def test_who_comes_in_knows_soon_what_the_others_know_and_is_ready_before() -> None:
    both = old_town()
    fresh = join(both)

    assert fresh.visit("Ready?", after_s=0).endpoint.name in "abcd"

    both.beat(3)
    pages = turn_pages(both)

    assert matches(fresh) == matches(both.gateways[0])
    assert pages == 5, "one of each endpoint, and an end; of one peer alone"
    assert fresh.share.copying.is_whole
    for name in "abcd":
        mine, theirs = (one.strategy.index.holding(name) for one in (fresh, both.gateways[0]))
        assert mine is not None
        assert theirs is not None
        assert [*theirs.idle] == [block for block in mine.idle if block in theirs.idle], "in their order"

    both.beat(3)
    assert turn_pages(both) == 0, "it asks no more"


@table("lost", range(5))
def test_a_lost_piece_costs_what_was_in_it_and_an_end_that_is_lost_is_asked_for(lost: int) -> None:
    both = old_town()
    fresh = join(both)
    both.beat(3)
    turn_pages(both, 2.0, frozenset({lost}))
    both.beat(4)
    turn_pages(both, 2.0)
    missing = sum(match == 0 for match in matches(fresh))

    assert missing <= len(CHATS) // 2
    assert fresh.share.copying.is_whole


def test_when_the_one_who_answers_goes_away_another_one_goes_on() -> None:
    both = old_town(3)
    fresh = join(both)
    both.beat(3)
    turn_pages(both, 2.5 * PAGE_S)
    [answering] = [one for one in both.gateways if one.share.copying.is_asked]
    both.gateways.remove(answering)
    both.beat(5)
    turn_pages(both)

    assert matches(fresh) == matches(both.gateways[0])
    assert fresh.share.copying.is_whole


def test_those_who_all_come_in_at_once_are_whole_when_all_have_said_so() -> None:
    settle(both := town(3))

    assert all(one.share.copying.is_whole for one in both.gateways)


def test_who_was_alone_is_whole_and_asks_all_the_same_who_comes() -> None:
    alone = Gateway(0, "abcd")
    both = Town(0)
    both.gateways.append(alone)
    both.beat(12)

    assert alone.share.copying.is_whole
    alone.visit(CHATS[0])
    fresh = join(both)
    both.beat(3)
    turn_pages(both)

    assert matches(fresh)[0] == matches(alone)[0] != 0


def test_who_gets_no_answer_asks_a_few_times_and_does_without() -> None:
    both = old_town()
    fresh = join(both)
    asked = 0
    for _ in range(40):
        both.wait(1.0)
        for sender in both.gateways:
            letter = sender.share.heartbeat(sender.clock.now_s)
            asked += sum(isinstance(news, IndexRequest) for news in letter.news if sender is fresh)
            for gateway in both.gateways:
                if gateway is not sender:
                    gateway.hear([letter])

    assert asked == 6
    assert fresh.share.copying.is_whole


def test_what_was_heard_meanwhile_is_newer_than_the_copy() -> None:
    both = old_town()
    fresh = join(both)
    both.beat(3)
    heard = both.gateways[0].visit(words("News!", 500), after_s=0).endpoint.name
    both.post()
    before = fresh.strategy.newest_blocks(heard, 100)
    turn_pages(both)
    after = fresh.strategy.newest_blocks(heard, 100)

    assert len(after) > len(before) > 0
    assert after[: len(before)] == before


def test_pieces_that_nobody_asked_for_are_left_alone() -> None:
    both = old_town()
    fresh = join(both)
    told = tell_links(fresh.share.copying._me, name_of("a"), [(5, 0, 256)])
    fresh.hear([Letter(1_000, name_of("llama"), 1, [told])])

    assert len(fresh.strategy.index) == 0

    both.beat(3)
    strangers = tell_links(fresh.share.copying._me, name_of("z"), [(5, 0, 256)])
    fresh.hear([Letter(one, name_of("llama"), 1, [strangers]) for one in (1_000, 1_001)])
    fresh.hear([Letter(1_001, name_of("llama"), 1, [tell_links(7, name_of("a"), [(5, 0, 256)])])])

    assert len(fresh.strategy.index) == 0


def test_a_piece_says_the_same_when_it_is_read() -> None:
    links = [(1, 0, 256), (2, 1, 100), (3, 2, 256), (7, 2, 256), (8, 7, 300), (9, 0, 256)]
    told = tell_links(5, 6, links)
    seal = Seal("llm", b"a secret of 16 bytes or more", 1)
    most = tell_links(5, 6, [((1 << 64) - 1 - place, 1 << 63, 999) for place in range(PAGE_BLOCKS)])
    letter = Letter(1, 2, 3, [told, most, IndexPage(5, end=PageEnd.WHOLE), IndexRequest(4, 5)])

    assert links_in(told) == links
    assert told.parents == {3: 2, 5: 0}
    assert seal.open(seal.close(letter)) == letter


def test_a_strategy_that_takes_over_is_filled_anew() -> None:
    both = old_town()
    one = both.gateways[0]
    known = matches(one)
    other = Gateway(0, "abcd")
    other.clock.now_s = one.clock.now_s
    one.strategy = other.strategy
    one.pool.install(one.pool.snapshot, other.strategy)

    assert max(map(int, map(str, matches(one)))) == 0

    both.beat(2)
    turn_pages(both)

    assert matches(one) == known
