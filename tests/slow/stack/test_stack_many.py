"""Two thousand requests at the same time: twice as many as Envoy's default breakers would let pass."""

import asyncio

import pytest

from tests.stack.client import Answer, ask, connect, send, statuses
from tests.stack.service import pool
from tests.stack.stack import Stack, in_flight
from tests.stack.upstream import serve
from tests.waiting import until

pytestmark = pytest.mark.envoy

STREAMS, WAVE = 2_000, 200


async def test_two_thousand_open_streams_are_all_routed(stack: Stack) -> None:
    """Opened in waves, released when all are open."""
    stack.use(pool(stack.spare, probe=False), endpoints=stack.spare)
    before = stack.gateway.ext_proc()["failure_mode_allowed"]
    requests: list[asyncio.Task[Answer]] = []
    async with serve(stack.spare, holds=b"") as endpoints, connect(stack.url) as session:
        for first in range(0, STREAMS, WAVE):
            texts = [f"open {first + number}" for number in range(WAVE)]
            requests += [asyncio.create_task(send(session, ask(text))) for text in texts]
            await endpoints.until_arrived(len(requests))
        endpoints.release()
        answers = await asyncio.gather(*requests)
        await until(lambda: in_flight(stack) == 0)

    assert statuses(answers) == {200: STREAMS}
    assert stack.gateway.ext_proc()["failure_mode_allowed"] == before
