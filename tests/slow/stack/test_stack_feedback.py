"""An endpoint that fails at once gets no more requests, one that works again its share."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aiohttp
import pytest

from tests.stack.client import Answer, ask, connect, send, servers, statuses
from tests.stack.service import pool, prefix_hash
from tests.stack.stack import Stack, states
from tests.waiting import until

pytestmark = pytest.mark.envoy

PAUSE_S = 0.015
# What ten seconds hold at that pace.
TEN_SECONDS = 600
# Long enough for a dozen in flight, so that the one that fails at once is always the least loaded.
TOKENS = 120

NUMBERS = count()
LEAST_LOAD = {"name": "least_load"}
BEGUN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"


def use(stack: Stack, strategy: dict[str, Any], **fields: Any) -> str:
    """Has a pool of a new name, of which nothing is remembered; returns the name."""
    name = f"pool-{next(NUMBERS)}"
    stack.use(pool(stack.addresses, strategy, name=name, **fields))
    return name


async def load(session: aiohttp.ClientSession, count: int, text: str) -> list[Answer]:
    """Sends that many different requests at the pace, and waits for their answers."""
    sent = []
    for number in range(count):
        body = ask(f"{text} {number}", max_tokens=TOKENS, ignore_eos=True)
        sent.append(asyncio.create_task(send(session, body)))
        await asyncio.sleep(PAUSE_S)
    return list(await asyncio.gather(*sent))


@asynccontextmanager
async def breaking(address: str, head: bytes = b"") -> AsyncGenerator[None]:
    """Begins each answer at an address with this head, and cuts it; without one it resets the connection."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        await writer.drain()
        if head:
            writer.close()
        else:
            writer.transport.abort()

    host, _, port = address.rpartition(":")
    async with await asyncio.start_server(answer, host, int(port), reuse_address=True):
        yield


def errors(answers: Sequence[Answer]) -> int:
    return sum(answer.status >= 500 for answer in answers)


async def until_back(stack: Stack, session: aiohttp.ClientSession) -> None:
    """Goes on sending until every endpoint is ready."""
    async with asyncio.timeout(60):
        while set((await asyncio.to_thread(states, stack)).values()) != {"ready"}:
            await load(session, 20, "meanwhile")


async def test_one_that_resets_connections_costs_few_requests(stack: Stack) -> None:
    name = use(stack, LEAST_LOAD)
    bad = stack.addresses[3]
    await asyncio.to_thread(stack.simulators[1].kill)
    async with connect(stack.url) as session, breaking(bad):
        first = await load(session, TEN_SECONDS, "first")
        state = (await asyncio.to_thread(states, stack))[bad]
    answers = stack.service.metric("extproc_answers_total", pool=name, endpoint=bad, **{"class": "none"})

    assert errors(first) < 0.02 * len(first)
    assert state == "cooling"
    assert answers == errors(first)


async def test_one_that_cuts_its_answers_costs_few_requests(stack: Stack) -> None:
    name = use(stack, LEAST_LOAD, probe=False)
    bad = stack.addresses[3]
    await asyncio.to_thread(stack.simulators[1].kill)
    cut = 0
    async with connect(stack.url) as session, breaking(bad, BEGUN):
        for number in range(100):
            try:
                await send(session, ask(f"cut {number}", max_tokens=1))
            except aiohttp.ClientError:
                cut += 1
        state = (await asyncio.to_thread(states, stack))[bad]

    def broken() -> float:
        return stack.service.metric("extproc_answers_total", pool=name, endpoint=bad, **{"class": "broken"})

    await until(lambda: broken() == cut)
    assert state == "cooling"
    assert 3 <= cut <= 10


async def test_one_that_refuses_connections_is_soon_not_tried_any_more(stack: Stack) -> None:
    """Envoy's retries hide it from clients; they end, too, when the first of those answers have ended."""
    use(stack, prefix_hash(), probe=False)
    bad = stack.addresses[3]
    async with connect(stack.url) as session:
        await asyncio.to_thread(stack.simulators[1].kill)
        before = stack.gateway.cluster("vllm", "upstream_rq_retry")
        first = await load(session, TEN_SECONDS, "first")
        state = (await asyncio.to_thread(states, stack))[bad]
        retries = stack.gateway.cluster("vllm", "upstream_rq_retry") - before
        await asyncio.to_thread(stack.simulators[1].start)
        await asyncio.to_thread(stack.simulators[1].wait_ready)
        await until_back(stack, session)
        back = await load(session, 200, "back")

    assert statuses(first) == {200: len(first)}
    assert 3 <= retries < 0.1 * len(first)
    assert state == "cooling"
    assert 0.12 * len(back) < servers(back)[bad] < 0.4 * len(back)


async def test_response_headers_are_enough(stack: Stack) -> None:
    name = use(stack, prefix_hash())
    bad = stack.addresses[3]
    async with connect(stack.through("headers_instead_of_the_log").url) as session:
        stack.fault(bad, error_rate=1)
        first = await load(session, TEN_SECONDS, "first")
        state = (await asyncio.to_thread(states, stack))[bad]
    told = stack.service.metric("extproc_answers_total", pool=name, endpoint=bad, **{"class": "5xx"})

    assert errors(first) < 0.02 * len(first)
    assert state == "cooling"
    assert told == errors(first)
