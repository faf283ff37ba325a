"""The driver on a clock of the test's own: the engine's schedule, and nothing of this machine's."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count

import pytest
from prometheus_client import CollectorRegistry

from extproc.simulator.engine.engine import Engine
from extproc.simulator.engine.profiles import Profile, find_profile
from extproc.simulator.fleet.chats import Demand
from extproc.simulator.fleet.fleet import Setup, simulate_fleet
from extproc.simulator.fleet.gateway import Routing
from extproc.simulator.fleet.split import DEFAULT_TRANSFER
from extproc.simulator.fleet.traffic import Traffic
from extproc.simulator.fleet.workloads import draw_sessions
from extproc.simulator.http.driver import Clock, Driver, Generation, Job
from extproc.simulator.http.exposition import Distributions
from tests.simulator.face import QUICK
from tests.simulator.prompts import write_prompt


class VirtualClock(Clock):
    """A clock that jumps to the next moment somebody waits for, once nobody has anything to do."""

    def __init__(self) -> None:
        super().__init__(1.0, lambda: 0.0)
        self._now = 0.0
        self._order = count()
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep_until(self, at: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (at, next(self._order), woken))
        await woken

    async def run(self) -> None:
        while True:
            for _ in range(10):
                await asyncio.sleep(0)
            if self._waiting:
                self._now, _, woken = heappop(self._waiting)
                woken.set_result(None)


@asynccontextmanager
async def driving(
    profile: Profile, clock: VirtualClock
) -> AsyncIterator[tuple[Driver, CollectorRegistry]]:
    registry = CollectorRegistry()
    driver = Driver(Engine(profile), clock, Distributions(registry, "tiny", profile))
    tasks = [asyncio.create_task(driver.run()), asyncio.create_task(clock.run())]
    yield driver, registry
    for task in tasks:
        task.cancel()


async def finish(generation: Generation) -> Generation:
    while not generation.is_finished:
        await generation.wake.wait()
        generation.wake.clear()
    return generation


async def test_a_trace_gets_the_same_times_as_in_the_virtual_fleet() -> None:
    profile = replace(find_profile("l4-llama8b-fp8"), max_num_seqs=16)
    sessions = draw_sessions("replay", Demand(120), seed=7)
    flights = simulate_fleet(
        Setup([profile], 1, Routing("round_robin"), Traffic(rate=6)), sessions
    ).flights
    clock = VirtualClock()
    async with driving(profile, clock) as (driver, _):

        async def send(number: int) -> Generation:
            flight = flights[number]
            await clock.sleep_until(flight.sent_at)
            prompt = write_prompt(flight.session, flight.turn)
            output = range(number << 40, (number << 40) + flight.plan.output_tokens)
            return await finish(driver.submit(Job(str(number), prompt, output), asyncio.Event()))

        generations = await asyncio.gather(*map(send, range(len(flights))))

    assert [one.first_token_at for one in generations] == pytest.approx(
        [one.first_at for one in flights]
    )
    assert [one.last_token_at for one in generations] == pytest.approx(
        [one.ended_at for one in flights]
    )
    assert [one.cached_tokens for one in generations] == [one.cached_tokens for one in flights]


LABELS = {"engine": "0", "model_name": "tiny"}


async def test_a_preempted_request_is_counted_and_finishes() -> None:
    profile = replace(QUICK, kv_tokens=128, max_model_len=128)
    jobs = [
        Job(str(number), [number] * 40, range(number << 20, (number << 20) + 60))
        for number in (1, 2)
    ]
    async with driving(profile, VirtualClock()) as (driver, registry):
        generations = [driver.submit(job, asyncio.Event()) for job in jobs]
        await asyncio.gather(*map(finish, generations))

    assert [one.emitted for one in generations] == [60, 60]
    assert (
        sum(one.preemptions for one in generations) == driver.engine.counters.preemptions_total > 0
    )
    assert registry.get_sample_value("vllm:request_num_preemptions_count", LABELS) == 2


async def test_a_computed_prompt_takes_as_long_as_in_the_fleet_less_what_is_cached() -> None:
    clock, waits, size = VirtualClock(), [], QUICK.block_size
    job = Job("a", [*range(1_000)], range(1), is_computed=True)
    async with driving(QUICK, clock) as (driver, _):
        for _ in range(2):
            asked_at = clock.now()
            await driver.receive(job)
            waits.append(clock.now() - asked_at)
            await finish(driver.submit(job, asyncio.Event()))

    lacking = [1_000, 1_000 - 999 // size * size]
    assert waits == pytest.approx([DEFAULT_TRANSFER.way_ms(each) / 1000 for each in lacking])


async def test_what_is_aborted_before_its_first_token_is_not_measured() -> None:
    async with driving(QUICK, VirtualClock()) as (driver, registry):
        gone, stays = (
            driver.submit(Job(name, [7] * 40, range(10)), asyncio.Event())
            for name in ("gone", "stays")
        )
        await asyncio.sleep(0)
        driver.abort(gone)
        driver.abort(gone)
        await finish(stays)

    assert (gone.emitted, stays.emitted) == (0, 10)
    assert registry.get_sample_value("vllm:e2e_request_latency_seconds_count", LABELS) == 1
    assert driver.running == driver.waiting == 0


class LateClock(VirtualClock):
    """A clock on a machine that wakes up `late_s` after it should."""

    def __init__(self, late_s: float) -> None:
        super().__init__()
        self._late_s = late_s

    async def sleep_until(self, at: float) -> None:
        await super().sleep_until(max(at + self._late_s, self.now()))


@pytest.mark.parametrize(("late_s", "lines"), [(60.0, 1), (0.2, 0)])
async def test_an_engine_that_is_late_says_so_once_and_reports_no_negative_time(
    caplog: pytest.LogCaptureFixture, late_s: float, lines: int
) -> None:
    async with driving(QUICK, LateClock(late_s)) as (driver, registry):
        with caplog.at_level(logging.WARNING, "extproc.simulator"):
            first = driver.submit(Job("1", [7] * 40, range(20)), asyncio.Event())
            await first.wake.wait()
            # It comes by a clock that is far ahead of the engine's schedule.
            second = driver.submit(Job("2", [8] * 40, range(5)), asyncio.Event())
            await asyncio.gather(finish(first), finish(second))

    assert second.first_token_at < second.arrived_at
    measured = {
        sample.name.removeprefix("vllm:"): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name.endswith(("_sum", "_count"))
    }
    assert {name: value for name, value in measured.items() if value < 0} == {}
    assert measured["time_to_first_token_seconds_count"] == 1 - lines  # a late engine says none
    assert measured["request_generation_tokens_sum"] == 25
    assert [record.message.partition(" s late")[2] for record in caplog.records] == [
        ": this machine is too slow for its load. Latencies of late requests are left out of /metrics"
    ] * lines
