"""Pools and their keepers, with a clock and sources of the test's own."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from extproc.cluster.source import Sink
from extproc.routing.endpoint import Endpoint
from extproc.routing.pool import Pool
from extproc.routing.ring import Ring
from extproc.routing.strategies.balanced import LeastLoad, RoundRobin
from extproc.routing.strategies.base import Outside, Strategy
from extproc.routing.strategies.prefix_hash import PrefixHash
from extproc.service.keeper import PoolKeeper
from extproc.service.pools import Pools
from extproc.settings import parse_settings
from extproc.telemetry import Metrics

OUTSIDE = Outside(random.Random(0), lambda: 0.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Told:
    """A source that tells what the test tells it."""

    def __init__(self, *lists: Sequence[str], fails: bool = False) -> None:
        self._lists = lists
        self._fails = fails

    async def run(self, sink: Sink) -> None:
        for names in self._lists:
            sink.replace([Endpoint(name, f"10.0.0.{ord(name) - 96}:80") for name in names])
            await asyncio.sleep(0)
        if self._fails:
            raise RuntimeError("a bug")
        await asyncio.Event().wait()


@asynccontextmanager
async def keeping(
    source: Told, metrics: Metrics, clock: Clock
) -> AsyncIterator[tuple[PoolKeeper, list[list[str]]]]:
    published: list[list[str]] = []
    keeper = PoolKeeper(
        Pool("llama", PrefixHash(OUTSIDE, positions=4)),
        metrics,
        clock=clock,
        on_change=lambda _, endpoints: published.append([endpoint.name for endpoint in endpoints]),
    )
    task = asyncio.create_task(keeper.run(source))
    await asyncio.wait_for(keeper.synced.wait(), 5)
    yield keeper, published
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_true():  # noqa: ASYNC110  # snapshots are built in a thread
            await asyncio.sleep(0.005)


def uses(pool: Pool, strategy: Strategy) -> bool:
    return pool.strategy is strategy


async def test_the_last_of_several_lists_counts() -> None:
    async with keeping(Told("ab", "abc", "c"), Metrics(), Clock()) as (keeper, published):
        await until(lambda: keeper.pool.snapshot.names == ("c",))

        assert published[-1] == ["c"]
        assert repr(keeper) == "<PoolKeeper of <Pool llama: 1 ready, prefix_hash>>"


async def test_a_source_that_fails_for_good_leaves_the_pool_as_it_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics, clock = Metrics(), Clock()
    async with keeping(Told("ab", fails=True), metrics, clock) as (keeper, _):
        clock.now_s += 60

        assert keeper.pool.snapshot.names == ("a", "b")
        assert keeper.age_s == 60
        assert metrics.registry.get_sample_value("extproc_watch_restarts_total", {"why": "internal"}) == 1
        assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_a_list_that_cannot_be_placed_does_not_keep_the_next_from_being_heard() -> None:
    """A name that UTF-8 cannot spell has no place on a ring."""
    metrics = Metrics()
    async with keeping(Told("ab"), metrics, Clock()) as (keeper, published):
        keeper.replace([Endpoint("\ud800", "10.0.0.1:80")])
        await until(
            lambda: (
                metrics.registry.get_sample_value("extproc_watch_restarts_total", {"why": "internal"}) == 1
            )
        )

        assert published == [["a", "b"]]

        keeper.replace([Endpoint("c", "10.0.0.3:80")])
        await until(lambda: keeper.pool.snapshot.names == ("c",))

        assert published == [["a", "b"], ["c"]]


async def test_another_strategy_takes_over_with_its_placement() -> None:
    async with keeping(Told("ab"), Metrics(), Clock()) as (keeper, _):
        pool, wanted = keeper.pool, PrefixHash(OUTSIDE, positions=7)
        keeper.use(wanted)
        assert isinstance(pool.snapshot.placement, Ring)
        assert (pool.strategy is wanted) == (pool.snapshot.placement.positions_per_member == 7)

        await until(lambda: pool.strategy is wanted)

        assert pool.snapshot.placement == Ring("ab", positions=7)


async def test_counts_outlive_every_change_of_strategy() -> None:
    strategies = (LeastLoad(OUTSIDE), PrefixHash(OUTSIDE), RoundRobin(OUTSIDE))
    async with keeping(Told("ab"), Metrics(), Clock()) as (keeper, _):
        pool = keeper.pool
        picks = [pool.pick(PrefixHash(OUTSIDE).reading(1))]
        for strategy in strategies:
            keeper.use(strategy)
            await until(partial(uses, pool, strategy))
            picks.append(pool.pick(strategy.read(None, {}, "")))

        assert pool.book.total == 4

        for pick in picks:
            pick.release()

        assert pool.book.total == 0


async def test_a_change_of_other_settings_keeps_the_ring() -> None:
    async with keeping(Told("ab"), Metrics(), Clock()) as (keeper, _):
        ring, wanted = keeper.pool.snapshot.placement, PrefixHash(OUTSIDE, positions=4, load_factor=2)
        keeper.use(wanted)
        await until(lambda: keeper.pool.strategy is wanted)

        assert keeper.pool.snapshot.placement is ring


async def test_a_list_that_grows_old_makes_the_service_not_ready(tmp_path: Path) -> None:
    text = "pools: [{name: a, stale_after_s: 30, endpoints: {static: ['10.0.0.1:80']}}]"
    clock = Clock()
    pools = Pools(
        Metrics(),
        base=tmp_path,
        rng=random.Random(0),
        clock=clock,
        publish=lambda *_: None,
        retract=lambda _: None,
    )
    pools.apply(parse_settings(text, {}).pools)

    assert pools.faults() == ["pool a: no list of endpoints yet"]

    await asyncio.gather(*(keeper.synced.wait() for keeper in pools))

    assert pools.faults() == []

    clock.now_s += 31

    assert pools.faults() == ["pool a: the list of endpoints is 31 s old"]

    await pools.stop()


async def test_a_strategy_that_takes_over_gets_its_headers(tmp_path: Path) -> None:
    text = "pools: [{{name: a, strategy: {}, endpoints: {{static: ['10.0.0.1:80']}}}}]"
    pools = Pools(
        Metrics(),
        base=tmp_path,
        rng=random.Random(0),
        clock=Clock(),
        publish=lambda *_: None,
        retract=lambda _: None,
    )
    pools.apply(parse_settings(text.format("{name: least_load}"), {}).pools)
    pools.apply(parse_settings(text.format("{name: prefix_hash, key: 'header:x-session'}"), {}).pools)
    (keeper,) = pools
    await until(lambda: keeper.pool.strategy.name == "prefix_hash")

    assert pools.picker.key_headers == {"x-session"}

    await pools.stop()
