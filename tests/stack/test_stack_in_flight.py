"""Load is counted while a request is in flight, and not a moment longer."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from tests.stack.client import CHAT, Answer, ask, connect, send, statuses
from tests.stack.gateway import Edit, Tree, cluster
from tests.stack.stack import Stack, eventually, run_stack
from tests.stack.upstream import serve

pytestmark = pytest.mark.envoy

CLIENTS_GONE = 200
STREAMS = 2_000
WAVE = 200
THREADS = 2  # of Envoy, as tests.stack.gateway starts it
JSON = {"content-type": "application/json"}


def _in_flight(stack: Stack) -> int:
    (pool,) = stack.service.pools()
    per_endpoint = sum(endpoint["in_flight"] for endpoint in pool["endpoints"])
    assert per_endpoint == pool["in_flight"]
    return int(per_endpoint)


def _is_idle(stack: Stack) -> bool:
    """Whether nobody counts anything: the service, its metrics, Envoy."""
    envoys = stack.gateway.counters("cluster.")
    # Each thread's access log is a request to the service that never ends.
    asked = max(0, envoys["cluster.extproc.upstream_rq_active"] - THREADS)
    active = [asked, envoys["cluster.vllm.upstream_rq_active"]]
    metrics = [stack.service.metric(name) for name in ("extproc_endpoint_in_flight", "extproc_streams_open")]
    return not any([_in_flight(stack), *active, *metrics])


async def _go_away(session: aiohttp.ClientSession, number: int) -> None:
    """Leaves during the answer or, every other time, within the milliseconds before it begins."""
    patience_s = 30 if number % 2 else 0.001 * (1 + number % 16)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            body = ask(f"gone {number}", max_tokens=2_000, stream=True)
            async with session.post(CHAT, data=body, headers=JSON) as answer:
                await answer.content.readany()
                answer.close()


async def test_clients_that_go_away_leave_nothing_in_flight(stack: Stack) -> None:
    assert eventually(lambda: _is_idle(stack))
    async with connect(stack.url) as session:
        for first in range(0, CLIENTS_GONE, 50):
            await asyncio.gather(*(_go_away(session, first + number) for number in range(50)))

    assert eventually(lambda: _is_idle(stack))


async def test_streams_are_in_flight_until_their_last_byte(tmp_path: Path) -> None:
    """Ten answers are held back by their endpoints: ten in flight; released: none."""
    release = asyncio.Event()

    async def hold(_: bytes) -> bytes:
        await release.wait()
        return b"{}"

    with run_stack(tmp_path, simulate=None) as stack:
        async with serve(stack.ports, hold), connect(stack.url) as session:
            requests = [asyncio.create_task(send(session, ask(f"held {number}"))) for number in range(10)]
            await _until(lambda: _in_flight(stack) == 10)
            release.set()
            answers = await asyncio.gather(*requests)
            await _until(lambda: _is_idle(stack))

    assert statuses(answers) == {200: 10}


async def test_two_thousand_open_streams_are_all_routed(tmp_path: Path) -> None:
    """Twice as many as Envoy's default breakers would let pass, all open at the same time."""
    answered, passed_by = await _open_streams(tmp_path)

    assert (answered, passed_by) == ({200: STREAMS}, 0)


async def test_default_breakers_would_pass_the_service_by(tmp_path: Path) -> None:
    """The proof that the test above can fail: the same load with Envoy's own limit of 1,024."""

    def lower(tree: Tree) -> None:
        del cluster(tree, "extproc")["circuit_breakers"]

    _, passed_by = await _open_streams(tmp_path, lower)

    assert passed_by >= STREAMS - 1_024


async def _open_streams(directory: Path, *edits: Edit) -> tuple[dict[int, int], int]:
    """Opens them all, releases them when all are open; returns statuses and how many nobody routed."""
    release = asyncio.Event()

    async def hold(_: bytes) -> bytes:
        await release.wait()
        return b"{}"

    with run_stack(directory, simulate=None, edits=edits) as stack:
        async with serve(stack.ports, hold), connect(stack.url) as session:
            requests = await _open_in_waves(stack, session)
            release.set()
            answers = await asyncio.gather(*requests)
            await _until(lambda: _is_idle(stack))
        return statuses(answers), stack.gateway.ext_proc()["failure_mode_allowed"]


async def _open_in_waves(stack: Stack, session: aiohttp.ClientSession) -> list[asyncio.Task[Answer]]:
    requests: list[asyncio.Task[Answer]] = []

    def are_open() -> bool:
        return _held(stack) + sum(request.done() for request in requests) >= len(requests)

    for first in range(0, STREAMS, WAVE):
        texts = [f"open {first + number}" for number in range(WAVE)]
        requests += [asyncio.create_task(send(session, ask(text))) for text in texts]
        await _until(are_open)
    return requests


def _held(stack: Stack) -> int:
    name = "cluster.vllm.upstream_rq_active"
    return stack.gateway.counters(name)[name]


async def _until(is_true: Callable[[], bool], timeout_s: float = 60) -> None:
    """Polls without stopping the endpoints and clients of the test's own loop."""
    async with asyncio.timeout(timeout_s):
        while not await asyncio.to_thread(is_true):  # noqa: ASYNC110  # it is another process's state
            await asyncio.sleep(0.05)
