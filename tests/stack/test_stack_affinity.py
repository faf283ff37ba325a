"""Conversations stay on the endpoint that has their prefix, through a real Envoy."""

import asyncio
import random
from collections import Counter
from pathlib import Path

import aiohttp
import pytest

from tests.stack.client import Conversation, connect, statuses
from tests.stack.service import pool, prefix_hash
from tests.stack.stack import Stack, eventually, run_stack

pytestmark = pytest.mark.envoy

CONVERSATIONS = 40
TURNS = 4
# As many as the load floor lets meet on one endpoint: nothing spills.
AT_ONCE = 4


async def _interleave(session: aiohttp.ClientSession, first: int) -> list[Conversation]:
    """Takes the turns of 40 conversations in a shuffled order, a few at a time."""
    conversations = [Conversation(first + number) for number in range(CONVERSATIONS)]
    order, rng = list(conversations), random.Random(first)
    for _ in range(TURNS):
        rng.shuffle(order)
        for start in range(0, CONVERSATIONS, AT_ONCE):
            await asyncio.gather(*(one.take_turn(session) for one in order[start : start + AT_ONCE]))
    return conversations


async def test_every_turn_of_a_conversation_meets_its_prefix(stack: Stack) -> None:
    async with connect(stack.url) as session:
        conversations = await _interleave(session, first=1_000)

    assert statuses([answer for one in conversations for answer in one.answers]) == {
        200: CONVERSATIONS * TURNS
    }
    assert [len(one.endpoints) for one in conversations] == [1] * CONVERSATIONS
    for one in conversations:
        cached = [answer.cached_tokens for answer in one.answers]
        assert cached[1] > 0
        assert cached == sorted(set(cached[1:]) | {cached[0]}), cached
    # And all endpoints have their part: 40 conversations leave one of four empty once in 25,000 times.
    assert len(Counter(next(iter(one.endpoints)) for one in conversations)) == len(stack.addresses)


async def test_round_robin_scatters_the_same_traffic(tmp_path: Path) -> None:
    """One request at a time, so that each turn's endpoint is known: five conversations, four endpoints."""
    with run_stack(tmp_path, pools=lambda addresses: [pool(addresses, {"name": "round_robin"})]) as stack:
        conversations = [Conversation(1_000 + number) for number in range(len(stack.addresses) + 1)]
        async with connect(stack.url) as session:
            for _ in range(TURNS):
                for one in conversations:
                    await one.take_turn(session)

    answers = [answer for one in conversations for answer in one.answers]
    assert statuses(answers) == {200: len(conversations) * TURNS}
    # Five is one more than four: each turn of a conversation meets the next endpoint, which knows it not.
    assert [len(one.endpoints) for one in conversations] == [TURNS] * len(conversations)
    first_seen = {one.answers[0].cached_tokens for one in conversations}
    assert {answer.cached_tokens for answer in answers} <= first_seen


async def test_strategy_changes_live_and_no_request_fails(tmp_path: Path) -> None:
    """Requests go on all the time while round_robin becomes prefix_hash; then conversations stay."""
    with run_stack(tmp_path, pools=lambda addresses: [pool(addresses, {"name": "round_robin"})]) as stack:
        async with connect(stack.url) as session:
            before = [Conversation(number) for number in range(3)]
            await _take_turns(session, before, 2)
            stack.service.configure([pool(stack.addresses, prefix_hash())])
            during = [Conversation(100 + number) for number in range(3)]
            while stack.service.pools()[0]["strategy"] != "prefix_hash":
                await _take_turns(session, during, 1)
            after = [Conversation(200 + number) for number in range(3)]
            await _take_turns(session, after, 3)

    answers = [answer for one in (*before, *during, *after) for answer in one.answers]
    assert set(statuses(answers)) == {200}
    assert any(len(one.endpoints) > 1 for one in before)
    assert [len(one.endpoints) for one in after] == [1] * 3


async def test_strategy_that_is_wrong_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    with run_stack(tmp_path) as stack:
        stack.service.configure([pool(stack.addresses, {"name": "no_such_strategy"})])

        assert eventually(lambda: stack.service.metric("extproc_config_reloads_total", result="refused") == 1)
        assert stack.service.pools()[0]["strategy"] == "prefix_hash"


async def _take_turns(session: aiohttp.ClientSession, conversations: list[Conversation], turns: int) -> None:
    for _ in range(turns):
        await asyncio.gather(*(one.take_turn(session) for one in conversations))
