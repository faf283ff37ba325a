"""Requests that are held: answered as if they had just come, whatever the proxy's mode; else forgotten."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace as dataclass_replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import grpc
import pytest
from envoy_data_plane.envoy.service.ext_proc.v3 import ProcessingResponse
from msgspec.structs import replace

from extproc.grpc_server.budget import Budget
from extproc.router.routing.picker import Picker
from extproc.router.routing.queue import Later, Queue, QueueEnd, QueueLimits
from extproc.router.stream import events
from extproc.router.stream.uploads import unlimited_uploads
from tests.grpc_server.calls import RecordedCall
from tests.router.stream.conversations import (
    BODY,
    BODY_BEGUN,
    BODY_SENT,
    CONVERSATIONS,
    DUPLEX,
    GATEWAYS,
    B,
    Conversation,
    Expected,
    H,
    Said,
    Went,
    agrees,
    back,
    headers,
    one_pool,
    open_session,
    part,
    summarize,
)
from tests.router.stream.served import (
    ServedProcessor,
    build_processor,
    chosen,
    receive,
    serving_processor,
)
from tests.router.stream.wire import read_response, write_request
from tests.tables import table
from tests.waiting import until

WAIT_S = 30.0
WHOLE_BYTES = 10_000_000
# What there is no room to keep does not wait either.
ROOMY = [one for one in (*CONVERSATIONS, *GATEWAYS) if one.budget_bytes == WHOLE_BYTES]


def never(_delay_s: float, _action: object) -> None:
    """The test says when the queue's turn is."""


@contextmanager
def full(picker: Picker, requests: int = 10, later: Later = never) -> Iterator[list[Queue]]:
    """Holds in all pools: they are full until `make_room`, and afterwards as they were."""
    pools = [route.pool for route in picker.routes.values()]
    limits = [pool.max_in_flight for pool in pools]
    queues = []
    for pool in pools:
        queue = Queue(
            QueueLimits(WAIT_S, requests), Budget(1 << 24), clock=lambda: 0.0, later=later
        )
        pool.hold(queue)
        pool.max_in_flight = 0
        queues.append(queue)
    try:
        yield queues
    finally:
        for pool, limit in zip(pools, limits, strict=True):
            pool.hold(None)
            pool.max_in_flight = limit


def make_room(picker: Picker, limit: int | None = None) -> None:
    for route in picker.routes.values():
        route.pool.max_in_flight = limit


def joined(parts: Iterable[Expected]) -> list[Expected]:
    """Replies with a body's pieces put together: where it was cut is nobody's business."""
    whole: list[Expected] = []
    for one in [piece for reply in parts for piece in parted(reply)]:
        last = whole[-1] if whole else None
        if (
            isinstance(one, events.Piece)
            and isinstance(last, events.Piece)
            and one.phase is last.phase
        ):
            whole[-1] = replace(one, data=bytes(last.data) + bytes(one.data))
        else:
            whole.append(one)
    return whole


def parted(reply: Expected) -> list[Expected]:
    if isinstance(reply, Went) and reply.piece is not None:
        return [dataclass_replace(reply, piece=None), *parted(reply.piece)]
    return [replace(reply, data=bytes(reply.data))] if isinstance(reply, events.Piece) else [reply]


@table("conversation", ROOMY, ids=str)
def test_a_held_request_is_answered_as_if_it_had_just_come(conversation: Conversation) -> None:
    """Every conversation that is recorded, in a full pool that has room a moment later."""
    picker, budget = conversation.picker, Budget(conversation.budget_bytes)
    limits = [route.pool.max_in_flight for route in picker.routes.values()]
    in_flight = [route.pool.book.total for route in picker.routes.values()]
    session = open_session(picker, budget=budget, pool=conversation.pool)
    given = list[Expected]()
    with full(picker) as queues:
        for event, _ in conversation.turns:
            replies = session.on(event)
            if replies and isinstance(replies[0], events.Queued):
                assert [
                    session.is_waiting,
                    session.on(events.RetryQueued()),
                    sum(map(len, queues)),
                ] == [
                    True,
                    [],
                    1,
                ]
                for route, limit in zip(picker.routes.values(), limits, strict=True):
                    route.pool.max_in_flight = limit
                replies = session.on(events.RetryQueued(is_last=True))
            given += map(summarize, replies)
        session.close()
        assert sum(map(len, queues)) == 0
    expected = joined(reply for _, replies in conversation.turns for reply in replies)

    assert len(expected) == len(joined(given)), given
    assert all(map(agrees, expected, joined(given))), given
    assert [route.pool.book.total for route in picker.routes.values()] == in_flight
    assert budget.used == 0


