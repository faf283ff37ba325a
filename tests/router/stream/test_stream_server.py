"""The gRPC service over a real socket: the conversations again, and every way a stream can end."""

import asyncio
import logging
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import grpc
import grpc.aio
import orjson
import pytest
from hpack import Encoder

from extproc.grpc_server import frames
from extproc.grpc_server.budget import Budget
from extproc.grpc_server.calls import Status
from extproc.router.routing.picker import Picker
from extproc.router.stream.events import (
    BodyMode,
    Continue,
    Event,
    Phase,
    Piece,
    RequestBody,
    RequestHeaders,
    ResponseHeaders,
)
from extproc.router.stream.held_body import PIECE_BYTES
from extproc.router.stream.names import PROCESS
from extproc.router.telemetry import Metrics
from tests.grpc_server.calls import RecordedCall
from tests.router.routing.fleet import CHAT, Fleet, ask, words
from tests.router.stream.conversations import (
    ADDRESSES,
    BODY,
    CONVERSATIONS,
    GATEWAYS,
    MAX_BODY_BYTES,
    Conversation,
    Went,
    agrees,
    full_pool,
    headers,
    no_endpoints,
    one_pool,
    picks_in_flight,
)
from tests.router.stream.served import (
    UNSEEN_S,
    build_processor,
    chosen,
    reader,
    receive,
    serving_processor,
)
from tests.router.stream.wire import read_response, write_request
from tests.tables import table
from tests.waiting import until

GRPCIO = [pytest.param(name, marks=pytest.mark.slow) for name in ("grpcio", "grpcio, apart")]


@pytest.fixture(autouse=True, params=["native", "native, apart", *GRPCIO])
def stream_transport(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    name, _, apart = request.param.partition(", ")
    monkeypatch.setitem(chosen, "transport", name)
    with ThreadPoolExecutor(1) as executor:
        if apart:
            monkeypatch.setattr("extproc.router.routing.picker.is_large", lambda _: True)
            monkeypatch.setitem(reader, "reader", executor)
        yield


@pytest.mark.parametrize("conversation", [*CONVERSATIONS, *GATEWAYS], ids=str)
async def test_conversation_goes_as_recorded_over_a_socket(conversation: Conversation) -> None:
    async with serving_processor(conversation.picker, Budget(conversation.budget_bytes)) as served:
        before = served.in_flight
        call = served.open(conversation.pool)
        for event, expected in conversation.turns:
            await call.write(write_request(event))
            for reply in expected:
                actual = read_response(await receive(call))
                assert agrees(reply, actual), actual
        await call.done_writing()

        assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]  # not in the stubs
        assert await call.code() is grpc.StatusCode.OK
        assert served.in_flight == before + conversation.goes_unseen
        for delay_s, release in served.unseen:
            assert delay_s == UNSEEN_S
            release()
        assert served.in_flight == before


@table("size_bytes", [0, 1, 62_000, 190_000])
async def test_nginx_hears_every_answer_after_its_last_word(size_bytes: int) -> None:
    """It sends both messages, ends its side, and only then reads, to the end."""
    body = b"x" * size_bytes
    async with serving_processor(one_pool()) as served:
        call = await served.say(
            RequestHeaders({"content-type": "application/json"}), RequestBody(body)
        )
        await call.done_writing()
        first, *pieces = [read_response(message) async for message in call]

        assert isinstance(first, Went)
        assert first.phase is Phase.REQUEST_HEADERS
        assert b"".join(piece.data for piece in pieces if isinstance(piece, Piece)) == body
        assert await call.code() is grpc.StatusCode.OK
        assert len(served.unseen) == served.in_flight == 1


async def test_two_hundred_aborts_at_any_point_leave_nothing() -> None:
    async with serving_processor(one_pool()) as served:
        for number in range(200):
            call = await served.say(headers(end=number % 2 == 0))
            if number % 3:
                await call.read()
            call.cancel()
        await served.until_idle()

        assert served.in_flight == 0


@table("message", [b"\xff\xff\xff", b"", b"\x5a\x00"])
async def test_what_is_no_message_ends_the_stream_with_a_clear_status(message: bytes) -> None:
    async with serving_processor(one_pool()) as served:
        call = served.open()
        await call.write(message)

        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "ProcessingRequest" in (await call.details() or "")
        assert served.sample("extproc_stream_errors_total", why="protocol") == 1


async def test_the_log_has_each_request_by_its_id(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "extproc.router.stream")
    async with serving_processor(one_pool()) as served:
        await served.ask(headers(x_request_id="id-1"), RequestBody(BODY))

        [line] = [
            record.getMessage()
            for record in caplog.records
            if record.name.startswith("extproc.router.stream")
        ]
        assert line.startswith("routed id-1 to <Pick ")


