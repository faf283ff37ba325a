"""What a keeper logs of its pool, and when; with a clock and sources of the test's own."""

import asyncio
import logging
import random
from collections.abc import Mapping
from functools import partial

import pytest

from extproc.router.cluster.restarting import Restarting
from extproc.router.cluster.source import Sink
from extproc.router.logs import RateLimit
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool
from extproc.router.routing.ring import Ring
from extproc.router.routing.strategies.balanced import LeastLoad, RoundRobin
from extproc.router.routing.strategies.base import ClockAndRandom, Placement, Strategy
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.router.routing.strategies.prefix_hash import PrefixHash
from extproc.router.service.keeper import PoolKeeper
from extproc.router.telemetry import Metrics
from tests.clock import Clock
from tests.router.service.running import Told, keeping
from tests.waiting import until

OUTSIDE = ClockAndRandom(random.Random(0), lambda: 0.0)
A, B, C = (Endpoint(name, f"10.0.0.{number}:80") for number, name in enumerate("abc", start=1))


def hashing(positions: int = 4) -> PrefixHash:
    return PrefixHash(OUTSIDE, positions=positions)


def keeper_of(name: str = "llama", clock: Clock | None = None) -> PoolKeeper:
    """One that runs nothing."""
    pool = Pool(name, RoundRobin(OUTSIDE))
    return PoolKeeper(pool, Metrics(), clock=clock or Clock(0.0), on_change=lambda *_: None)


def uses(pool: Pool, strategy: Strategy) -> bool:
    return pool.strategy is strategy


async def test_a_changed_strategy_before_the_first_list_tells_nobody_of_an_empty_pool() -> None:
    """An Envoy that outlived us would believe it and forget its endpoints."""
    async with keeping(Told(), hashing()) as (keeper, published):
        keeper.use(hashing(8))
        await asyncio.sleep(0.2)
        before_the_list = list(published)
        keeper.replace([A])
        await until(lambda: published)

    assert (before_the_list, published) == ([], [["a"]])
    assert keeper.synced.is_set()


async def test_what_a_source_lacks_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """The API server's bookmarks and a file's polls say it again every minute, every five seconds."""
    keeper = keeper_of()
    for _ in range(10):
        keeper.lacks("no_service", "Service default/vllm has no EndpointSlice")
    keeper.restarted("file_invalid", "endpoints.yaml: not YAML")
    for _ in range(10):
        keeper.lacks("file_invalid", "endpoints.yaml: not YAML")

    assert caplog.messages == [
        "pool llama (no_service): Service default/vllm has no EndpointSlice",
        "pool llama: no list yet (file_invalid): endpoints.yaml: not YAML",
    ]


async def test_an_outage_of_pools_is_a_line_a_minute_for_each_kind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock(0.0)
    keepers = [keeper_of(name, clock) for name in "abc"]
    with caplog.filtering(RateLimit(clock)):
        for second in range(600):
            clock.now_s = second
            for keeper in keepers:
                keeper.restarted("connection", "no route")
            keepers[0].restarted("internal", "KeyError at kubernetes.py:7")
        for keeper in keepers:
            keeper.confirm()
            keeper.confirm()

    lines = [(record.levelno, record.getMessage()) for record in caplog.records]
    first = "pool a: no list yet (connection): no route"
    assert lines[0] == (logging.WARNING, first)
    assert 9 <= len([line for level, line in lines if level == logging.WARNING]) <= 10
    assert 9 <= len([line for level, line in lines if level == logging.ERROR]) <= 10
    assert lines[-3:] == [
        (logging.INFO, f"pool {name} has a list again, after 599 s") for name in "abc"
    ]


async def test_a_list_that_says_what_the_last_one_said_is_a_confirmation() -> None:
    """Sources tell what they hear; who is told of a change must be able to believe that there is one."""
    clock = Clock(0.0)
    async with keeping(Told(), hashing(), clock) as (keeper, published):
        keeper.replace([A])
        await until(lambda: published)
        clock.now_s = 60.0
        keeper.lacks("no_service", "for a moment")
        keeper.replace([A])
        confirmed = (keeper.age_s, keeper.fault)
        await asyncio.sleep(0.1)
        keeper.replace([A, B])
        await until(lambda: len(published) > 1)

    assert confirmed == (0.0, None)
    assert published == [["a"], ["a", "b"]]


