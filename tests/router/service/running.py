"""Running pools without a service around them, and what a service says of its health."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from extproc.router.cluster.source import Sink, Source
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import ClockAndRandom, Strategy
from extproc.router.service.keeper import PoolKeeper
from extproc.router.service.pools import Pools
from extproc.router.service.running_pool import PoolContext
from extproc.router.service.wiring import PoolWiring
from extproc.router.settings.reading import parse_settings
from extproc.router.telemetry import Metrics
from tests.clock import Clock


def build_pools(
    directory: Path | None = None,
    clock: Callable[[], float] | None = None,
    metrics: Metrics | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
    **more: Any,
) -> Pools:
    outside = ClockAndRandom(random.Random(0), clock or Clock())
    wiring = PoolWiring(directory or Path(), outside, environment)
    return Pools(PoolContext(wiring, metrics or Metrics(), **more))


def configure(pools: Pools, text: str) -> None:
    pools.apply(parse_settings(text, {}).pools)


async def synced(pools: Pools) -> None:
    """Returns once every pool has a list of endpoints."""
    await asyncio.gather(*(each.keeper.synced.wait() for each in pools))


@asynccontextmanager
async def running_pools(
    text: str,
    directory: Path | None = None,
    clock: Callable[[], float] | None = None,
    metrics: Metrics | None = None,
) -> AsyncIterator[Pools]:
    """Pools with these settings, which may have no endpoints yet."""
    pools = build_pools(directory, clock, metrics)
    configure(pools, text)
    try:
        yield pools
    finally:
        await pools.stop()


class ScriptedSource:
    """A source with the lists of the test; then it stays or, in its first runs, fails."""

    def __init__(self, *lists: Sequence[str], failures: int = 0) -> None:
        self._lists = lists
        self._failures = failures

    async def run(self, sink: Sink) -> None:
        for names in self._lists:
            sink.replace([Endpoint(name, f"10.0.0.{ord(name) - 96}:80") for name in names])
            await asyncio.sleep(0)
        self._failures -= 1
        if self._failures >= 0:
            raise RuntimeError("a bug")
        await asyncio.Event().wait()


@asynccontextmanager
async def keeping(
    source: Source,
    strategy: Strategy,
    clock: Callable[[], float] | None = None,
    metrics: Metrics | None = None,
) -> AsyncIterator[tuple[PoolKeeper, list[list[str]]]]:
    """A pool's keeper with this source, and the names of each list that it published."""
    published: list[list[str]] = []

    def on_change(_: str, endpoints: Sequence[Endpoint]) -> None:
        published.append([endpoint.name for endpoint in endpoints])

    pool = Pool("llama", strategy)
    keeper = PoolKeeper(pool, metrics or Metrics(), clock=clock or Clock(), on_change=on_change)
    task = asyncio.create_task(keeper.run(source))
    try:
        yield keeper, published
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