async def test_an_unforeseen_failure_shows_nothing_of_the_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the prompt says: secret")

    async with serving_processor(one_pool()) as served:
        call, _ = await served.ask(headers())
        monkeypatch.setattr(served.picker, "pick", fail)
        await call.write(write_request(RequestBody(BODY)))

        assert await call.code() is grpc.StatusCode.INTERNAL
        assert await call.details() == "internal error"
        assert "secret" not in caplog.text
        assert served.sample("extproc_stream_errors_total", why="internal") == 1
        await served.until_idle()


async def test_a_failure_after_the_pick_releases_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: object) -> bytes:
        raise RuntimeError("cannot be written")

    async with serving_processor(one_pool()) as served:
        monkeypatch.setattr("extproc.router.stream.server.encode", fail)
        call = await served.say(headers(end=True))

        assert await call.code() is grpc.StatusCode.INTERNAL
        await served.until_idle()
        assert served.in_flight == 0


async def test_a_stop_of_the_server_releases_the_request() -> None:
    async with serving_processor(one_pool()) as served:
        call, _ = await served.ask(headers(end=True))
        assert served.in_flight == served.processor.streams_open == 1

        await served.server.stop()
        assert await call.code() is not grpc.StatusCode.OK
        await served.until_idle()

        assert served.in_flight == 0


async def test_a_killed_proxy_releases_its_requests() -> None:
    """Its connection ends without a word of HTTP/2."""
    fields = (":method", "POST"), (":scheme", "http"), (":path", PROCESS), (":authority", "x")
    block = Encoder().encode([*fields, ("content-type", "application/grpc"), ("te", "trailers")])
    async with serving_processor(one_pool()) as served:
        _, proxy = await asyncio.open_connection(*served.target.split(":"))
        proxy.write(
            frames.PREFACE + frames.settings({}) + frames.frame(frames.HEADERS, 4, 1, block)
        )
        proxy.write(frames.message_frame(1, write_request(headers(end=True))))
        await until(lambda: served.in_flight == 1)

        proxy.transport.abort()
        await served.until_idle()

        assert served.in_flight == 0


async def test_a_sole_pool_serves_whatever_pool_a_stream_names() -> None:
    async with serving_processor(one_pool()) as served:
        _, went = await served.ask(headers(end=True), pool="other")

        assert isinstance(went, Went)


async def test_picks_served_elsewhere_are_counted() -> None:
    async with serving_processor(one_pool()) as served:
        for address in (*ADDRESSES, None):
            routed = headers(end=True, subset=["10.0.0.1:8000"])
            call, _ = await served.ask(routed, ResponseHeaders(served=address))
            await call.done_writing()
        await served.until_idle()

        assert served.sample("extproc_picks_served_elsewhere_total", pool="llama") == 2
        assert served.in_flight == 0


ASKED = headers(), RequestBody(BODY)
NO_JSON, TOO_LARGE = (
    (headers(), RequestBody(body)) for body in (b"not JSON", b"x" * (MAX_BODY_BYTES + 1))
)
ROUTED = {"pool": "llama", "outcome": "routed"}
# The requests, and what is counted once.
COUNTED: list[tuple[Callable[[], Picker], Sequence[Event], str, dict[str, str]]] = [
    (
        one_pool,
        ASKED,
        "picks_total",
        {"pool": "llama", "strategy": "prefix_hash", "reason": "home"},
    ),
    (one_pool, ASKED, "requests_total", ROUTED),
    (one_pool, ASKED, "pick_duration_seconds_count", {}),
    (one_pool, ASKED, "streams_open", {}),
    (one_pool, NO_JSON, "prompt_errors_total", {"why": "PromptError"}),
    (one_pool, NO_JSON, "requests_total", ROUTED),
    (one_pool, TOO_LARGE, "requests_total", {"pool": "", "outcome": "body_too_large"}),
    # A refusal is counted under the pool that refused.
    (no_endpoints, [headers(end=True)], "requests_total", ROUTED | {"outcome": "no_endpoint"}),
    (full_pool, [headers(end=True)], "requests_total", ROUTED | {"outcome": "overloaded"}),
]


@table(("build", "asked", "name", "labels"), COUNTED)
async def test_requests_are_counted(
    build: Callable[[], Picker], asked: Sequence[Event], name: str, labels: dict[str, str]
) -> None:
    async with serving_processor(build()) as served:
        await served.ask(*asked)

        assert served.sample(f"extproc_{name}", **labels) == 1


# Pieces of a body that is given back: 2 MB.
MOST_AT_ONCE = 32


