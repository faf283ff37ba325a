"""More than one core: one real Envoy whose ext_proc cluster has two services, which share over the mesh."""

import asyncio
from pathlib import Path

import pytest

from tests.slow.share.fronts import LONG_S, run_fronts
from tests.stack.client import Conversation, connect, statuses
from tests.stack.ports import free_ports
from tests.stack.service import pool
from tests.stack.simulators import Simulators

pytestmark = pytest.mark.envoy

CONVERSATIONS, TURNS = 6, 4


async def talk(url: str) -> list[Conversation]:
    """Takes all turns one after the other, so that Envoy alternates between the services."""
    conversations = [Conversation(number) for number in range(CONVERSATIONS)]
    async with connect(url) as session:
        for _ in range(TURNS):
            for conversation in conversations:
                await conversation.take_turn(session)
    return conversations


def test_conversations_keep_their_endpoint_behind_two_services_of_one_envoy(tmp_path: Path) -> None:
    with Simulators(tmp_path, free_ports(3), "--speed", "10") as simulators:
        simulators.wait_until(simulators.is_ready, LONG_S)
        pools = [pool(simulators.addresses, {"name": "prefix_cache"})]
        with run_fronts(tmp_path, pools, simulators.ports, gateways=1, services=2, carrier="mesh") as fronts:
            conversations = asyncio.run(talk(fronts[0].gateway.url))
            picks = [service.metric("extproc_picks_total") for service in fronts[0].services]

    answers = [answer for one in conversations for answer in one.answers]
    assert statuses(answers) == {200: CONVERSATIONS * TURNS}
    assert sum(picks) == len(answers)
    assert min(picks) >= TURNS, "both services must decide"
    assert [len(one.endpoints) for one in conversations] == [1] * CONVERSATIONS