async def test_a_list_that_could_not_be_placed_is_tried_when_it_is_told_again() -> None:
    class Reluctant(PrefixHash):
        refusals = 1

        def place(self, ready: Mapping[str, Endpoint], before: Placement) -> Ring:
            if ready and self.refusals:
                self.refusals -= 1
                raise ValueError
            return super().place(ready, before)

    async with keeping(Told(), Reluctant(OUTSIDE)) as (keeper, published):
        keeper.replace([A])
        await until(lambda: keeper.fault)
        keeper.replace([A])
        await until(lambda: published)

    assert keeper.pool.snapshot.names == ("a",)


async def test_a_list_that_cannot_be_placed_does_not_keep_the_next_from_being_heard() -> None:
    """A name that UTF-8 cannot spell has no place on a ring."""
    metrics = Metrics()
    async with keeping(Told("ab"), hashing(), metrics=metrics) as (keeper, published):
        await until(lambda: published)
        keeper.replace([Endpoint("\ud800", "10.0.0.1:80")])
        await until(lambda: restarts(metrics) == 1)

        assert published == [["a", "b"]]
        assert keeper.fault
        assert "UnicodeEncodeError at" in keeper.fault.reason

        keeper.replace([C])
        await until(lambda: keeper.pool.snapshot.names == ("c",))

        assert published == [["a", "b"], ["c"]]


def restarts(metrics: Metrics) -> float | None:
    labels = {"pool": "llama", "why": "internal"}
    return metrics.registry.get_sample_value("extproc_watch_restarts_total", labels)


async def test_a_source_that_fails_leaves_the_pool_and_is_run_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def nap(_: float) -> None:
        await asyncio.sleep(0)

    metrics, clock = Metrics(), Clock()
    source = Restarting(Told("ab", failures=3), rng=random.Random(0), sleep=nap)
    async with keeping(source, hashing(), clock, metrics) as (keeper, _):
        await until(
            lambda: restarts(metrics) == 3 and keeper.fault is None and keeper.synced.is_set()
        )
        clock.now_s += 60

        assert keeper.pool.snapshot.names == ("a", "b")
        assert keeper.age_s == 60

    record, *_ = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "RuntimeError at running.py:" in record.getMessage()
    assert "a bug" not in caplog.text


async def test_the_last_of_several_lists_counts_and_another_strategy_takes_over_with_its_placement() -> (
    None
):
    async with keeping(Told("ab", "abc", "c", "ab"), hashing()) as (keeper, published):
        pool, wanted = keeper.pool, hashing(7)
        await until(lambda: published[-1:] == [["a", "b"]])
        keeper.use(wanted)
        assert isinstance(pool.snapshot.placement, Ring)
        assert (pool.strategy is wanted) == (pool.snapshot.placement.positions_per_member == 7)

        await until(lambda: pool.strategy is wanted)

        assert pool.snapshot.placement == Ring("ab", positions=7)


async def test_counts_outlive_every_change_of_strategy() -> None:
    strategies = (
        LeastLoad(OUTSIDE),
        PrefixCache(OUTSIDE),
        PrefixHash(OUTSIDE),
        RoundRobin(OUTSIDE),
    )
    async with keeping(Told("ab"), hashing()) as (keeper, _):
        pool = keeper.pool
        await keeper.synced.wait()
        picks = [pool.pick(PrefixHash(OUTSIDE).reading(1))]
        for strategy in strategies:
            keeper.use(strategy)
            await until(partial(uses, pool, strategy))
            picks.append(pool.pick(strategy.read(None, {}, "")))

        assert pool.book.total == 5

        for pick in picks:
            pick.release()

        assert pool.book.total == 0


async def test_a_strategy_that_changes_while_a_snapshot_is_built_is_the_one_that_stays() -> None:
    """The build that began for the old one ends after the change, and must not bring it back."""
    wanted = hashing(8)

    class Changing:
        async def run(self, sink: Sink) -> None:
            sink.replace(
                [Endpoint(f"default/{number}", f"10.0.{number}.1:80") for number in range(200)]
            )
            await asyncio.sleep(0)  # the installer is woken, and its build begins in a thread
            await asyncio.sleep(0)
            sink.use(wanted)  # type: ignore[attr-defined]  # the sink is the keeper
            await asyncio.Event().wait()

    async with keeping(Changing(), hashing()) as (keeper, _):
        pool = keeper.pool
        await until(lambda: pool.strategy is wanted)
        keeper.replace([A])
        await until(lambda: pool.snapshot.names == ("a",))

    assert pool.strategy is wanted
    assert pool.snapshot.placement == Ring(["a"], positions=8)
