"""Asking endpoints for their metrics and health: real requests to real ports, in the test's own time."""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import AsyncMock, patch

import pytest
from aiohttp import ClientSession, ClientTimeout, web
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from extproc.errors import ProtocolError
from extproc.router.feedback.cooling import Cooling, Rules, Why
from extproc.router.feedback.feedback_metrics import FeedbackCollector
from extproc.router.feedback.outcome import Outcome, Verdict
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.feedback.probes import ProbePlan, Prober, probe_health
from extproc.router.feedback.scraper import (
    MAX_PAGE_BYTES,
    ScrapePlan,
    Scraper,
    fetch_signals,
    read_signals,
)
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool
from extproc.router.routing.prompt.parse import parse
from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.balanced import RoundRobin
from extproc.router.routing.strategies.base import Strategy
from extproc.router.routing.strategies.prefix_cache.engine import DEFAULT_ENGINE, ENGINES
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from tests.clock import Sleeps
from tests.hosting import hosting
from tests.router.outside import fixed_outside
from tests.stack.ports import free_ports
from tests.tables import table
from tests.waiting import until

OUTSIDE = fixed_outside(1)
PAGE = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:prefix_cache_queries_total 40\n"
LONG = parse("/v1/completions", "", b'{"prompt": "' + b"why " * 500 + b'"}')


def build_asked_pool(*addresses: str, strategy: Strategy | None = None) -> PoolFeedback:
    cooling = Cooling(Rules(), clock=OUTSIDE.clock, rng=OUTSIDE.rng)
    pool = Pool("llama", strategy or PrefixCache(OUTSIDE), gate=cooling)
    pool.replace([Endpoint(f"e{number}", address) for number, address in enumerate(addresses)])
    return PoolFeedback(pool, cooling)


def scraper(feedback: PoolFeedback, sleeps: Sleeps, interval_s: float = 5.0) -> Scraper:
    return Scraper(feedback, ScrapePlan(interval_s), rng=random.Random(2), sleep=sleeps)


async def scrape_signals(address: str, timeout_s: float = 5.0) -> EndpointSignals | None:
    async with ClientSession(timeout=ClientTimeout(total=timeout_s)) as session:
        return await fetch_signals(session, f"http://{address}/metrics")


async def test_the_metrics_of_an_endpoint_reach_its_pool() -> None:
    async def report(_: web.Request) -> web.Response:
        return web.Response(
            body=PAGE + b'vllm:cache_config_info{kv_cache_size_tokens="5000"} 1.0\n'
        )

    async with hosting({"GET /metrics": report}) as address:
        feedback = build_asked_pool(address)
        await scraper(feedback, Sleeps()).scrape_all(scrape_signals)
    endpoints = feedback.pool.describe_engines()["endpoints"]

    assert feedback.signals["e0"] == EndpointSignals(3, 2, 5_000, 40)
    assert endpoints["e0"]["cache_tokens"] == 5_000  # type: ignore[index]
    assert endpoints["e0"]["waiting"] == 2  # type: ignore[index]


@table(
    "page",
    [
        web.Response(status=404),
        web.Response(status=500, body=PAGE),
        web.Response(body=b"hello"),
        web.Response(status=302, headers={"location": "/metrics?again"}),
        web.Response(body=PAGE + b"#" * MAX_PAGE_BYTES),
    ],
    ids=["404", "500", "no metrics", "elsewhere", "too much"],
)
async def test_an_endpoint_without_useful_metrics_is_not_known(page: web.Response) -> None:
    async def report(_: web.Request) -> web.Response:
        return page

    async with hosting({"GET /metrics": report}) as address:
        assert await scrape_signals(address) is None


async def test_an_endpoint_that_is_not_there_or_never_ends_its_answer_is_given_up() -> None:
    async def report(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(PAGE)
        await asyncio.sleep(60)
        return response

    async with hosting({"GET /metrics": report}) as address:
        assert await scrape_signals(address, timeout_s=0.2) is None
    assert await scrape_signals(f"127.0.0.1:{free_ports(1)[0]}") is None


async def test_silence_is_logged_once_its_end_too_and_who_shares_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "extproc")
    feedback = build_asked_pool("10.0.0.1:80", strategy=PrefixCache(OUTSIDE, gateways=2))
    rounds = scraper(feedback, Sleeps())
    for signals in (EndpointSignals(), None, None, EndpointSignals(), None):
        await rounds.scrape_all(AsyncMock(return_value=signals))

    assert [record.getMessage() for record in caplog.records] == [
        "pool llama: about 2 services route it and share no picks: see docs/how-to/several-replicas.md",
        "pool llama: 1 endpoints give no metrics, e0 for one",
        "pool llama: every endpoint gives its metrics",
        "pool llama: 1 endpoints give no metrics, e0 for one",
    ]


