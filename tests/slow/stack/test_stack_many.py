"""Two thousand requests at the same time: twice as many as Envoy's default breakers would let pass."""

import asyncio
from collections import Counter

import pytest

from tests.stack.client import Answer, ask, connect, send, statuses
from tests.stack.service import pool
from tests.stack.stack import Stack, in_flight
from tests.stack.upstream import serve
from tests.waiting import until

pytestmark = pytest.mark.envoy

STREAMS, WAVE = 2_000, 200


async def open_streams(stack: Stack, gateway: Stack) -> tuple[Counter[int], int]:
    """Opens them in waves, releases them when all are open; returns statuses, and how many nobody routed."""
    stack.use(pool(stack.spare, probe=False), endpoints=stack.spare)
    before = gateway.gateway.ext_proc()["failure_mode_allowed"]
    requests: list[asyncio.Task[Answer]] = []
    async with serve(stack.spare, holds=b"") as endpoints, connect(gateway.url) as session:
        for first in range(0, STREAMS, WAVE):
            texts = [f"open {first + number}" for number in range(WAVE)]
            requests += [asyncio.create_task(send(session, ask(text))) for text in texts]
            await endpoints.until_arrived(len(requests))
        endpoints.release()
        answers = await asyncio.gather(*requests)
        await until(lambda: in_flight(stack) == 0)
    return statuses(answers), gateway.gateway.ext_proc()["failure_mode_allowed"] - before


async def test_two_thousand_open_streams_are_all_routed(stack: Stack) -> None:
    assert await open_streams(stack, stack) == ({200: STREAMS}, 0)


async def test_default_breakers_would_pass_the_service_by(stack: Stack) -> None:
    """The proof that the test above can fail: the same load with Envoy's own limit of 1,024."""
    _, passed_by = await open_streams(stack, stack.through("default_breakers"))

    assert passed_by >= STREAMS - 1_024
