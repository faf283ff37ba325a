"""Several workers behind one address: a real Envoy, real processes, and what happens when one is killed."""

import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import aiohttp
import pytest

from tests.slow.stack.test_stack_feedback import errors, fault, load
from tests.stack.client import CHAT, Answer, ask, connect, send, statuses
from tests.stack.service import pool
from tests.stack.stack import Stack, eventually, run_stack
from tests.stack.workers import Workers

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

LONG_S = 60.0
LANES = (0, 1)
LEAST_LOAD = {"name": "least_load"}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Two workers, with which each test leaves off as it found them."""
    with run_stack(tmp_path_factory.mktemp("workers"), workers=2) as stack:
        yield stack


async def becomes(is_true: Callable[[], bool], timeout_s: float = LONG_S) -> float:
    """Returns after how many seconds it is so; fails if it is not."""
    began_s = time.monotonic()
    assert await asyncio.to_thread(eventually, is_true, timeout_s)
    return time.monotonic() - began_s


async def ask_many(url: str, count: int, text: str) -> list[Answer]:
    """Sends them over 32 connections, which Envoy's two threads share."""
    async with connect(url) as session:
        slots = asyncio.Semaphore(32)

        async def ask_one(number: int) -> Answer:
            async with slots:
                return await send(session, ask(f"{text} {number}", max_tokens=20, ignore_eos=True))

        return await asyncio.gather(*(ask_one(number) for number in range(count)))


async def both_work(stack: Stack, text: str) -> bool:
    """Whether each of the workers gets a good part of 200 requests."""
    workers = Workers(stack.service)
    before = [workers.picks(lane) for lane in LANES]
    assert statuses(await ask_many(stack.url, 200, text)) == {200: 200}
    picks = [workers.picks(lane) - earlier for lane, earlier in zip(LANES, before, strict=True)]
    return min(picks) >= 30


async def soon_both_work(stack: Stack, text: str) -> None:
    deadline = time.monotonic() + LONG_S
    while not await both_work(stack, f"{text} {time.monotonic()}"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.5)


async def test_requests_of_two_threads_of_envoy_go_to_both_workers(two: Stack) -> None:
    await soon_both_work(two, "spread")
    counters = two.gateway.counters("cluster.extproc.upstream_cx_active")

    assert counters["cluster.extproc.upstream_cx_active"] >= 2


async def stream(session: aiohttp.ClientSession, number: int) -> bytes:
    """Reads a streamed answer of some seconds to its end."""
    body = ask(f"stream {number}", max_tokens=1500, stream=True, ignore_eos=True)
    async with session.post(CHAT, data=body, headers={"content-type": "application/json"}) as answer:
        assert answer.status == 200
        return await answer.read()


async def test_a_killed_worker_costs_no_answer_and_its_counts_are_gone_at_once(two: Stack) -> None:
    """A worker is killed while answers stream.

    1. Both workers have open requests, and each counts those of both. 2. One is killed. The other one's
    counts are its own soon. 3. Another process is there in its place, with its endpoints. 4. All answers are
    whole. 5. Both get requests again.
    """
    workers = Workers(two.service)
    await soon_both_work(two, "before")
    # From then on each counts the other one's requests.
    await becomes(
        lambda: [1, 1] == [workers.metric(lane, "extproc_share_peers", state="prompt") for lane in LANES]
    )
    async with connect(two.url) as session:
        streams = [asyncio.create_task(stream(session, number)) for number in range(32)]
        await becomes(lambda: {32} == {workers.in_flight(lane) for lane in LANES})
        own = workers.metric(1, "extproc_endpoint_in_flight")
        assert 0 < own < 32
        killed = workers.kill(0)
        gone_s = await becomes(lambda: workers.in_flight(1) <= own)
        back_s = gone_s + await becomes(lambda: workers.is_replaced(0, killed))
        answers = await asyncio.gather(*streams)

    print(f"counts gone after {1000 * gone_s:.0f} ms, back after {1000 * back_s:.0f} ms")  # noqa: T201
    assert {b"data: [DONE]\n\n"} == {answer[-14:] for answer in answers}
    await becomes(lambda: len(workers.pools(0)[0]["endpoints"]) == 4)
    await soon_both_work(two, "after")


async def test_workers_killed_again_and_again_come_back(two: Stack) -> None:
    workers = Workers(two.service)
    for lane in (0, 1, 1):
        killed = workers.kill(lane)
        await becomes(partial(workers.is_replaced, lane, killed))
        await becomes(two.gateway.sees_service)
    await soon_both_work(two, "again and again")
    assert two.service.metric("extproc_worker_restarts_total") >= 3


async def test_settings_change_in_all_workers_and_bad_ones_are_refused_once(two: Stack) -> None:
    """1. A pool gets a limit: both workers say so. 2. Bad settings: one line. 3. Good ones, as they were."""
    workers, service = Workers(two.service), two.service

    def told(word: str) -> list[bool]:
        return [word in workers.get(lane, "/config") for lane in LANES]

    service.configure([pool(two.addresses, max_in_flight=777)], workers=2)
    await becomes(lambda: told("777") == [True, True])
    service.config.write_text("pools: []")
    await becomes(lambda: "refused" in service.log.read_text())
    assert [True, True] == told("777")
    service.configure([pool(two.addresses)], workers=2)
    await becomes(lambda: told("777") == [False, False])
    assert service.log.read_text().count("refused") == 1
    await soon_both_work(two, "reload")


async def failures(stack: Stack, text: str) -> tuple[int, list[dict[str, str]]]:
    """How many of some requests fail while one endpoint does; and the endpoints' states, by worker."""
    workers = Workers(stack.service)
    await fault(stack.addresses[3], error_rate=1)
    async with connect(stack.url) as session:
        answers = await load(session, 300, text)
    states = [workers.states(lane) for lane in workers.pids]
    await fault(stack.addresses[3])
    return errors(answers), states


async def test_a_failing_endpoint_is_cooled_down_for_all_workers(tmp_path: Path, two: Stack) -> None:
    """One of four endpoints answers 500, with one worker and with two: as few requests fail."""
    with run_stack(tmp_path, pools=lambda addresses: [pool(addresses, LEAST_LOAD)]) as one:
        alone, _ = await failures(one, "alone")
    two.service.configure([pool(two.addresses, LEAST_LOAD)], workers=2)
    await becomes(lambda: two.service.pools()[0]["strategy"] == "least_load")
    await soon_both_work(two, "cooling")
    both, states = await failures(two, "both")

    print(f"of 300 requests failed {alone} with one worker, {both} with two")  # noqa: T201
    assert ["cooling", "cooling"] == [one[two.addresses[3]] for one in states]
    assert both <= alone + 6
