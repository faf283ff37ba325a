"""Asking endpoints for their health: real requests to real ports, in the test's own time."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import patch

import pytest
from aiohttp import ClientSession, ClientTimeout, web

from extproc.router.feedback.cooling import Cooling, Rules, Why
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.feedback.probes import ProbePlan, Prober, probe_health
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.balanced import RoundRobin
from extproc.router.routing.strategies.base import Outside
from tests.clock import Sleeps
from tests.hosting import hosting
from tests.stack.ports import free_ports
from tests.tables import table


def build(count: int) -> PoolFeedback:
    outside = Outside(random.Random(1), lambda: 0.0)
    cooling = Cooling(Rules(), clock=outside.clock, rng=outside.rng)
    pool = Pool("llama", RoundRobin(outside), gate=cooling)
    feedback = PoolFeedback(pool, cooling)
    install(feedback, count)
    return feedback


def install(feedback: PoolFeedback, count: int) -> None:
    endpoints = [Endpoint(f"e{n}", f"10.0.{n // 250}.{n % 250 + 1}:80") for n in range(count)]
    feedback.pool.replace(endpoints)


class Health:
    """Answers by address; everybody else is well."""

    def __init__(self, *sick: str) -> None:
        self.sick = set(sick)
        self.asked = Counter[str]()
        self.open = self.most_open = 0

    async def __call__(self, address: str) -> bool:
        self.asked[address] += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        for _ in range(40):
            await asyncio.sleep(0)
        self.open -= 1
        return address not in self.sick


def prober(feedback: PoolFeedback, sleeps: Sleeps, plan: ProbePlan = ProbePlan()) -> Prober:  # noqa: B008  # frozen
    return Prober(feedback, plan, rng=random.Random(2), sleep=sleeps)


async def test_three_failures_in_a_row_make_an_endpoint_unhealthy_and_one_answer_healthy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "extproc")
    feedback, health = build(4), Health("10.0.0.1:80")
    rounds = prober(feedback, Sleeps())
    seen = []
    for _ in range(5):
        await rounds.probe_all(health)
        seen.append(dict(feedback.cooling.shut()))
    health.sick.clear()
    await rounds.probe_all(health)
    seen.append(dict(feedback.cooling.shut()))

    assert seen == [{}, {}, *[{"e0": Why.UNHEALTHY}] * 3, {}]
    assert set(health.asked.values()) == {6}
    assert [record.getMessage() for record in caplog.records] == [
        "pool llama: e0 did not say that it is healthy 3 times",
        "pool llama: e0 is healthy again",
    ]


async def test_a_probe_says_whether_the_endpoint_of_a_lost_connection_is_there() -> None:
    feedback, health = build(4), Health("10.0.0.1:80")
    with patch.object(feedback, "confirm") as confirm:
        await prober(feedback, Sleeps()).probe_all(health)

    assert {each.args[0]: each.kwargs["is_there"] for each in confirm.call_args_list} == {
        "e0": False,
        "e1": True,
        "e2": True,
        "e3": True,
    }


async def test_questions_are_spread_by_chance_over_the_interval_and_bounded() -> None:
    feedback, health, sleeps = build(40), Health(), Sleeps()
    rounds = prober(feedback, sleeps, ProbePlan(interval_s=4, parallel=3))
    orders = []
    for _ in range(2):
        health.asked.clear()
        await rounds.probe_all(health)
        orders.append([*health.asked])

    assert set(health.asked.values()) == {1}
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]
    assert len(sleeps.asked) == 80
    assert all(0.08 <= seconds <= 0.12 for seconds in sleeps.asked)
    assert len(set(sleeps.asked)) > 60
    assert health.most_open == 3


async def test_a_thousand_endpoints_are_asked_fifty_a_second() -> None:
    sleeps = Sleeps()
    await prober(build(1_000), sleeps).probe_all(Health())

    assert sum(sleeps.asked) == pytest.approx(20, rel=0.1)


async def test_an_empty_pool_is_looked_at_again_after_the_interval() -> None:
    sleeps = Sleeps()
    await prober(build(0), sleeps).probe_all(Health())

    assert sleeps.asked == [pytest.approx(5, rel=0.2)]


async def test_an_endpoint_that_left_meanwhile_is_asked_no_more() -> None:
    feedback, health = build(4), Health("10.0.0.4:80")
    rounds = prober(feedback, Sleeps())
    await rounds.probe_all(health)
    await rounds.probe_all(health)
    install(feedback, 3)
    await rounds.probe_all(health)
    install(feedback, 4)
    await rounds.probe_all(health)

    assert health.asked["10.0.0.4:80"] == 3
    assert feedback.cooling.shut() == {}


@asynccontextmanager
async def serving(status: int, delay_s: float = 0.0) -> AsyncIterator[str]:
    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(delay_s)
        return web.Response(status=status, headers={"location": "/elsewhere"})

    async with hosting({"GET /health": answer}) as address:
        yield f"http://{address}/health"


@table(
    ("status", "is_healthy"),
    [(200, True), (204, True), (302, True), (401, True), (404, True), (500, False), (503, False)],
)
async def test_health_is_an_answer_below_500(status: int, is_healthy: bool) -> None:
    async with serving(status) as url, ClientSession() as session:
        assert await probe_health(session, url) is is_healthy


async def test_silence_and_a_closed_port_are_no_health() -> None:
    [closed] = free_ports(1)
    timeout = ClientTimeout(total=0.2)
    async with serving(200, delay_s=1) as slow, ClientSession(timeout=timeout) as session:
        assert not await probe_health(session, slow)
        assert not await probe_health(session, f"http://127.0.0.1:{closed}/health")
