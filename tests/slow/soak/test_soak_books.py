"""The books agree when nothing is lost, and every lost or doubled entry is found."""

from dataclasses import replace
from typing import Any

from tests.slow.soak import books as ours
from tests.tables import table

ENDPOINT = "127.0.0.1:1"
DISCONNECTED = "upstream_reset_before_response_started{connection_termination}"


def client_entry(name: str = "a", **fields: Any) -> ours.ClientEntry:
    return replace(ours.ClientEntry(name, 0, 10.0, 11.0, ours.End.WHOLE, 200), **fields)


def gateway_entry(name: str = "a", **fields: Any) -> ours.GatewayEntry:
    return replace(
        ours.GatewayEntry(name, 0, 10.0, 11.0, 200, picked="one", served_by=ENDPOINT), **fields
    )


def decision_entry(name: str = "a", **fields: Any) -> ours.DecisionEntry:
    return replace(ours.DecisionEntry(name, 0, 10.1, "one"), **fields)


def endpoint_entry(name: str = "a", **fields: Any) -> ours.EndpointEntry:
    return replace(ours.EndpointEntry(name, ENDPOINT, 10.2, 10.9, 200), **fields)


def good(*names: str) -> ours.Books:
    return ours.Books(
        [*map(client_entry, names)],
        [*map(gateway_entry, names)],
        [*map(decision_entry, names)],
        [*map(endpoint_entry, names)],
        [],
    )


def away(part: str, from_s: float = 10.5, until_s: float = 13.0) -> ours.Outage:
    return ours.Outage(part, from_s, until_s)


def test_four_books_of_the_same_requests_agree() -> None:
    balance = ours.reconcile(good("a", "b", "c"))

    assert (balance.faults, balance.excused.total(), balance.counts["clients: whole"]) == ([], 0, 3)


@table("book", ["asked", "lines", "picked", "served"])
def test_an_entry_that_is_lost_from_any_book_or_twice_in_it_is_found(book: str) -> None:
    books = good("a", "b", "c")
    first, *others = getattr(books, book)

    assert not ours.reconcile(replace(books, **{book: others})).is_even
    assert len(ours.reconcile(replace(books, **{book: [first, *others, first]})).faults) == 1


def but(**books: Any) -> ours.Books:
    """Books that agree, but for these."""
    return replace(good("a"), **books)


NEVER_ENDED = endpoint_entry(ended_s=None, status=None)
NO_ANSWER = gateway_entry(status=503, details=DISCONNECTED)
REFUSED = ours.Books([client_entry(end=ours.End.REFUSED)], [], [], [], [])
PASSED_BY = but(lines=[gateway_entry(picked="")], picked=[])
WRONG = {
    "different statuses": but(asked=[client_entry(status=500)]),
    "statuses differ": but(served=[endpoint_entry(status=500)]),
    "of another gateway": but(asked=[client_entry(gateway=1)]),
    "was another one": but(picked=[decision_entry(endpoint="two")]),
    "of another endpoint": but(served=[endpoint_entry(endpoint="other")]),
    "broke off": but(asked=[client_entry(end=ours.End.BROKEN)]),
    "own answer, 503": but(asked=[client_entry(status=503)], lines=[NO_ANSWER], served=[]),
    "of what was refused": REFUSED,
    "passed by": PASSED_BY,
    "without an end": but(served=[NEVER_ENDED]),
}


@table(("fault", "books"), WRONG.items())
def test_what_disagrees_is_reported(fault: str, books: ours.Books) -> None:
    assert any(fault in fault_text for fault_text in ours.reconcile(books).faults)


EXCUSED = {
    "a client whose Envoy was killed": (
        but(asked=[client_entry(end=ours.End.BROKEN)], lines=[]),
        away("envoy 0"),
    ),
    "a line that was not written yet": (but(lines=[]), away("envoy 0", 11.5)),
    "nobody listened": (REFUSED, away("envoy 0")),
    "the service was away": (PASSED_BY, away("service 0")),
    "the endpoint was killed": (
        but(
            asked=[client_entry(end=ours.End.BROKEN)],
            lines=[gateway_entry(details=DISCONNECTED)],
            served=[NEVER_ENDED],
        ),
        away(ENDPOINT),
    ),
}


@table(("books", "outage"), EXCUSED.values(), ids=EXCUSED)
def test_what_is_missing_by_an_outage_is_excused_and_only_by_that_one(
    books: ours.Books, outage: ours.Outage
) -> None:
    """Not by one of another part, nor by one at another time."""
    elsewhere = replace(outage, part="somebody else")
    earlier, later = (
        replace(outage, from_s=1.0, until_s=2.0),
        replace(outage, from_s=101.0, until_s=102.0),
    )
    excused = ours.reconcile(replace(books, outages=[outage]))

    assert (excused.faults, excused.excused.total() > 0) == ([], True)
    for other in (elsewhere, earlier, later):
        assert not ours.reconcile(replace(books, outages=[other])).is_even


def test_a_pick_may_be_missing_where_its_client_left_or_late_by_the_gateways_patience() -> None:
    left = but(
        asked=[client_entry(end=ours.End.LEFT)],
        lines=[gateway_entry(picked="", flags="DC")],
        served=[],
    )
    late, soon = (
        but(lines=[gateway_entry(picked="", ended_s=ended_s)]) for ended_s in (13.0, 12.9)
    )

    assert [ours.reconcile(books).is_even for books in (left, late, soon)] == [True, True, False]


@table(
    ("counted", "logged", "is_last", "is_good"),
    [
        (7, 7, True, True),
        (7, 8, True, False),
        (8, 7, True, False),
        (7, 9, False, True),
        (8, 7, False, False),
    ],
)
def test_a_count_is_that_of_the_log_or_of_a_life_that_was_ended_at_most(
    counted: int, logged: int, is_last: bool, is_good: bool
) -> None:
    fault = ours.compare_counts(ours.Tally("service 0", 0, counted, is_last), logged)

    assert (fault == "") is is_good
