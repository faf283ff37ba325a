"""What a keeper tells of its pool, and when."""

import asyncio
from collections.abc import Sequence
from random import Random

from extproc.routing.endpoint import Endpoint
from extproc.routing.pool import Pool
from extproc.routing.strategies.base import Outside
from extproc.routing.strategies.prefix_hash import PrefixHash
from extproc.service.keeper import PoolKeeper
from extproc.telemetry import Metrics
from tests.integration.mesh import until


class Quiet:
    """A source that has nothing to say yet."""

    async def run(self, sink: object) -> None:
        await asyncio.Event().wait()


async def test_a_changed_strategy_before_the_first_list_tells_nobody_of_an_empty_pool() -> None:
    """An Envoy that outlived us would believe it and forget its endpoints."""
    told: list[tuple[str, Sequence[Endpoint]]] = []
    outside = Outside(Random(1), lambda: 0.0)
    pool = Pool("llama", PrefixHash(outside))
    keeper = PoolKeeper(
        pool, Metrics(), clock=lambda: 0.0, on_change=lambda name, endpoints: told.append((name, endpoints))
    )
    task = asyncio.create_task(keeper.run(Quiet()))
    try:
        keeper.use(PrefixHash(outside, positions=8))
        await asyncio.sleep(0.2)
        before_the_list = list(told)
        keeper.replace([Endpoint("default/a", "10.0.0.1:8000")])
        await until(lambda: told)
    finally:
        task.cancel()

    assert before_the_list == []
    assert told == [("llama", (Endpoint("default/a", "10.0.0.1:8000"),))]
    assert keeper.synced.is_set()
