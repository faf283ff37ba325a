"""Requests that a proxy only shows: who served them, and that they are answered by nobody here."""

from collections.abc import Sequence

import pytest

from extproc.grpc_server.budget import Budget
from extproc.router.routing.picker import Picker
from extproc.router.stream import events
from extproc.router.stream.session import Session
from tests.router.routing.fleet import ask, words
from tests.router.shadow.watched import WatchedFleet
from tests.router.stream.conversations import headers, open_session

TEXT = bytes(ask(words("hello", 500)).body or b"")
A = "10.0.0.97:80"


def answered_by(served: str | None = A, status: int = 200) -> events.ResponseHeaders:
    return events.ResponseHeaders(served, status=status)


def watch(session: Session, *shown: events.Event) -> None:
    for event in shown:
        assert session.on(events.Observed(event)) == []


def body(data: bytes, *, end: bool = True) -> events.RequestBody:
    return events.RequestBody(data, end_of_stream=end)


def test_a_shown_request_counts_where_it_was_served_until_its_stream_ends() -> None:
    fleet = WatchedFleet()
    session = open_session(fleet.picker)
    pieces = [body(TEXT[:100], end=False), body(TEXT[100:], end=False), body(b"")]
    watch(session, headers(x_request_id="1"), *pieces, answered_by())
    assert fleet.pool.book.counts() == {"a": 1, "b": 0, "c": 0, "d": 0}
    fleet.clock.now_s += 3
    session.close()
    session.close()

    assert fleet.pool.book.total == 0
    assert fleet.shadow.seen.watched == 1
    assert fleet.shadow.is_watching
    # The index is warm when the pool begins to route.
    assert fleet.pick(words("hello", 500)).endpoint.name == "a"


@pytest.mark.parametrize(
    "shown",
    [
        [headers(method="GET", end=True), answered_by()],
        [headers(), body(b"x" * 300_000), answered_by()],
        [headers(), body(TEXT), answered_by(status=503)],
        [headers(), events.BodySkipped(), body(b""), answered_by()],
        [body(TEXT), answered_by()],
        [headers(), body(b"no json"), answered_by()],
        [headers(), answered_by(), body(TEXT)],
        [headers(), body(TEXT), answered_by(served="6.6.6.6:1")],
        [headers(), body(TEXT), answered_by(served=None)],
        [headers(), headers(), answered_by(), answered_by()],
        [headers(), body(TEXT), headers(), body(TEXT)],
    ],
)
def test_what_cannot_be_watched_is_left_alone(shown: Sequence[events.Event]) -> None:
    fleet, budget = WatchedFleet(), Budget(1_000_000)
    session = open_session(fleet.picker, budget=budget)
    watch(session, *shown)
    session.close()

    assert fleet.pool.book.total == 0
    assert not fleet.shadow.has_requests
    assert budget.used == 0


def test_where_nobody_watches_a_shown_body_is_not_even_kept() -> None:
    fleet, budget = WatchedFleet(), Budget(1_000_000)
    fleet.pool.watcher = None
    watch(open_session(fleet.picker, budget=budget), headers(), body(TEXT, end=False))

    assert budget.used == 0


def test_a_long_body_is_read_apart() -> None:
    fleet = WatchedFleet()
    session = open_session(fleet.picker, reads_apart=True)
    watch(session, headers())
    [reading] = session.on(events.Observed(body(TEXT.replace(b"word", b"word " * 60))))
    assert isinstance(reading, events.BodyToRead)
    assert session.on(events.BodyRead(reading.find())) == []
    watch(session, answered_by())

    assert fleet.pool.book.in_flight("a") == 1


def test_a_request_that_we_are_asked_to_route_cannot_become_a_shown_one() -> None:
    fleet = WatchedFleet()
    session = open_session(Picker(fleet.picker.routes.values()))
    session.on(headers())
    watch(session, headers(), body(TEXT), answered_by())

    assert fleet.shadow.seen.watched == 0