@table("more", [{"content_length": str(len(BODY))}, {}])
def test_a_buffered_body_is_not_kept_while_its_request_waits(more: dict[str, Any]) -> None:
    """The proxy has it; of the two budgets that of what proxies hold counts on, by its true size."""
    picker, budget, uploads = one_pool(), Budget(1_000_000), unlimited_uploads()
    with full(picker):
        session = open_session(picker, budget=budget, uploads=uploads)
        session.on(headers(**more))
        session.on(events.RequestBody(BODY))

        assert (budget.used, uploads.budget.used) == (0, len(BODY))
        session.close()
        assert uploads.budget.used == 0


@pytest.fixture(params=["native", pytest.param("grpcio", marks=pytest.mark.slow)])
def hold_transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(chosen, "transport", request.param)


@asynccontextmanager
async def serving_full() -> AsyncIterator[tuple[ServedProcessor, Queue]]:
    picker = one_pool()
    with full(picker, later=asyncio.get_running_loop().call_later) as [queue]:
        async with serving_processor(picker) as served:
            yield served, queue


GIVEN_BACK: Sequence[Expected] = [Went(H), back(BODY)]
UNTYPED = events.RequestHeaders({"content-type": "application/json"})
# What is sent, how much of it is answered before, whether we send how long it takes, and the
# answers.
OPENINGS: dict[str, tuple[Sequence[events.Event], int, bool, Sequence[Expected]]] = {
    "buffered": ([headers(), BODY_SENT], 1, True, [Went(B)]),
    "headers only": ([headers(end=True)], 0, True, [Went(H)]),
    "full duplex": (
        [headers(DUPLEX), part(BODY[:9]), events.RequestBody(BODY[9:])],
        0,
        True,
        GIVEN_BACK,
    ),
    "nginx, which tells no modes and ends its side at once": (
        [UNTYPED, BODY_SENT],
        0,
        False,
        GIVEN_BACK,
    ),
}


@pytest.mark.usefixtures("hold_transport")
@table(("opening", "answered", "is_reported", "expected"), OPENINGS.values(), ids=OPENINGS)
async def test_a_held_request_is_answered_when_there_is_room(
    opening: Sequence[events.Event], answered: int, is_reported: bool, expected: Sequence[Expected]
) -> None:
    async with serving_full() as (served, queue):
        call = await served.say(*opening)
        for _ in range(answered):
            await receive(call)
        if is_reported:
            reply = ProcessingResponse.parse(await receive(call))
            assert reply == ProcessingResponse(
                override_message_timeout=timedelta(seconds=WAIT_S + 2)
            )
        else:
            await call.done_writing()
        await until(lambda: len(queue) == 1)
        make_room(served.picker)
        queue.stir()

        assert all(map(agrees, expected, [read_response(await receive(call)) for _ in expected]))
        assert served.in_flight == 1
        if is_reported:
            await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        for _, release in served.unseen:
            release()
        assert (served.in_flight, len(queue)) == (0, 0)


@pytest.mark.usefixtures("hold_transport")
async def test_what_comes_while_a_request_waits_is_answered_behind_it() -> None:
    async with serving_full() as (served, queue):
        call = await served.say(headers(), BODY_BEGUN, events.RequestTrailers())
        await receive(call)
        await receive(call)
        await until(lambda: len(queue) == 1)
        make_room(served.picker)
        queue.stir()
        replies = [read_response(await receive(call)) for _ in range(2)]
        await call.done_writing()

    assert isinstance(replies[0], Went)
    assert getattr(replies[1], "phase", None) is events.Phase.REQUEST_TRAILERS


