"""One peer's open requests, by its news."""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from extproc.router.share.peers import Ledger

A, B, C = 10, 20, 30


class News(NamedTuple):
    """An event of a peer, or a heartbeat: `counts` after the events up to `number`."""

    number: int
    endpoint: int = 0
    step: int = 0
    counts: dict[int, int] | None = None


@st.composite
def news_of_a_peer(draw: st.DrawFn) -> list[News]:
    """What a peer says: picks, ends of what is open, and heartbeats; one of these at the end."""
    news: list[News] = []
    is_open: list[int] = []
    number = 0
    for kind in draw(st.lists(st.sampled_from(["pick", "end", "beat"]), max_size=40)):
        if kind == "beat":
            news.append(News(number, counts=dict(Counter(is_open))))
        elif kind == "pick":
            number += 1
            is_open.append(draw(st.sampled_from([A, B, C])))
            news.append(News(number, is_open[-1], 1))
        elif is_open:
            number += 1
            news.append(News(number, is_open.pop(draw(st.integers(0, len(is_open) - 1))), -1))
    return [*news, News(number, counts=dict(Counter(is_open)))]


def truth(news: Sequence[News]) -> dict[int, int]:
    counts: Counter[int] = Counter()
    for one in news:
        counts[one.endpoint] += one.step
    return {endpoint: count for endpoint, count in counts.items() if count}


def apply_news(ledger: Ledger, news: Sequence[News]) -> None:
    for one in news:
        if one.counts is not None:
            ledger.stand(one.number, one.counts)
        else:
            ledger.note(one.number, one.endpoint, one.step)
        assert all(count > 0 for count in ledger.counts().values())


@given(news_of_a_peer(), st.integers(0, 2**32))
def test_news_without_gaps_are_the_truth_in_any_order_and_however_often(
    news: list[News], seed: int
) -> None:
    rng = Random(seed)
    ledger = Ledger()
    shuffled = [*news, *rng.choices(news, k=len(news))]
    rng.shuffle(shuffled)
    apply_news(ledger, shuffled)

    assert ledger.counts() == truth(news)


@given(news_of_a_peer(), st.data())
def test_a_heartbeat_heals_whatever_was_lost_late_or_sent_twice(
    news: list[News], data: st.DataObject
) -> None:
    ledger = Ledger()
    *before, beat = news
    apply_news(ledger, data.draw(st.lists(st.sampled_from(before), max_size=60)) if before else [])
    apply_news(ledger, [beat])
    assert ledger.counts() == truth(news)

    # What comes late changes nothing any more.
    apply_news(ledger, before)

    assert ledger.counts() == truth(news)


@given(news_of_a_peer())
def test_in_order_every_step_is_the_truth(news: list[News]) -> None:
    ledger = Ledger()
    for place, one in enumerate(news):
        apply_news(ledger, [one])

        assert ledger.counts() == truth(news[: place + 1])


def test_an_end_whose_pick_was_lost_is_not_shown_below_zero() -> None:
    ledger = Ledger()

    assert ledger.note(2, A, -1) == 0
    assert ledger.counts() == {}
    assert ledger.note(1, A, 1) == 0
    assert ledger.note(3, A, 1) == 1
    assert ledger.counts() == {A: 1}


def test_of_two_heartbeats_the_one_of_the_higher_number_counts() -> None:
    """And what was said before the last but one is no news."""
    ledger = Ledger()
    ledger.stand(9, {A: 2})
    ledger.stand(5, {B: 7})
    assert ledger.counts() == {A: 2}

    ledger.stand(12, {})
    assert [ledger.note(number, A, 1) for number in (9, 10, 10)] == [None, 0, None]
    assert ledger.counts() == {}


def test_a_mad_peers_news_take_no_more_memory_until_its_next_heartbeat() -> None:
    ledger = Ledger()
    taken = sum(ledger.note(number, A, 1) is not None for number in range(1, 70_000))
    assert taken == 65_536

    ledger.stand(70_000, {A: 3})
    ledger.stand(70_001, {A: 3})

    assert ledger.counts() == {A: 3}
    assert ledger.note(70_002, A, 1) == 1