def test_nothing_is_known_of_an_endpoint_that_is_gone_or_asked_no_more() -> None:
    feedback = build_asked_pool("10.0.0.1:80")
    endpoint = feedback.pool.snapshot.ready["e0"]
    feedback.apply_signals(endpoint, EndpointSignals(waiting=9))
    feedback.forget_signals()
    assert feedback.signals == {}
    assert feedback.pool.describe_engines()["endpoints"]["e0"]["waiting"] is None  # type: ignore[index]

    feedback.pool.replace([Endpoint("e0", "10.0.0.9:80")])
    feedback.apply_signals(endpoint, EndpointSignals(waiting=9))

    assert feedback.signals == {}


@table(
    ("status", "answers_us", "is_dropped"),
    [(0, [False], True), (0, [True], False), (0, [True, False], False), (500, [False], False)],
)
def test_what_an_endpoint_held_is_dropped_when_it_does_not_answer_us_either(
    status: int, answers_us: list[bool], is_dropped: bool
) -> None:
    strategy = PrefixCache(OUTSIDE)
    feedback = build_asked_pool("10.0.0.1:80", "10.0.0.2:80", strategy=strategy)
    pick = feedback.pool.pick(strategy.read(LONG, {}, ""))
    pick.release()
    for _ in range(3):
        feedback.observe(Outcome(pick.endpoint.address, Verdict.FAILED, status, 0.1))
    assert feedback.pool.left_out() == {pick.endpoint.name: "cooling"}
    assert len(strategy.index) > 0

    for is_there in answers_us:
        feedback.apply_signals(pick.endpoint, EndpointSignals() if is_there else None)

    assert (len(strategy.index) == 0) == is_dropped


def test_operators_see_what_was_predicted_and_what_was_found() -> None:
    strategy = PrefixCache(OUTSIDE)
    feedback = build_asked_pool("10.0.0.1:80", strategy=strategy)
    for _ in range(2):
        feedback.pool.pick(strategy.read(LONG, {}, "")).release()
    e0 = feedback.pool.snapshot.ready["e0"]
    feedback.apply_signals(e0, EndpointSignals(queried_tokens=1_000, hit_tokens=400))
    registry = CollectorRegistry()
    registry.register(FeedbackCollector(lambda: [feedback]))

    def signals_of(family: str, **labels: str) -> float | None:
        return registry.get_sample_value(
            f"extproc_{family}_tokens_total", {"pool": "llama", **labels}
        )

    assert signals_of("predicted", reason="cold", cached="yes") == 0
    assert signals_of("predicted", reason="cold", cached="no") == 500
    assert signals_of("predicted", reason="prefix", cached="yes") == 256, "whole blocks"
    saved_s = registry.get_sample_value(
        "extproc_saved_prefill_seconds_total", {"pool": "llama", "reason": "prefix"}
    )
    assert saved_s == pytest.approx(
        256 * ENGINES[DEFAULT_ENGINE].prefill_ms_per_token / 1000, rel=0.2
    )
    assert signals_of("measured", endpoint="e0", cached="yes") == 400
    assert signals_of("measured", endpoint="e0", cached="no") == 600

    feedback.keep([])

    assert signals_of("measured", endpoint="e0", cached="yes") is None


