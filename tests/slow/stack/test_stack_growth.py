"""Many clients through Envoy: what they choose leaves nothing behind, and all are routed at once."""

import asyncio
import random

import pytest

from tests.stack.client import Answer, chat_about, connect, send, statuses
from tests.stack.process import memory_bytes
from tests.stack.service import pool
from tests.stack.stack import Stack, in_flight
from tests.stack.upstream import serve
from tests.waiting import until

pytestmark = pytest.mark.envoy

REQUESTS, WARM_UP, AT_ONCE = 20_000, 4_000, 32
GROWTH_BYTES = 8_000_000
# Twice as many at the same time as Envoy's default breakers would let pass.
STREAMS, WAVE = 2_000, 200
STRATEGY = {"name": "prefix_hash", "key": ["header:x-session", "first_user_message"]}


def fresh(number: int) -> tuple[bytes, str, dict[str, str]]:
    """A body, a path and headers that no other request has: 6 kB of names and values."""
    text = random.Random(number).randbytes(1_000).hex()
    names = (f"x-gateway-inference-{text[:1_000]}", f"x-llm-d-{text[1_000:]}", f"x-{text[:500]}")
    headers = {
        **dict.fromkeys(names, "1"),
        "x-gateway-inference-objective": text[:500],
        "x-llm-d-inference-fairness-id": text[500:1_000],
        "x-session": text[1_000:1_500],
        "x-request-id": text[:36],
        "tracestate": f"a={text[:200]}",
        "traceparent": f"00-{text[:32]}-{text[32:48]}-01",
    }
    return (
        chat_about(text, model=text[:300], user=text[300:600]),
        f"/v1/chat/completions?{text[:200]}",
        headers,
    )


@pytest.mark.timeout(300)
async def test_twenty_thousand_strangers_leave_nothing_behind(stack: Stack) -> None:
    """Names, values, paths, models, session keys and traces, fresh each time: 1,100 once took 119 MB."""
    stack.use(pool(stack.addresses, STRATEGY, probe=False))
    numbers = iter(range(WARM_UP + REQUESTS))

    async def go(count: int) -> None:
        async def one_after_another() -> None:
            for _ in range(count // AT_ONCE):
                body, path, headers = fresh(next(numbers))
                answer = await send(session, body, path=path, headers=headers)
                assert answer.status == 404, "no endpoint has such a model"

        async with asyncio.TaskGroup() as clients:
            for _ in range(AT_ONCE):
                clients.create_task(one_after_another())

    async with connect(stack.url) as session:
        await go(WARM_UP)
        before = memory_bytes(stack.service.pid)
        await go(REQUESTS)
        grown = memory_bytes(stack.service.pid) - before

    print(f"{REQUESTS} requests: {grown / 1e6:+.1f} MB")  # noqa: T201
    assert grown < GROWTH_BYTES


async def test_two_thousand_open_streams_are_all_routed(stack: Stack) -> None:
    """Opened in waves, released when all are open."""
    stack.use(pool(stack.spare, probe=False), endpoints=stack.spare)
    before = stack.gateway.ext_proc()["failure_mode_allowed"]
    requests: list[asyncio.Task[Answer]] = []
    async with serve(stack.spare, holds=b"") as endpoints, connect(stack.url) as session:
        for first in range(0, STREAMS, WAVE):
            texts = [f"open {first + number}" for number in range(WAVE)]
            requests += [asyncio.create_task(send(session, chat_about(text))) for text in texts]
            await endpoints.until_arrived(len(requests))
        endpoints.release()
        answers = await asyncio.gather(*requests)
        await until(lambda: in_flight(stack) == 0)

    assert statuses(answers) == {200: STREAMS}
    assert stack.gateway.ext_proc()["failure_mode_allowed"] == before
