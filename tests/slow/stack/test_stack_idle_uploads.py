"""Uploads that stop take nothing from others: the shipped Envoy, its real sizes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from extproc.router.stream.uploads import LATE_S
from tests.stack.client import CHAT, MODEL, Answer, chat_about, connect, send
from tests.stack.service import pool
from tests.stack.stack import Stack
from tests.tables import table

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(240)]

MB = 1_000_000
ANNOUNCED = 48 * MB
# What a stopped upload sends: its framing, and how much of its body.
KINDS = {
    "announced, nothing sent": (f"content-length: {ANNOUNCED}", b""),
    "chunked, one byte": ("transfer-encoding: chunked", b"1\r\n{\r\n"),
    "announced, half sent": (f"content-length: {16 * MB}", b" " * (8 * MB)),
}


async def stop_halfway(stack: Stack, framing: str, part: bytes) -> asyncio.StreamWriter:
    port = int(stack.url.rpartition(":")[2])
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: vllm\r\n{framing}\r\n\r\n".encode() + part)
    # Envoy may cut it, or read no more of it.
    with suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.drain(), 5)
    return writer


@asynccontextmanager
async def stopped_uploads(stack: Stack, kind: str, count: int) -> AsyncGenerator[None]:
    writers = [await stop_halfway(stack, *KINDS[kind]) for _ in range(count)]
    try:
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


async def chunks(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def send_chunked(stack: Stack, body: bytes) -> Answer:
    async with connect(stack.url) as session:
        headers = {"content-type": "application/json"}
        async with session.post(CHAT, data=chunks(body), headers=headers) as answer:
            return Answer(answer.status, await answer.read(), {**answer.headers})


async def send_whole(stack: Stack, body: bytes) -> Answer:
    async with connect(stack.url) as session:
        return await send(session, body)


@table("count", [4, 64, 1_000])
@table("kind", KINDS)
@table("pools", [1, 2])
async def test_uploads_that_stop_take_no_room_from_others(
    stack: Stack, pools: int, kind: str, count: int
) -> None:
    """1. Uploads stop. 2. Short, long and very long requests of others come, half of them chunked."""
    second = pool(stack.addresses[2:], name="b", models=["b"])
    if pools == 2:
        stack.use(pool(stack.addresses[:2], models=[MODEL]), second)
    about = [f"{number} of {pools} {kind} {count} " + "word " * 500 for number in range(3)]
    fillers = ("", "x" * 200_000, "x" * 2 * MB)
    bodies = [chat_about(text, user=filler) for text, filler in zip(about, fillers, strict=True)]
    async with stopped_uploads(stack, kind, count):
        await asyncio.sleep(LATE_S)
        answers = [
            [await each(stack, body) for each in (send_whole, send_chunked) * 3] for body in bodies
        ]

    for same in answers:
        assert [answer.status for answer in same] == [200] * 6
        assert len({answer.served_by for answer in same}) == 1  # by their prefix