async def test_a_connection_is_kept_from_one_time_to_the_next() -> None:
    peers: list[object] = []

    async def report(request: web.Request) -> web.Response:
        peers.append(request.transport and request.transport.get_extra_info("peername"))
        return web.Response(body=PAGE)

    async with hosting({"GET /metrics": report}) as address:
        reading = Scraper(build_asked_pool(address), ScrapePlan(0.01), rng=random.Random(2))
        task = asyncio.create_task(reading.run())
        await until(lambda: len(peers) >= 3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    assert len(set(peers)) == 1


REAL = (Path(__file__).parents[2] / "simulator/data/metrics-0.32.0.txt").read_bytes()

LEAST = b"vllm:num_requests_running 0\n"


def labelled(name: str, value: object, engine: int = 0) -> bytes:
    return f'vllm:{name}{{engine="{engine}",model_name="a"}} {value}\n'.encode()


def test_the_page_of_a_real_vllm_is_read() -> None:
    signals = read_signals(REAL)

    assert (signals.kv_tokens, signals.block_tokens) == (1_048_576, 32)
    assert signals.started_s > 1.7e9
    assert 0 < signals.hit_tokens < signals.queried_tokens
    assert min(signals.prompt_tokens, signals.prefills, signals.prefill_s) > 0


def test_every_figure_is_found_in_its_place_and_names_that_begin_alike_are_others() -> None:
    figures = {
        "num_requests_running": 1,
        "num_requests_waiting": 2,
        "kv_cache_usage_perc": 0.5,
        "prefix_cache_queries_total": 30,
        "prefix_cache_hits_total": 4,
        "prompt_tokens_total": 50,
        "request_prefill_time_seconds_count": 6,
        "request_prefill_time_seconds_sum": 0.7,
        "time_to_first_token_seconds_count": 12,
        "time_to_first_token_seconds_sum": 1.3,
        "e2e_request_latency_seconds_count": 9,
        "e2e_request_latency_seconds_sum": 11,
    }
    named = figures | {"num_requests_waiting_by_reason": 9, "prompt_tokens_total_more": 9}
    page = b"".join(
        f"# HELP vllm:{name} Text.\n".encode() + labelled(name, named[name]) for name in named
    )

    assert read_signals(page + b"process_start_time_seconds 8.0\n") == EndpointSignals(
        1, 2, None, 30, 4, 50, 6, 0.7, 8, 0, 9, 11, 0.5, 12, 1.3
    )


def test_engines_of_one_server_are_added_up() -> None:
    config = b'vllm:cache_config_info{block_size="16",engine="%d",num_gpu_blocks="100"} 1.0\n'
    page = (
        labelled("num_requests_running", 3)
        + labelled("num_requests_running", 4, 1)
        + config % 0
        + config % 1
    )
    usage = labelled("kv_cache_usage_perc", 0.25) + labelled("kv_cache_usage_perc", 0.5, 1)

    assert read_signals(page) == EndpointSignals(running=7, kv_tokens=3_200, block_tokens=16)
    assert read_signals(page + usage).kv_usage == 0.375


@table(
    ("labels", "kv_tokens"),
    [
        (b'kv_cache_size_tokens="500",block_size="16",num_gpu_blocks="100"', 500),
        (b'block_size="16",kv_cache_size_tokens="None",num_gpu_blocks="100"', 1_600),
        (b'effective_attention_block_size="8",num_gpu_blocks="100"', None),
        (b'block_size="16",num_gpu_blocks="None"', None),
    ],
)
def test_the_size_of_a_cache_is_read_in_two_ways(labels: bytes, kv_tokens: int | None) -> None:
    assert read_signals(LEAST + b"vllm:cache_config_info{%b} 1.0" % labels).kv_tokens == kv_tokens


@table(
    "page",
    [
        b"",
        b"<html>",
        labelled("num_requests_waiting", 1),
        *(labelled("num_requests_running", v) for v in ("NaN", "x", "", -1, "inf")),
        labelled("num_requests_running", 1)
        + b'vllm:cache_config_info{num_gpu_blocks="999999999999",block_size="999999"} 1.0\n',
    ],
)
def test_a_page_that_is_not_vllms_is_refused(page: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_signals(page)


@given(st.binary(max_size=300), st.integers(0, len(REAL)))
def test_any_bytes_are_read_or_refused(data: bytes, at: int) -> None:
    for page in (data, REAL[:at] + data, LEAST + data, b"vllm:num_requests_running{" + data):
        try:
            signals = read_signals(page)
        except ProtocolError:
            continue

        assert signals.running >= 0


def build_many(count: int) -> PoolFeedback:
    outside = fixed_outside(1)
    cooling = Cooling(Rules(), clock=outside.clock, rng=outside.rng)
    pool = Pool("llama", RoundRobin(outside), gate=cooling)
    feedback = PoolFeedback(pool, cooling)
    replace_endpoints(feedback, count)
    return feedback


def replace_endpoints(feedback: PoolFeedback, count: int) -> None:
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
    feedback, health = build_many(4), Health("10.0.0.1:80")
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
    feedback, health = build_many(4), Health("10.0.0.1:80")
    with patch.object(feedback, "confirm") as confirm:
        await prober(feedback, Sleeps()).probe_all(health)

    assert {each.args[0]: each.kwargs["is_there"] for each in confirm.call_args_list} == {
        "e0": False,
        "e1": True,
        "e2": True,
        "e3": True,
    }


async def test_questions_are_spread_by_chance_over_the_interval_and_bounded() -> None:
    feedback, health, sleeps = build_many(40), Health(), Sleeps()
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
    await prober(build_many(1_000), sleeps).probe_all(Health())

    assert sum(sleeps.asked) == pytest.approx(20, rel=0.1)


async def test_an_empty_pool_is_looked_at_again_after_the_interval() -> None:
    sleeps = Sleeps()
    await prober(build_many(0), sleeps).probe_all(Health())

    assert sleeps.asked == [pytest.approx(5, rel=0.2)]


async def test_an_endpoint_that_left_meanwhile_is_asked_no_more() -> None:
    feedback, health = build_many(4), Health("10.0.0.4:80")
    rounds = prober(feedback, Sleeps())
    await rounds.probe_all(health)
    await rounds.probe_all(health)
    replace_endpoints(feedback, 3)
    await rounds.probe_all(health)
    replace_endpoints(feedback, 4)
    await rounds.probe_all(health)

    assert health.asked["10.0.0.4:80"] == 3
    assert feedback.cooling.shut() == {}


@asynccontextmanager
async def serving_status(status: int, delay_s: float = 0.0) -> AsyncIterator[str]:
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
    async with serving_status(status) as url, ClientSession() as session:
        assert await probe_health(session, url) is is_healthy


async def test_silence_and_a_closed_port_are_no_health() -> None:
    [closed] = free_ports(1)
    timeout = ClientTimeout(total=0.2)
    async with serving_status(200, delay_s=1) as slow, ClientSession(timeout=timeout) as session:
        assert not await probe_health(session, slow)
        assert not await probe_health(session, f"http://127.0.0.1:{closed}/health")
