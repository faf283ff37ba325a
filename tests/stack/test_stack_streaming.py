"""What passes through Envoy: a request's bytes, an answer's chunks, two messages to the service."""

import time
from collections.abc import AsyncGenerator
from pathlib import Path

import aiohttp
import pytest
import xxhash

from tests.stack.client import CHAT, ask, connect, send
from tests.stack.service import pool
from tests.stack.stack import Stack, eventually, run_stack

pytestmark = pytest.mark.envoy


async def _chunk_times(session: aiohttp.ClientSession, body: bytes) -> tuple[list[float], bytes]:
    began, times, received = time.perf_counter(), [], []
    async with session.post(CHAT, data=body, headers={"content-type": "application/json"}) as answer:
        assert answer.status == 200
        async for data in answer.content.iter_any():
            times.append(time.perf_counter() - began)
            received.append(data)
    return times, b"".join(received)


async def test_first_chunk_arrives_long_before_the_last(stack: Stack) -> None:
    async with connect(stack.url) as session:
        times, body = await _chunk_times(session, ask("stream", max_tokens=200, stream=True))

    assert body.endswith(b"data: [DONE]\n\n")
    assert times[0] < times[-1] / 2
    # Chunk by chunk: Envoy gathers nothing, the odd pair of tokens in one read aside.
    assert len(times) > 100


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(ask("plain"), id="as a library writes it"),
        pytest.param(
            b' {"messages" :[{"role":"user","content":"a\\u0041\xc3\xa9"}],\n "n":1.0}\n',
            id="spaces, escapes and a number that a parser would rewrite",
        ),
        pytest.param(
            b'{"messages":[{"role":"user","content":"x"}],"max_tokens":7,"max_tokens":1,"unknown":{"a":[1e400]}}',
            id="duplicate and unknown keys",
        ),
        pytest.param(b'{"messages":' + b"[" * 500, id="not JSON"),
    ],
)
async def test_body_arrives_byte_for_byte(stack: Stack, body: bytes) -> None:
    async with connect(stack.url) as session:
        answer = await send(session, body)

    assert answer.headers["x-simulated-body-xxh3"] == xxhash.xxh3_64_hexdigest(body)


async def test_body_sent_in_pieces_arrives_byte_for_byte(stack: Stack) -> None:
    """An upload without a content-length."""
    body = ask("chunked " * 2_000)

    async def pieces() -> AsyncGenerator[bytes]:
        for start in range(0, len(body), 1_000):
            yield body[start : start + 1_000]

    async with (
        connect(stack.url) as session,
        session.post(CHAT, data=pieces(), headers={"content-type": "application/json"}) as answer,
    ):
        assert answer.status == 200
        assert answer.headers["x-simulated-body-xxh3"] == xxhash.xxh3_64_hexdigest(body)


@pytest.mark.parametrize("max_tokens", [1, 500])
@pytest.mark.parametrize("stream", [False, True])
async def test_request_costs_two_messages(stack: Stack, max_tokens: int, stream: bool) -> None:
    """Whatever the length of the answer: headers and body go out, two replies come back."""
    before = stack.gateway.ext_proc()
    async with connect(stack.url) as session:
        answer = await send(session, ask(f"{max_tokens} {stream}", max_tokens=max_tokens, stream=stream))
    assert answer.status == 200
    assert eventually(lambda: _used(stack, before)["streams_closed"] == 1)

    assert _used(stack, before) == {
        "streams_started": 1,
        "stream_msgs_sent": 2,
        "stream_msgs_received": 2,
        "streams_closed": 1,
    }


async def test_request_without_a_body_costs_one_message(stack: Stack) -> None:
    before = stack.gateway.ext_proc()
    async with connect(stack.url) as session:
        answer = await send(session, b"", method="GET", path="/v1/models")

    assert answer.status == 200
    assert (_used(stack, before)["stream_msgs_sent"], _used(stack, before)["stream_msgs_received"]) == (1, 1)


async def test_body_that_the_pick_does_not_need_is_not_sent(tmp_path: Path) -> None:
    """With round_robin the service decides by the headers and tells Envoy to keep the body to itself."""
    with run_stack(tmp_path, pools=lambda addresses: [pool(addresses, {"name": "round_robin"})]) as stack:
        before, body = stack.gateway.ext_proc(), ask("not read " * 1_000)
        async with connect(stack.url) as session:
            answers = [await send(session, body) for _ in range(4)]
        assert eventually(lambda: _used(stack, before)["streams_closed"] == 4)

        assert _used(stack, before) == dict.fromkeys(
            ("streams_started", "stream_msgs_sent", "stream_msgs_received", "streams_closed"), 4
        )
    assert {answer.headers["x-simulated-body-xxh3"] for answer in answers} == {xxhash.xxh3_64_hexdigest(body)}
    assert {answer.served_by for answer in answers} == set(stack.addresses)


def _used(stack: Stack, before: dict[str, int]) -> dict[str, int]:
    now = stack.gateway.ext_proc()
    names = ("streams_started", "stream_msgs_sent", "stream_msgs_received", "streams_closed")
    return {name: now[name] - before[name] for name in names}
