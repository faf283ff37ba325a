"""Pools and their keepers, with a clock and sources of the test's own."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import orjson
import pytest

from extproc.errors import NoEndpoint
from extproc.router.cluster.restarting import Restarting
from extproc.router.cluster.source import Sink, Source
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Query
from extproc.router.routing.pool import Pool
from extproc.router.routing.ring import Ring
from extproc.router.routing.strategies.balanced import LeastLoad, RoundRobin
from extproc.router.routing.strategies.base import Outside, Strategy
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.router.routing.strategies.prefix_hash import PrefixHash
from extproc.router.service.keeper import PoolKeeper
from extproc.router.telemetry import Metrics
from tests.clock import Clock
from tests.router.service.running import build_pools, configure, running, synced
from tests.waiting import until

OUTSIDE = Outside(random.Random(0), lambda: 0.0)


class Told:
    """A source that tells what the test tells it, then stays or, in its first runs, fails."""

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
    source: Source, metrics: Metrics, clock: Clock
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


def restarts(metrics: Metrics, why: str, pool: str = "llama") -> float | None:
    labels = {"pool": pool, "why": why}
    return metrics.registry.get_sample_value("extproc_watch_restarts_total", labels)


def uses(pool: Pool, strategy: Strategy) -> bool:
    return pool.strategy is strategy


async def test_the_last_of_several_lists_counts() -> None:
    async with keeping(Told("ab", "abc", "c"), Metrics(), Clock()) as (keeper, published):
        await until(lambda: keeper.pool.snapshot.names == ("c",))

        assert published[-1] == ["c"]


async def test_a_source_that_fails_leaves_the_pool_as_it_is_and_is_run_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def nap(_: float) -> None:
        await asyncio.sleep(0)

    metrics, clock = Metrics(), Clock()
    source = Restarting(Told("ab", failures=3), rng=random.Random(0), sleep=nap)
    async with keeping(source, metrics, clock) as (keeper, _):
        await until(lambda: restarts(metrics, "internal") == 3 and keeper.fault is None)
        clock.now_s += 60

        assert keeper.pool.snapshot.names == ("a", "b")
        assert keeper.age_s == 60

    record, *_ = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "RuntimeError at test_service_pools.py:" in record.getMessage()
    assert "a bug" not in caplog.text


async def test_a_list_that_cannot_be_placed_does_not_keep_the_next_from_being_heard() -> None:
    """A name that UTF-8 cannot spell has no place on a ring."""
    metrics = Metrics()
    async with keeping(Told("ab"), metrics, Clock()) as (keeper, published):
        keeper.replace([Endpoint("\ud800", "10.0.0.1:80")])
        await until(lambda: restarts(metrics, "internal") == 1)

        assert published == [["a", "b"]]
        assert keeper.fault
        assert "UnicodeEncodeError at" in keeper.fault.reason

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
    strategies = (LeastLoad(OUTSIDE), PrefixCache(OUTSIDE), PrefixHash(OUTSIDE), RoundRobin(OUTSIDE))
    async with keeping(Told("ab"), Metrics(), Clock()) as (keeper, _):
        pool = keeper.pool
        picks = [pool.pick(PrefixHash(OUTSIDE).reading(1))]
        for strategy in strategies:
            keeper.use(strategy)
            await until(partial(uses, pool, strategy))
            picks.append(pool.pick(strategy.read(None, {}, "")))

        assert pool.book.total == 5

        for pick in picks:
            pick.release()

        assert pool.book.total == 0


async def test_a_change_of_other_settings_keeps_the_ring() -> None:
    async with keeping(Told("ab"), Metrics(), Clock()) as (keeper, _):
        ring, wanted = keeper.pool.snapshot.placement, PrefixHash(OUTSIDE, positions=4, load_factor=2)
        keeper.use(wanted)
        await until(lambda: keeper.pool.strategy is wanted)

        assert keeper.pool.snapshot.placement is ring


async def test_how_many_fallbacks_a_pick_names_changes_live(tmp_path: Path) -> None:
    static = "static: ['10.0.0.1:80', '10.0.0.2:80', '10.0.0.3:80']"
    named = []
    async with running(f"pools: [{{name: a, endpoints: {{{static}}}}}]", tmp_path, Clock()) as pools:
        for count in (0, 3, 1):
            text = f"pools: [{{name: a, fallbacks: {count}, endpoints: {{{static}}}}}]"
            configure(pools, text)
            await synced(pools)
            named.append(len(pools.picker.pick(Query("GET", "/", {})).pick.fallbacks))

    assert [0, 2, 1] == named


async def test_objectives_and_fairness_change_live(tmp_path: Path) -> None:
    """A request in flight keeps what it began with, and ends as that."""
    wanted = "endpoints: {static: ['10.0.0.1:80']}, max_in_flight: 1"
    batch = Query("GET", "/", {"x-gateway-inference-objective": "batch"})
    named = Query("GET", "/", {"x-gateway-inference-fairness-id": "a"})
    async with running(f"pools: [{{name: a, {wanted}}}]", tmp_path, Clock()) as pools:
        await synced(pools)
        ordinary = pools.picker.pick(batch).pick
        ordinary.release()
        configure(pools, f"pools: [{{name: a, {wanted}, objectives: {{batch: -1}}, fairness: true}}]")
        low = pools.picker.pick(batch).pick
        other = pools.picker.pick(named).pick
        configure(pools, f"pools: [{{name: a, {wanted}}}]")
        for pick in (low, other):
            pick.release()

    assert (None, -1, 0) == (
        ordinary.standing,
        *(pick.standing.priority for pick in (low, other) if pick.standing),
    )
    assert len(pools["a"].pool.admission) == 0


A = "{name: a, models: [a], endpoints: {static: ['10.0.0.1:80']}}"
B = "{name: b, models: [b], endpoints: {file: missing.yaml}}"
NO_B = "pool b: no list of endpoints yet: file_unreadable: "


async def test_a_list_that_grows_old_makes_the_service_of_one_pool_not_ready(tmp_path: Path) -> None:
    text = "pools: [{name: a, stale_after_s: 30, endpoints: {static: ['10.0.0.1:80']}}]"
    clock = Clock()
    async with running(text, tmp_path, clock) as pools:
        assert pools.faults() == ["pool a: no list of endpoints yet"]

        await pools["a"].keeper.synced.wait()

        assert pools.faults() == []

        clock.now_s += 31

        assert pools.faults() == ["pool a: the list of endpoints is 31 s old"]

        pools["a"].keeper.restarted("connection", "refused")

        assert pools.faults() == ["pool a: the list of endpoints is 31 s old: connection: refused"]


async def test_one_old_list_of_several_leaves_the_service_ready(tmp_path: Path) -> None:
    stale = A.replace("name: a", "name: a, stale_after_s: 30")
    clock = Clock()
    other = A.replace("name: a, models: [a]", "name: b, models: [b]")
    text = f"pools: [{stale}, {other}]"
    async with running(text, tmp_path, clock) as pools:
        await synced(pools)
        clock.now_s += 31

        assert pools.faults() == []
        assert pools.remarks() == ["pool a: the list of endpoints is 31 s old"]


async def test_a_source_that_says_nothing_at_all_makes_the_service_not_ready(tmp_path: Path) -> None:
    """One that fails and says so keeps its last list in force; one that is stuck is a fault of our own."""
    clock = Clock()
    async with running(f"pools: [{A}]", tmp_path, clock) as pools:
        keeper = pools["a"].keeper
        await keeper.synced.wait()
        clock.now_s += 299
        keeper.restarted("connection", "refused")
        clock.now_s += 299

        assert pools.faults() == []
        assert pools.remarks() == ["pool a: the list of endpoints is 598 s old: connection: refused"]

        keeper.lacks("connection", "refused")
        clock.now_s += 299

        assert pools.faults() == []

        clock.now_s += 2

        assert pools.faults() == ["pool a: its source has said nothing for 301 s: connection: refused"]


async def test_the_pools_of_the_start_are_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    """One of two has no list, and a reason.

    1. A moment's failure is waited out. 2. A lasting one is that pool's alone: it refuses its requests.
    """
    clock = Clock()
    async with running(f"pools: [{A}, {B}]", tmp_path, clock) as pools:
        await pools["a"].keeper.synced.wait()
        await until(lambda: pools["b"].keeper.fault is not None)
        [fault] = pools.faults()

        assert fault.startswith(NO_B)

        clock.now_s += 10

        assert pools.faults() == []
        assert pools.remarks() == [fault]
        assert str(pools["b"].keeper.fault).startswith("file_unreadable: ")


async def test_a_service_whose_only_pool_has_no_list_is_never_ready(tmp_path: Path) -> None:
    clock = Clock()
    async with running(f"pools: [{B}]", tmp_path, clock) as pools:
        await until(lambda: pools["b"].keeper.fault is not None)
        clock.now_s += 3_600

        assert pools.faults() == pools.remarks() != []


async def test_a_pool_that_is_added_without_a_list_leaves_the_service_ready(tmp_path: Path) -> None:
    """From the first moment, and its requests alone are refused."""
    clock = Clock()
    async with running(f"pools: [{A}]", tmp_path, clock) as pools:
        await pools["a"].keeper.synced.wait()
        configure(pools, f"pools: [{A}, {B}]")

        assert pools.faults() == []

        await until(lambda: pools["b"].keeper.fault is not None)

        assert pools.faults() == []
        assert pools.picker.pick(request("a")).pick.pool.name == "a"
        with pytest.raises(NoEndpoint, match="pool 'b' has no ready endpoint"):
            pools.picker.pick(request("b"))


def request(model: str) -> Query:
    body = orjson.dumps({"model": model, "messages": [{"role": "user", "content": "hello"}]})
    return Query("POST", "/v1/chat/completions", {"content-type": "application/json"}, body)


async def test_a_service_without_pools_yet_is_not_ready(tmp_path: Path) -> None:
    assert build_pools(tmp_path).faults() == ["no pool yet"]


@pytest.mark.parametrize(
    ("strategy", "keeps_ring"),
    [
        ("{name: prefix_hash, load_factor: 2}", True),
        ("{name: prefix_hash, key: [conversation]}", True),
        ("{name: prefix_hash, positions: 8}", False),
    ],
)
async def test_only_other_positions_make_another_ring(
    tmp_path: Path, strategy: str, *, keeps_ring: bool
) -> None:
    hashed = A.replace("name: a", "name: a, strategy: {name: prefix_hash}")
    async with running(f"pools: [{hashed}]", tmp_path, Clock()) as pools:
        pool, keeper = pools["a"].pool, pools["a"].keeper
        await keeper.synced.wait()
        before, ring = pool.strategy, pool.snapshot.placement
        configure(pools, f"pools: [{A.replace('name: a', f'name: a, strategy: {strategy}')}]")
        await until(lambda: pool.strategy is not before)

        assert (pool.snapshot.placement is ring) is keeps_ring


async def test_a_strategy_that_takes_over_gets_its_headers(tmp_path: Path) -> None:
    text = "pools: [{{name: a, strategy: {}, endpoints: {{static: ['10.0.0.1:80']}}}}]"
    async with running(text.format("{name: least_load}"), tmp_path, Clock()) as pools:
        configure(pools, text.format("{name: prefix_hash, key: 'header:x-session'}"))
        await until(lambda: pools["a"].pool.strategy.name == "prefix_hash")

        assert pools.picker.key_headers == {"x-session"}
