"""A full pool, with a real Envoy: who is refused, who is let in, and what the endpoints hear of it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.stack.client import Answer, ask, connect, send
from tests.stack.service import pool
from tests.stack.stack import Stack, eventually, run_stack

pytestmark = pytest.mark.envoy

OBJECTIVE, CLIENT = "x-gateway-inference-objective", "x-gateway-inference-fairness-id"
# Four endpoints, one request each: a fifth is one too many, and one place more is the headroom.
SETTINGS: dict[str, Any] = {"max_in_flight": 1, "objectives": {"batch": -10, "premium": 10}, "fairness": True}


@dataclass
class Endpoints:
    """Endpoints that answer when the test says so, and remember what they heard."""

    arrived: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    release: asyncio.Event = field(default_factory=asyncio.Event)
    heard: list[set[str]] = field(default_factory=list)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.heard.append({name.lower() for name in request.headers})
        self.arrived.release()
        await self.release.wait()
        return web.Response(body=b"{}")


@asynccontextmanager
async def serving(ports: Sequence[int]) -> AsyncIterator[Endpoints]:
    endpoints = Endpoints()
    runner = web.ServerRunner(web.Server(endpoints.answer))
    await runner.setup()
    try:
        for port in ports:
            await web.TCPSite(runner, "127.0.0.1", port).start()
        yield endpoints
    finally:
        endpoints.release.set()
        await runner.cleanup()


async def fill(
    session: aiohttp.ClientSession, endpoints: Endpoints, headers: dict[str, str], count: int = 4
) -> list[asyncio.Task[Answer]]:
    """Sends so many requests and waits until each is at an endpoint."""
    tasks = [
        asyncio.create_task(send(session, ask(f"{headers} {number}"), headers=headers))
        for number in range(count)
    ]
    for _ in tasks:
        await endpoints.arrived.acquire()
    return tasks


def in_flight(stack: Stack) -> int:
    [told] = stack.service.pools()
    return sum(endpoint["in_flight"] for endpoint in told["endpoints"])


async def test_a_pool_full_of_batch_refuses_batch_and_lets_others_in(tmp_path: Path) -> None:
    with run_stack(tmp_path, simulate=None, pools=lambda a: [pool(a, **SETTINGS)]) as stack:
        async with serving(stack.ports) as endpoints, connect(stack.url) as session:
            held = await fill(session, endpoints, {OBJECTIVE: "batch"})
            refused = await send(session, ask("one more"), headers={OBJECTIVE: "batch"})
            held += await fill(session, endpoints, {OBJECTIVE: "no-such-objective"}, 1)
            full = await send(session, ask("premium"), headers={OBJECTIVE: "premium"})
            endpoints.release.set()
            answers = await asyncio.gather(*held)
            counted = [
                stack.service.metric("extproc_requests_total", pool="vllm", outcome=outcome)
                for outcome in ("sheddable", "overloaded", "routed")
            ]
            assert eventually(lambda: in_flight(stack) == 0)

    assert {answer.status for answer in answers} == {200}
    assert [(answer.status, answer.error["code"]) for answer in (refused, full)] == [
        (429, "sheddable"),
        (429, "overloaded"),
    ]
    assert refused.headers["retry-after"] == "1"
    assert refused.error["type"] == "rate_limit_error"
    assert counted == [1, 1, 5]


async def test_a_client_with_the_whole_pool_makes_room_for_another(tmp_path: Path) -> None:
    with run_stack(tmp_path, simulate=None, pools=lambda a: [pool(a, **SETTINGS)]) as stack:
        async with serving(stack.ports) as endpoints, connect(stack.url) as session:
            held = await fill(session, endpoints, {CLIENT: "greedy"})
            held += await fill(session, endpoints, {CLIENT: "modest"}, 1)
            greedy = await send(session, ask("more"), headers={CLIENT: "greedy"})
            endpoints.release.set()
            answers = await asyncio.gather(*held)

    assert {answer.status for answer in answers} == {200}
    assert greedy.status == 429


@pytest.mark.parametrize("is_up", [True, False], ids=["up", "down"])
async def test_no_endpoint_hears_of_priorities_and_clients(tmp_path: Path, *, is_up: bool) -> None:
    orders = {
        OBJECTIVE: "batch",
        CLIENT: "somebody",
        "x-llm-d-inference-objective": "premium",
        "x-llm-d-inference-fairness-id": "somebody",
    }
    with run_stack(tmp_path, simulate=None, pools=lambda a: [pool(a, **SETTINGS)]) as stack:
        if not is_up:
            stack.service.kill()
        async with serving(stack.ports) as endpoints, connect(stack.url) as session:
            endpoints.release.set()
            answer = await send(session, ask("whose"), headers=orders)
        log = stack.service.log.read_text()

    assert answer.status == 200
    assert [heard & {*orders} for heard in endpoints.heard] == [set()]
    assert "somebody" not in log
