"""The books agree when nothing is lost, and every lost or doubled entry is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.slow.soak.books import (
    Asked,
    Books,
    End,
    Line,
    Outage,
    Picked,
    Served,
    Tally,
    compare_counts,
    reconcile,
)

ENDPOINT = "127.0.0.1:1"
DISCONNECTED = "upstream_reset_before_response_started{connection_termination}"


def asked(name: str = "a", **fields: Any) -> Asked:
    return replace(Asked(name, 0, 10.0, 11.0, End.WHOLE, 200), **fields)


def line(name: str = "a", **fields: Any) -> Line:
    return replace(Line(name, 0, 10.0, 11.0, 200, picked="one", served_by=ENDPOINT), **fields)


def picked(name: str = "a", **fields: Any) -> Picked:
    return replace(Picked(name, 0, 10.1, "one"), **fields)


def served(name: str = "a", **fields: Any) -> Served:
    return replace(Served(name, ENDPOINT, 10.2, 10.9, 200), **fields)


def good(*names: str) -> Books:
    return Books(
        [asked(name) for name in names],
        [line(name) for name in names],
        [picked(name) for name in names],
        [served(name) for name in names],
        [],
    )


def away(part: str, from_s: float = 10.5, until_s: float = 13.0) -> list[Outage]:
    return [Outage(part, from_s, until_s)]


def test_four_books_of_the_same_requests_agree() -> None:
    balance = reconcile(good("a", "b", "c"))

    assert (balance.faults, balance.excused.total(), balance.counts["clients: whole"]) == ([], 0, 3)


@pytest.mark.parametrize("book", ["asked", "lines", "picked", "served"])
def test_an_entry_lost_from_any_book_is_found(book: str) -> None:
    books = good("a", "b", "c")
    lost = replace(books, **{book: getattr(books, book)[1:]})

    assert not reconcile(lost).is_even


@pytest.mark.parametrize("book", ["asked", "lines", "picked", "served"])
def test_an_entry_that_is_twice_in_any_book_is_found(book: str) -> None:
    books = good("a", "b", "c")
    doubled = replace(books, **{book: [*getattr(books, book), getattr(books, book)[0]]})

    assert len(reconcile(doubled).faults) == 1


WRONG: dict[str, tuple[str, Callable[[], Books]]] = {
    "another status at the client": (
        "different statuses",
        lambda: replace(good("a"), asked=[asked(status=500)]),
    ),
    "another status at the endpoint": (
        "statuses differ",
        lambda: replace(good("a"), served=[served(status=500)]),
    ),
    "another gateway": ("of another gateway", lambda: replace(good("a"), asked=[asked(gateway=1)])),
    "another pick": ("was another one", lambda: replace(good("a"), picked=[picked(endpoint="two")])),
    "another endpoint": (
        "of another endpoint",
        lambda: replace(good("a"), served=[served(endpoint="other")]),
    ),
    "a broken answer": ("broke off", lambda: replace(good("a"), asked=[asked(end=End.BROKEN)])),
    "Envoy's own failure": (
        "own answer, 503",
        lambda: replace(
            good("a"), asked=[asked(status=503)], lines=[line(status=503, details=DISCONNECTED)], served=[]
        ),
    ),
    "nobody listened, and nobody was away": (
        "of what was refused",
        lambda: Books([asked(end=End.REFUSED)], [], [], [], []),
    ),
    "passed by": ("passed by", lambda: replace(good("a"), lines=[line(picked="")], picked=[])),
    "never ended": ("without an end", lambda: replace(good("a"), served=[served(ended_s=None, status=None)])),
}


@pytest.mark.parametrize(("fault", "build"), WRONG.values(), ids=WRONG)
def test_what_disagrees_is_told(fault: str, build: Callable[[], Books]) -> None:
    assert any(fault in told for told in reconcile(build()).faults)


EXCUSED: dict[str, tuple[Books, list[Outage]]] = {
    "a client whose Envoy was killed": (
        Books([asked(end=End.BROKEN)], [], [picked()], [served()], []),
        away("envoy 0"),
    ),
    "a line that was not written yet": (
        Books([asked()], [], [picked()], [served()], []),
        away("envoy 0", 11.5),
    ),
    "nobody listened": (Books([asked(end=End.REFUSED)], [], [], [], []), away("envoy 0")),
    "the service was away": (replace(good("a"), lines=[line(picked="")], picked=[]), away("service 0")),
    "the endpoint was killed": (
        Books(
            [asked(end=End.BROKEN)],
            [line(details=DISCONNECTED)],
            [picked()],
            [served(ended_s=None, status=None)],
            [],
        ),
        away(ENDPOINT),
    ),
}


@pytest.mark.parametrize(("books", "outages"), EXCUSED.values(), ids=EXCUSED)
def test_what_is_missing_by_an_outage_is_excused_and_only_by_that_one(
    books: Books, outages: list[Outage]
) -> None:
    """Not by one of another part, nor by one at another time."""
    [outage] = outages
    elsewhere = replace(outage, part="somebody else")
    earlier, later = replace(outage, from_s=1.0, until_s=2.0), replace(outage, from_s=101.0, until_s=102.0)
    excused = reconcile(replace(books, outages=outages))

    assert (excused.faults, excused.excused.total() > 0) == ([], True)
    for other in (elsewhere, earlier, later):
        assert not reconcile(replace(books, outages=[other])).is_even


def test_a_client_that_left_may_be_passed_by() -> None:
    left = replace(good("a"), asked=[asked(end=End.LEFT)], lines=[line(picked="", flags="DC")], served=[])

    assert reconcile(left).is_even


def test_a_pick_may_be_late_only_by_the_gateways_patience() -> None:
    late = replace(good("a"), lines=[line(picked="", ended_s=13.0)])
    soon = replace(good("a"), lines=[line(picked="", ended_s=12.9)])

    assert (reconcile(late).is_even, reconcile(soon).is_even) == (True, False)


@pytest.mark.parametrize(
    ("counted", "told", "is_last", "is_good"),
    [(7, 7, True, True), (7, 8, True, False), (8, 7, True, False), (7, 9, False, True), (8, 7, False, False)],
)
def test_a_count_is_that_of_the_log_or_of_a_life_that_was_ended_at_most(
    counted: int, told: int, is_last: bool, is_good: bool
) -> None:
    fault = compare_counts(Tally("service 0", 0, counted, is_last), told)

    assert (fault == "") is is_good
