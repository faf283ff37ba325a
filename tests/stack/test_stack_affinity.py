"""Conversations stay on the endpoint that has their prefix, through a real Envoy."""

import asyncio
import random

import aiohttp
import pytest

from tests.stack.client import Chat, connect, statuses
from tests.stack.service import pool, prefix_hash
from tests.stack.stack import Stack

pytestmark = pytest.mark.envoy

CONVERSATIONS = 40
TURNS = 3
# As many as the load floor lets meet on one endpoint: nothing spills.
AT_ONCE = 4


async def test_every_turn_of_a_conversation_meets_its_prefix(stack: Stack) -> None:
    conversations = [Chat(1_000 + number) for number in range(CONVERSATIONS)]
    order, rng = list(conversations), random.Random(1)
    async with connect(stack.url) as session:
        for _ in range(TURNS):
            rng.shuffle(order)
            for start in range(0, CONVERSATIONS, AT_ONCE):
                await _take_turns(session, order[start : start + AT_ONCE])

    answers = [answer for one in conversations for answer in one.answers]
    assert statuses(answers) == {200: CONVERSATIONS * TURNS}
    assert [len(one.endpoints) for one in conversations] == [1] * CONVERSATIONS
    for one in conversations:
        cached = [answer.cached_tokens for answer in one.answers]
        assert 0 <= cached[0] < cached[1] < cached[2]
    # And all endpoints have their part: 40 conversations leave one of four empty once in 25,000
    # times.
    assert {answer.served_by for answer in answers} == {*stack.addresses}


async def test_round_robin_scatters_and_no_request_fails_while_strategies_change(
    stack: Stack,
) -> None:
    """1. Turns meet endpoint after endpoint. 2. Under load the strategy becomes prefix_hash. 3. They stay."""
    stack.use(pool(stack.addresses, {"name": "round_robin"}))
    before, during, after = ([Chat(first + n) for n in range(3)] for first in (2_000, 3_000, 4_000))
    async with connect(stack.url) as session:
        for _ in range(3):
            for one in before:
                await one.take_turn(session)
        change = asyncio.create_task(
            asyncio.to_thread(stack.use, pool(stack.addresses, prefix_hash()))
        )
        while not change.done():
            await _take_turns(session, during)
        await change
        for _ in range(3):
            await _take_turns(session, after)

    answers = [answer for one in (*before, *during, *after) for answer in one.answers]
    assert {*statuses(answers)} == {200}
    # Three is one less than four: a conversation never meets the endpoint of its last turn.
    assert [len(one.endpoints) for one in before] == [3] * 3
    assert [len(one.endpoints) for one in after] == [1] * 3


async def _take_turns(session: aiohttp.ClientSession, conversations: list[Chat]) -> None:
    await asyncio.gather(*(one.take_turn(session) for one in conversations))