def test_a_skipped_body_is_routed_without_and_counted() -> None:
    metrics, call = Metrics(), RecordedCall()
    processor = build_processor(one_pool(), metrics)
    handler = processor.open(call)
    handler.on_message(write_request(headers()))
    handler.on_skipped(10_000_000)

    acknowledged, went = map(read_response, call.sent)

    assert acknowledged == Continue(Phase.REQUEST_HEADERS)
    assert agrees(Went(Phase.REQUEST_BODY), went)
    assert metrics.registry.get_sample_value("extproc_prompt_errors_total", {"why": "budget"}) == 1

    handler.on_half_close()
    handler.on_close()

    assert call.status is Status.OK
    assert processor.streams_open == 0


@table("is_cut", [False, True])
async def test_a_long_body_is_given_back_a_few_pieces_a_turn(is_cut: bool) -> None:
    """No turn of the loop has more than 2 MB of it; what comes meanwhile is handled after it."""
    call, body = RecordedCall(), bytes(range(256)) * 40_000
    handler = build_processor(one_pool(), max_body_bytes=1 << 24).open(call)
    handler.on_message(write_request(headers(BodyMode.FULL_DUPLEX_STREAMED)))
    handler.on_message(write_request(RequestBody(body)))
    handler.on_message(write_request(ResponseHeaders()))
    turns: list[int] = []
    while len(turns) < 20:
        turns.append(len(call.sent))
        if is_cut and len(turns) == 3:
            handler.on_close()
        await asyncio.sleep(0)
    replies = [read_response(message) for message in call.sent]

    assert max(after - before for before, after in pairwise([0, *turns])) <= MOST_AT_ONCE
    if is_cut:
        assert turns[2] == turns[-1] < len(body) // PIECE_BYTES
        return
    pieces = [reply for reply in replies if isinstance(reply, Piece)]
    assert body == b"".join(piece.data for piece in pieces)
    assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert isinstance(replies[0], Went)
    assert replies[-1] == Continue(Phase.RESPONSE_HEADERS)


async def test_a_request_that_goes_unseen_counts_for_its_time_and_no_longer() -> None:
    picker = one_pool()
    handler = build_processor(picker, unseen_s=0.01).open(RecordedCall())
    handler.on_message(write_request(RequestHeaders({}, end_of_stream=True)))
    handler.on_half_close()
    handler.on_close()

    assert picks_in_flight(picker) == 1

    await until(lambda: picks_in_flight(picker) == 0)


def test_requests_that_go_unseen_count_as_long_as_requests_take_and_stay_at_their_home() -> None:
    """Thirty equal prompts, five a second, each of which takes 0.4 s. At 10 s each they went astray."""
    fleet, due = Fleet("abcdefgh"), list[tuple[float, Callable[[], None]]]()
    fleet.pool.note_duration(0.4)
    processor = build_processor(
        fleet.picker,
        later=lambda delay_s, action: due.append((fleet.clock.now_s + delay_s, action)),
    )
    homes, most = set[str | None](), 0
    for _ in range(30):
        handler = processor.open(call := RecordedCall())
        handler.on_message(write_request(RequestHeaders({":path": CHAT}, end_of_stream=False)))
        handler.on_message(
            write_request(RequestBody(ask(words("Why?", 2_000)).body or b"", end_of_stream=True))
        )
        answer = read_response(call.sent[0])
        assert isinstance(answer, Went)
        homes.add(answer.address)
        handler.on_half_close()
        handler.on_close()
        most = max(most, fleet.pool.book.total)
        fleet.clock.now_s += 0.2
        while due and due[0][0] <= fleet.clock.now_s:
            due.pop(0)[1]()

    assert most <= 3
    assert len(homes) == 1


def test_an_open_stream_is_small_and_holds_nothing_of_its_request() -> None:
    """The session and its handler; the transport's share is its own."""
    count, call = 500, RecordedCall()
    processor = build_processor(one_pool())
    handlers = []

    def open_stream(number: int) -> None:
        handlers.append(processor.open(call))
        body = orjson.dumps({"model": "llama", "prompt": f"{number}" * 1_000})
        for event in (headers(x_user=f"{number}" * 1_000), RequestBody(body)):
            handlers[-1].on_message(write_request(event))
        call.sent.clear()

    open_stream(-1)  # what all streams share is made once
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(count):
        open_stream(number)
    held_bytes = (tracemalloc.get_traced_memory()[0] - before) / count
    tracemalloc.stop()

    assert held_bytes < 700


async def test_drained_waits_for_the_last_stream() -> None:
    async with serving_processor(one_pool()) as served:
        await served.processor.drained()
        call, _ = await served.ask(headers(end=True))
        waiting = asyncio.create_task(served.processor.drained())
        await asyncio.sleep(0)

        assert not waiting.done()

        await call.done_writing()
        await waiting
