"""Two real Envoys with four services that share their picks hit as often as one Envoy with one service."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.slow.share.proxies import LONG_S, Proxy, run_proxies
from tests.stack.client import Answer, Chat, connect, statuses
from tests.stack.fetch import get
from tests.stack.ports import free_ports
from tests.stack.service import pool
from tests.stack.simulators import Simulators

pytestmark = [pytest.mark.envoy, pytest.mark.slow]

CONVERSATIONS, TURNS = 40, 15
PREFIX_CACHE = {"name": "prefix_cache"}


async def chat_through(proxies: Sequence[Proxy]) -> list[Answer]:
    """Conversations side by side; each turn asks a gateway at random."""
    rng = random.Random(1)
    async with AsyncExitStack() as stack:
        sessions = [
            await stack.enter_async_context(connect(proxy.gateway.url)) for proxy in proxies
        ]

        async def one(number: int) -> list[Answer]:
            conversation = Chat(number)
            for _ in range(TURNS):
                await asyncio.sleep(rng.uniform(0.1, 0.5))
                await conversation.take_turn(rng.choice(sessions))
            return conversation.answers

        by_chat = await asyncio.gather(*(one(number) for number in range(CONVERSATIONS)))
    return [answer for answers in by_chat for answer in answers]


def counted(simulators: Simulators, name: str) -> float:
    """The sum of a metric over the endpoints, as they show it."""
    lines = [line for a in simulators.addresses for line in get(f"http://{a}/metrics").splitlines()]
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}_total{{")
    )


def measured_hit_rate(
    directory: Path, *, gateways: int, services: int = 1, carrier: str | None = None
) -> float:
    """The share of prompt tokens that the endpoints found in their caches."""
    directory.mkdir()
    with Simulators(directory, free_ports(4), "--speed", "10") as simulators:
        simulators.wait_until(simulators.is_ready, LONG_S)
        pools = [pool(simulators.addresses, PREFIX_CACHE)]
        with run_proxies(
            directory,
            pools,
            simulators.ports,
            gateways=gateways,
            services=services,
            carrier=carrier,
        ) as proxies:
            answers = asyncio.run(chat_through(proxies))
            picks = [
                service.metric("extproc_picks_total")
                for proxy in proxies
                for service in proxy.services
            ]
        assert statuses(answers) == {200: CONVERSATIONS * TURNS}
        assert sum(picks) == len(answers)
        assert min(picks) > len(answers) / len(picks) / 2
        hits, queries = (
            counted(simulators, f"prefix_cache_{what}") for what in ("hits", "queries")
        )
        assert hits == sum(answer.cached_tokens for answer in answers)
        return hits / queries


@pytest.mark.timeout(600)
def test_two_envoys_with_four_services_hit_as_often_as_one(tmp_path: Path) -> None:
    """Each turn asks either Envoy, which asks either of its two services: over the mesh, and over NATS.

    The same four that do not share show that this could fail.
    """
    single = measured_hit_rate(tmp_path / "one", gateways=1)
    shared = {
        carrier: measured_hit_rate(tmp_path / carrier, gateways=2, services=2, carrier=carrier)
        for carrier in ("mesh", "nats")
    }
    alone = measured_hit_rate(tmp_path / "alone", gateways=2, services=2)

    print(f"hit rate of one {single:.3f}, of four {shared}, of four that do not share {alone:.3f}")  # noqa: T201
    # Chats this long leave little to chance: five runs of one gateway differ by 0.005.
    assert alone < single - 0.03
    # On a busy machine a letter may come after the next turn: a few turns of 600 miss then.
    assert single - min(shared.values()) <= 0.5 * (single - alone)