@pytest.mark.usefixtures("hold_transport")
async def test_an_abort_while_a_request_waits_takes_it_out_of_the_queue() -> None:
    async with serving_full() as (served, queue):
        calls = [await served.say(headers(end=True)) for _ in range(3)]
        await until(lambda: len(queue) == 3)
        calls[1].cancel()
        await until(lambda: len(queue) == 2)

        assert sum(queue.stays[QueueEnd.ABORTED].counts) == 1
        make_room(served.picker)
        queue.stir()
        await until(lambda: served.in_flight == 2)
        for call in calls:
            call.cancel()
        await until(lambda: served.in_flight == 0)


@pytest.mark.usefixtures("hold_transport")
async def test_the_last_word_of_a_queue_is_the_refusal() -> None:
    async with serving_full() as (served, queue):
        call = await served.say(headers(end=True))
        await receive(call)
        await until(lambda: len(queue) == 1)
        queue.shut()
        answer = read_response(await receive(call))
        await call.done_writing()
        counted = served.sample("extproc_requests_total", pool="llama", outcome="overloaded")

    assert isinstance(answer, Said)
    assert (answer.status, answer.code, answer.retry_after, counted) == (429, "overloaded", "1", 1)


def test_held_requests_stay_bounded() -> None:
    """What comes beyond is refused; what waits is small; each leaves once, a few in each turn of the loop."""
    picker, count, more = one_pool(), 1_000, 50
    processor = build_processor(picker, later=never)
    message, turns = write_request(headers(end=True)), list[Callable[[], None]]()
    calls = [RecordedCall() for _ in range(count + more)]
    with full(picker, count, lambda _, action: turns.append(action)) as [queue]:
        handlers = [processor.open(call) for call in calls]
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for handler in handlers[:500]:
            handler.on_message(message)
        bytes_each = (tracemalloc.get_traced_memory()[0] - before) / 500
        tracemalloc.stop()
        for handler in handlers[500:]:
            handler.on_message(message)
        held = len(queue)
        make_room(picker)
        turns.clear()
        queue.stir()
        left = []
        while turns:
            turns.pop(0)()
            left.append(held - len(queue))
        counts = [len(call.sent) for call in calls]
        for handler in handlers:
            handler.on_close()

    assert held == count
    assert counts == [2] * count + [1] * more  # how long it takes, and where to; or no
    assert max(after - before for before, after in pairwise([0, *left])) <= 100
    assert bytes_each < 5_000
    assert picker.routes["llama"].pool.book.total == 0


@table(
    ("more_headers", "waits_s"),
    [
        ({}, 30),
        ({"x-llm-d-inference-ttl": "1500ms"}, 1.5),
        ({"x-llm-d-inference-ttl": "90s"}, 30),
        ({"x-llm-d-inference-ttl": "soon"}, 30),
        ({"x-llm-d-inference-objective": "batch"}, 300),
        ({"x-gateway-inference-objective": "batch", "x-llm-d-inference-ttl": "1m30s"}, 90),
    ],
)
def test_a_request_waits_as_long_as_its_objective_and_its_own_word_allow(
    more_headers: dict[str, str], waits_s: float
) -> None:
    picker = one_pool(())
    with full(picker) as [queue]:
        queue.limits.wait_s_by_objective = {"batch": 300}
        session = open_session(picker)
        [held] = session.on(
            replace(
                headers(end=True), headers={":method": "GET", ":path": "/v1/models"} | more_headers
            )
        )
        session.close()

    assert isinstance(held, events.Queued)
    assert held.wait_s == waits_s


@table("mode", [events.BodyMode.BUFFERED, DUPLEX])
def test_a_held_request_without_room_in_time_gets_todays_refusal(mode: events.BodyMode) -> None:
    picker = one_pool(())
    with full(picker):
        session = open_session(picker)
        session.on(headers(mode))
        [held] = session.on(events.RequestBody(BODY))
        [answer] = session.on(events.RetryQueued(is_last=True))

    assert isinstance(held, events.Queued)
    assert isinstance(answer, events.Answer)
    assert (answer.status, answer.outcome, answer.headers["retry-after"]) == (
        503,
        "no_endpoint",
        "1",
    )
