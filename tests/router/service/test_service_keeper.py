"""What a keeper tells of its pool, and when."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from extproc.router.cluster.source import Sink
from extproc.router.logs import RateLimit
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool
from extproc.router.routing.ring import Ring
from extproc.router.routing.strategies.balanced import RoundRobin
from extproc.router.routing.strategies.base import Outside, Placement
from extproc.router.routing.strategies.prefix_hash import PrefixHash
from extproc.router.service.keeper import PoolKeeper
from extproc.router.telemetry import Metrics
from tests.clock import Clock
from tests.waiting import until


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


async def test_what_a_source_lacks_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """The API server's bookmarks and a file's polls say it again every minute, every five seconds."""
    pool = Pool("llama", PrefixHash(Outside(Random(1), lambda: 0.0)))
    keeper = PoolKeeper(pool, Metrics(), clock=lambda: 0.0, on_change=lambda _, __: None)
    for _ in range(10):
        keeper.lacks("no_service", "Service default/vllm has no EndpointSlice")
    keeper.restarted("file_invalid", "endpoints.yaml: not YAML")
    for _ in range(10):
        keeper.lacks("file_invalid", "endpoints.yaml: not YAML")

    assert [record.getMessage() for record in caplog.records] == [
        "pool llama (no_service): Service default/vllm has no EndpointSlice",
        "pool llama: no word for 0 s (file_invalid), what is known stays: endpoints.yaml: not YAML",
    ]


async def test_an_outage_of_many_pools_is_a_line_a_minute_for_each_kind_of_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock(0.0)
    outside = Outside(Random(1), clock)
    keepers = [
        PoolKeeper(Pool(name, RoundRobin(outside)), Metrics(), clock=clock, on_change=lambda _, __: None)
        for name in "abc"
    ]
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
    assert lines[0] == (
        logging.WARNING,
        "pool a: no word for 0 s (connection), what is known stays: no route",
    )
    assert 9 <= len([line for level, line in lines if level == logging.WARNING]) <= 10
    assert 9 <= len([line for level, line in lines if level == logging.ERROR]) <= 10
    assert lines[-3:] == [(logging.INFO, f"pool {name} is heard of again, after 599 s") for name in "abc"]


async def test_a_list_that_says_what_the_last_one_said_is_a_confirmation() -> None:
    """Sources tell what they hear; who is told of a change must be able to believe that there is one."""
    told: list[Sequence[Endpoint]] = []
    now_s = 0.0
    pool = Pool("llama", PrefixHash(Outside(Random(1), lambda: 0.0)))
    keeper = PoolKeeper(
        pool, Metrics(), clock=lambda: now_s, on_change=lambda _, endpoints: told.append(endpoints)
    )
    task = asyncio.create_task(keeper.run(Quiet()))
    one, two = Endpoint("default/a", "10.0.0.1:80"), Endpoint("default/b", "10.0.0.2:80")
    try:
        keeper.replace([one])
        await until(lambda: told)
        now_s = 60.0
        keeper.lacks("no_service", "for a moment")
        keeper.replace([one])
        confirmed = (keeper.age_s, keeper.fault)
        await asyncio.sleep(0.1)
        keeper.replace([one, two])
        await until(lambda: len(told) > 1)
    finally:
        task.cancel()

    assert confirmed == (0.0, None)
    assert told == [(one,), (one, two)]


async def test_a_list_that_could_not_be_placed_is_tried_when_it_is_told_again() -> None:
    told: list[Sequence[Endpoint]] = []

    class Reluctant(PrefixHash):
        refusals = 1

        def place(self, ready: Mapping[str, Endpoint], before: Placement) -> Ring:
            if ready and self.refusals:
                self.refusals -= 1
                raise ValueError
            return super().place(ready, before)

    pool = Pool("llama", Reluctant(Outside(Random(1), lambda: 0.0)))
    keeper = PoolKeeper(
        pool, Metrics(), clock=lambda: 0.0, on_change=lambda _, endpoints: told.append(endpoints)
    )
    task = asyncio.create_task(keeper.run(Quiet()))
    try:
        keeper.replace([Endpoint("default/a", "10.0.0.1:80")])
        await until(lambda: keeper.fault)
        keeper.replace([Endpoint("default/a", "10.0.0.1:80")])
        await until(lambda: told)
    finally:
        task.cancel()

    assert pool.snapshot.names == ("default/a",)


async def test_a_strategy_that_changes_while_a_snapshot_is_built_is_the_one_that_stays() -> None:
    """The build that began for the old one ends after the change, and must not bring it back."""
    outside = Outside(Random(1), lambda: 0.0)
    pool, wanted = Pool("llama", PrefixHash(outside, positions=4)), PrefixHash(outside, positions=8)
    keeper = PoolKeeper(pool, Metrics(), clock=lambda: 0.0, on_change=lambda _, __: None)

    class Told:
        async def run(self, sink: Sink) -> None:
            sink.replace([Endpoint(f"default/{number}", f"10.0.{number}.1:80") for number in range(200)])
            await asyncio.sleep(0)  # the installer is woken, and its build begins in a thread
            await asyncio.sleep(0)
            keeper.use(wanted)
            await asyncio.Event().wait()

    task = asyncio.create_task(keeper.run(Told()))
    try:
        await until(lambda: pool.strategy is wanted)
        keeper.replace([Endpoint("default/a", "10.0.0.1:80")])
        await until(lambda: pool.snapshot.names == ("default/a",))
    finally:
        task.cancel()

    assert pool.strategy is wanted
    assert pool.snapshot.placement == Ring(["default/a"], positions=8)
