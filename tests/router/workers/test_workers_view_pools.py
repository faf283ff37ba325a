"""`/pools` and `/live` of several processes as of one: pure merging."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from extproc.router.service.live.picture import (
    ConfigurationPicture,
    DecisionRow,
    EndpointRow,
    Picture,
    PoolPicture,
    RefusalPicture,
)
from extproc.router.service.live.tape import KEPT
from extproc.router.workers.view.mosaic import SILENT_S, Mosaic, merge_pools
from extproc.router.workers.view.pools import in_flight, worst
from extproc.router.workers.view.pools import merge_pools as merge_described

ROW = EndpointRow("x", "10.0.0.1:8000", "ready", 0, None, None, None, None, None, None)
POOL = PoolPicture(
    name="a",
    strategy="prefix_cache",
    age_s=1.0,
    fault=None,
    in_flight=0,
    max_in_flight=None,
    bound=None,
    balance=None,
    picks=0,
    states={},
    first_byte_s=None,
    foreseen=None,
    found=None,
    endpoints=[],
)
PICTURE = Picture(
    number=1,
    version="1",
    is_ready=True,
    faults=[],
    remarks=[],
    configuration=ConfigurationPicture("file", 1, 5.0, None),
    streams=0,
    window_s=60.0,
    reasons={},
    pools=[],
    decided=0,
    decisions=[],
)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        # Each knows its own requests alone.
        ([(3, 0), (4, 0)], (7, 0)),
        # Each hears of the other's picks: these are counted once.
        ([(7, 4), (7, 3)], (7, 0)),
        # And another gateway has five there.
        ([(12, 9), (12, 8)], (12, 5)),
        # One of them hears nothing for the moment.
        ([(3, 0), (12, 8)], (12, 5)),
        # One heard of a pick of the other's that it has not told us of yet: it is somebody's.
        ([(4, 1), (0, 0)], (4, 1)),
    ],
)
def test_requests_in_flight_are_counted_once(
    told: Sequence[tuple[int, int]], expected: tuple[int, int]
) -> None:
    assert in_flight(told) == expected


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.integers(0, 50), st.booleans())
def test_who_hears_of_whom_makes_no_difference(own: list[int], others: int, is_shared: bool) -> None:
    whole = sum(own) + others
    told = [(whole, whole - count) if is_shared else (count, 0) for count in own]

    assert in_flight(told) == ((whole, others) if is_shared else (sum(own), 0))


def test_an_endpoint_is_ready_if_all_say_so() -> None:
    assert worst(["ready", "ready"]) == "ready"
    assert worst(["ready", "cooling", "busy"]) == "cooling"
    assert worst(["unhealthy", "draining"]) == "draining"


def endpoint(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "state": "ready", "adapters": [], "in_flight": 0, "elsewhere": 0, **fields}


def described(*endpoints: dict[str, Any], **fields: Any) -> dict[str, Any]:
    told = {"name": "a", "age_s": 1.0, "fault": None, "in_flight": 0, "elsewhere": 0, "share": None}
    return {**told, "held": 2, "learnt": {}, "endpoints": list(endpoints), **fields}


def test_pools_of_two_are_one_list() -> None:
    first = described(
        endpoint("x", in_flight=3, elsewhere=2, adapters=["sql"]),
        age_s=None,
        learnt={"samples": 3},
    )
    second = described(
        endpoint("y"),
        endpoint("x", in_flight=3, elsewhere=1, state="cooling"),
        fault="no DNS",
        learnt={"samples": 9},
    )
    [a, b] = merge_described([[first], [second, described(name="b")]])

    assert (a["name"], a["age_s"], a["fault"], a["learnt"]) == ("a", 1.0, "no DNS", {"samples": 9})
    assert (a["in_flight"], a["elsewhere"], a["held"], b["name"]) == (3, 0, 4, "b")
    assert a["endpoints"] == [
        endpoint("x", in_flight=3, state="cooling", adapters=["sql"]),
        endpoint("y"),
    ]


def test_of_sharing_the_worst_is_told_and_who_are_workers() -> None:
    def share(me: str, *peers: tuple[str, float | None], prompt: int, is_whole: bool) -> dict[str, Any]:
        told = [{"name": name, "delay_ms": delay} for name, delay in peers]
        part = {"me": me, "heard": 2, "prompt": prompt, "lost": 0, "is_whole": is_whole, "copied_blocks": 3}
        return described(share={**part, "peers": told})

    first = share("w1", ("w2", 1.0), ("g", None), prompt=2, is_whole=False)
    second = share("w2", ("w1", 3.0), ("g", 7.0), prompt=1, is_whole=True)
    [merged] = merge_described([[first], [second]])

    assert merged["share"] == {
        "heard": 2,
        "prompt": 1,
        "lost": 0,
        "is_whole": False,
        "copied_blocks": 6,
        "workers": [{"name": "w1", "delay_ms": 3.0}, {"name": "w2", "delay_ms": 1.0}],
        "peers": [{"name": "g", "delay_ms": 7.0}],
    }


def test_the_pools_of_one_picture_are_shown_as_they_are() -> None:
    rows = [
        replace(ROW, in_flight=3, share=0.75, first_byte_s=0.25, foreseen=0.5, found=0.4, elsewhere=1),
        replace(ROW, name="y", state="cooling", left_s=2.0, in_flight=1, share=0.25),
    ]
    states = {"ready": 1, "cooling": 1}
    pool = replace(
        POOL, in_flight=4, elsewhere=1, balance=1.5, picks=8, states=states, foreseen=0.5, endpoints=rows
    )

    assert merge_pools([[pool]]) == [pool]


def test_shares_and_means_are_weighed_by_picks() -> None:
    first = replace(POOL, picks=30, foreseen=0.9, endpoints=[replace(ROW, share=1.0, foreseen=0.9)])
    other = [replace(ROW, share=0.5, foreseen=0.1), replace(ROW, name="y", share=0.5, first_byte_s=0.2)]
    second = replace(POOL, picks=10, foreseen=0.1, endpoints=other)
    [merged] = merge_pools([[first], [second]])
    x, y = merged.endpoints

    assert (merged.picks, merged.foreseen) == (40, 0.7)
    assert (x.share, y.share) == (0.875, 0.125)
    assert x.foreseen == pytest.approx((0.9 * 30 + 0.1 * 5) / 35, abs=1e-4)
    assert y.first_byte_s == 0.2


def decisions(*ages: float, decided: int, endpoint: str = "x") -> list[DecisionRow]:
    """The newest first, as pictures have them."""
    return [
        DecisionRow(decided - place, age_s, "a", "home", endpoint, None) for place, age_s in enumerate(ages)
    ]


def test_decisions_of_two_stand_in_the_order_in_which_they_were_taken() -> None:
    mosaic = Mosaic()
    mosaic.hear("w1", replace(PICTURE, decided=2, decisions=decisions(0.1, 0.5, decided=2)), 10.0)
    mosaic.hear("w2", replace(PICTURE, decided=1, decisions=decisions(0.3, decided=1, endpoint="y")), 10.0)
    first = mosaic.draw(10.0)
    newer = replace(PICTURE, number=2, decided=3, decisions=decisions(0.2, 1.1, 1.5, decided=3))
    mosaic.hear("w1", newer, 11.0)
    second = mosaic.draw(11.5)

    assert [(row.number, row.age_s, row.endpoint) for row in first.decisions] == [
        (3, 0.1, "x"),
        (2, 0.3, "y"),
        (1, 0.5, "x"),
    ]
    assert (second.decided, second.decisions[0].number, second.decisions[0].age_s) == (4, 4, 0.7)
    assert len(second.decisions) == 4


def test_decisions_that_pictures_left_out_have_numbers_too() -> None:
    mosaic = Mosaic()
    mosaic.hear("w1", replace(PICTURE, decided=100, decisions=decisions(0.1, 0.2, decided=100)), 10.0)
    told = mosaic.draw(10.0)

    assert (told.decided, [row.number for row in told.decisions]) == (100, [100, 99])


@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from("ab"), st.sampled_from((0, 1, 2, 3, KEPT + 9))),
            st.tuples(st.sampled_from("ab"), st.just(-1)),
            st.just(("draw", 0)),
        ),
        max_size=12,
    ),
    st.randoms(use_true_random=False),
)
def test_no_decision_is_told_twice_or_missed_without_being_counted(
    steps: list[tuple[str, int]], rng: random.Random
) -> None:
    """As `explain --watch` reads them: those that are new, and how many more there were.

    -1: the worker begins again, and with it the count of its decisions.
    """
    mosaic, now, last, read, missed = Mosaic(), 10.0, 0, list[DecisionRow](), 0
    numbers, totals, taken = Counter("ab"), Counter[str](), 0
    for who, what in [*steps, ("draw", 0)]:
        if who == "draw":
            now += 1.0
            told = mosaic.draw(now)
            new = [row for row in told.decisions if row.number > last]
            missed += told.decided - last - len(new)
            read += reversed(new)
            last = told.decided
            assert told.reasons.get("a", {}).get("home", 0) == taken
        else:
            if what < 0:
                totals[who], numbers[who] = 0, 0
                mosaic.lose(who)
            totals[who] += max(0, what)
            taken += max(0, what)
            numbers[who] += 1
            ages = sorted(rng.random() for _ in range(min(totals[who], KEPT)))
            reasons = {"a": {"home": totals[who]}}
            rows = decisions(*ages, decided=totals[who], endpoint=who)
            mosaic.hear(
                who,
                replace(PICTURE, number=numbers[who], decided=totals[who], decisions=rows, reasons=reasons),
                now,
            )

    assert len(read) + missed == last == taken
    assert [row.number for row in read] == sorted({row.number for row in read})
    assert not any(row.prefix for row in read)


def test_one_that_tells_nothing_shows_nothing_and_what_it_counted_stays() -> None:
    mosaic = Mosaic()
    one = replace(PICTURE, streams=2, reasons={"a": {"home": 3}}, pools=[POOL])
    mosaic.hear("w1", one, 10.0)
    mosaic.hear("w2", replace(one, is_ready=False, faults=["no list"]), 10.0)
    both = mosaic.draw(10.0)
    mosaic.hear("w1", one, 10.0 + SILENT_S + 1)
    alone = mosaic.draw(10.0 + SILENT_S + 1, remarks=["w2 does not answer"])

    assert (both.streams, both.is_ready, both.faults, both.remarks) == (4, True, [], ["no list"])
    assert (alone.streams, alone.remarks, alone.reasons) == (2, ["w2 does not answer"], {"a": {"home": 6}})


def test_without_a_worker_the_service_is_not_ready() -> None:
    told = Mosaic().draw(1.0)

    assert (told.is_ready, told.faults, told.pools) == (False, ["no worker answers"], [])


def test_it_is_draining_whatever_workers_say() -> None:
    mosaic = Mosaic()
    mosaic.hear("w1", PICTURE, 1.0)
    told = mosaic.draw(1.0, ["draining"])

    assert (told.is_ready, told.faults) == (False, ["draining"])


def test_a_refused_configuration_is_told_if_one_worker_refused_it() -> None:
    mosaic, refused = Mosaic(), ConfigurationPicture("file", 1, 5.0, RefusalPicture(1.0, "no"))
    mosaic.hear("w1", PICTURE, 1.0)
    mosaic.hear("w2", replace(PICTURE, configuration=refused), 1.0)

    assert mosaic.draw(1.0).configuration == refused


@given(st.permutations(range(4)), st.lists(st.integers(0, 20), min_size=4, max_size=4))
def test_the_order_of_workers_does_not_matter(order: list[int], counts: list[int]) -> None:
    def pool(count: int) -> PoolPicture:
        row = replace(ROW, in_flight=count, share=1.0, foreseen=count / 20)
        return replace(POOL, in_flight=count, picks=count, foreseen=count / 20, endpoints=[row])

    pools = [[pool(count)] for count in counts]

    assert merge_pools([pools[place] for place in order]) == merge_pools(pools)
