"""Uploads that stop take nothing from others: the shipped Envoy, its real sizes."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic

import pytest

from extproc.router.feedback.cooling import Rules
from extproc.router.stream.uploads import LATE_S
from tests.stack.client import CHAT, MODEL, Answer, chat_about, connect, send, statuses
from tests.stack.figures import show_figures
from tests.stack.service import pool
from tests.stack.stack import Stack, states
from tests.tables import table
from tests.waiting import until

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(240)]

MB = 1_000_000
ANNOUNCED = 48 << 20  # the largest: four of them fill what is counted
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
    try:
        # Envoy may cut it, or read no more of it.
        with suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.drain(), 5)
    except asyncio.CancelledError:
        writer.transport.abort()
        raise
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


async def is_served(stack: Stack) -> bool:
    return (await send_whole(stack, chat_about("any"))).status == 200


async def ask_all(stack: Stack, pools: int, kind: str, fillers: Sequence[str]) -> None:
    """Each of these bodies six times, half of them chunked: all are answered, equal ones by one endpoint."""
    about = [f"{number} of {pools} {kind} " + "word " * 500 for number in range(len(fillers))]
    for text, filler in zip(about, fillers, strict=True):
        body = chat_about(text, user=filler)
        answers = [await each(stack, body) for each in (send_whole, send_chunked) * 3]

        what = f"beside uploads that stop, {pools} pools, {kind}, {len(filler):,} bytes"
        show_figures(what, statuses(answers)[200], len(answers))
        assert [answer.status for answer in answers] == [200] * 6, (len(filler), answers[0].body)
        assert len({answer.served_by for answer in answers}) == 1, len(filler)  # by their prefix


def use_pools(stack: Stack, count: int) -> None:
    second = pool(stack.addresses[2:], name="b", models=["b"])
    if count == 1:
        stack.use(pool(stack.addresses))
    else:
        stack.use(pool(stack.addresses[:2], models=[MODEL]), second)


@table("count", [4, 64, 1_000])
@table("kind", KINDS)
@table("pools", [1, 2])
async def test_uploads_that_stop_take_no_room_from_others(
    stack: Stack, pools: int, kind: str, count: int
) -> None:
    """1. Uploads stop. 2. Short, long and very long requests of others come, half of them chunked."""
    use_pools(stack, pools)
    async with stopped_uploads(stack, kind, count):
        # They are late a second after the service heard of them; of a thousand it hears one by one.
        await until(lambda: is_served(stack))
        await asyncio.sleep(LATE_S)
        await ask_all(stack, pools, f"{kind} {count}", ("", "x" * 200_000, "x" * 2 * MB))


BYTES_PER_S = 10 * MB


async def send_at_a_lines_speed(stack: Stack, size: int) -> int:
    """The status of a body of this size that takes its time."""
    body = chat_about("takes its time", user="x" * size)

    async def trickle() -> AsyncIterator[bytes]:
        began_s = monotonic()
        for at in range(0, len(body), 100_000):
            await asyncio.sleep(began_s + at / BYTES_PER_S - monotonic())
            yield body[at : at + 100_000]

    headers = {"content-type": "application/json", "content-length": str(len(body))}
    async with (
        connect(stack.url) as session,
        session.post(CHAT, data=trickle(), headers=headers) as answer,
    ):
        await answer.read()
        return answer.status


@table("count", [4, 1_000])
async def test_uploads_at_a_lines_speed_are_answered_beside_those_that_stop(
    stack: Stack, count: int
) -> None:
    use_pools(stack, 2)
    async with stopped_uploads(stack, "announced, nothing sent", count):
        await until(lambda: is_served(stack))
        await asyncio.sleep(LATE_S)
        await upload_each(stack, f"beside {count:,} idle uploads")


async def upload_each(stack: Stack, beside: str) -> None:
    for megabytes in (2, 8, 16):
        answered = [await send_at_a_lines_speed(stack, megabytes * MB) for _ in range(2)]
        show_figures(f"{beside}, {megabytes} MB at 10 MB/s", answered.count(200), len(answered))
        # On a machine that is too busy for them smaller ones are late, too.
        assert 200 in answered or megabytes > 8 or "announcements" in beside


@asynccontextmanager
async def announcing_again(stack: Stack) -> AsyncGenerator[None]:
    """16 of the largest size a second, none of which comes."""
    framing, part = KINDS["announced, nothing sent"]
    writers = list[asyncio.StreamWriter]()

    async def announce_again() -> None:
        while True:
            writers.append(await stop_halfway(stack, framing, part))
            await asyncio.sleep(1 / 16)

    announcing = asyncio.create_task(announce_again())
    try:
        await until(lambda: len(writers) > 32)
        yield
    finally:
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()


@table("pools", [1, 2])
async def test_announcements_that_begin_again_each_second_keep_out_no_smaller_body(
    stack: Stack, pools: int
) -> None:
    use_pools(stack, pools)
    async with announcing_again(stack):
        fillers = ("", "x" * 200_000, *["x" * 2 * MB] * 4, "x" * 8 * MB)
        await ask_all(stack, pools, "afresh", fillers)
        await upload_each(stack, "beside 16 announcements a second")


async def test_uploads_that_stop_cool_no_endpoint_that_nobody_else_asks(stack: Stack) -> None:
    """They end at it after longer than a whole request may wait there for an answer."""
    use_pools(stack, 1)
    async with stopped_uploads(stack, "announced, nothing sent", 40):
        await asyncio.sleep(Rules().silence_s + 1)

    def told() -> float:
        return stack.service.metric("extproc_answers_total", **{"class": "aborted"})

    await until(lambda: told() >= 3 * len(stack.addresses))
    assert set(states(stack).values()) == {"ready"}
    assert not stack.service.metric("extproc_endpoint_coolings_total")
