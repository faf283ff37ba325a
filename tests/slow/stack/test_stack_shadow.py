"""A filter in `observability_mode` in somebody's Envoy: it cannot hurt, and it foretells what routing gives."""

import asyncio
import re
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from io import BytesIO
from pathlib import Path
from random import Random
from time import monotonic

import aiohttp
import pytest
from aiohttp import web

from tests.slow.stack.shadowed import add_component, somebodys_envoy
from tests.stack.client import MODEL, chat_about, chat_body
from tests.stack.fetch import get, get_json
from tests.stack.gateway import Gateway
from tests.stack.ports import free_ports
from tests.stack.process import memory_bytes
from tests.stack.service import Service, pool
from tests.stack.simulators import Simulators
from tests.waiting import until

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(280)]

PATH = "/v1/chat/completions"
LARGE = chat_about("x" * 47_000_000)


class Somebody:
    """An Envoy with a listener as it was, and one with the filter; a service that watches, or does not."""

    def __init__(
        self, folder: Path, addresses: Sequence[str], component: str = "", **options: object
    ) -> None:
        *clients, admin, port = free_ports(5)
        urls = [f"http://127.0.0.1:{each}{PATH}" for each in clients]
        self.plain, self.shadowed, self.asking = urls
        self.service = Service(folder, port=port)
        self.pool = pool(addresses, {"name": "prefix_cache", **options}, probe=False, shadow={})
        self.pool["fallbacks"] = 0
        self.service.configure([self.pool])
        tree = somebodys_envoy(clients, admin, port, addresses)
        if component:
            add_component(tree, component, port)
        self.gateway = Gateway(folder, tree, port=clients[0], admin_port=admin)

    def sees_service(self) -> bool:
        return self.gateway.cluster("extproc-shadow", "membership_healthy") > 0

    def cluster(self, counter: str) -> int:
        return self.gateway.cluster("extproc-shadow", counter)


@asynccontextmanager
async def sinks(addresses: Sequence[str]) -> AsyncGenerator[None]:
    """Endpoints that read bodies of any size."""

    async def answer(request: web.BaseRequest) -> web.Response:
        async for _ in request.content.iter_any():
            pass
        return web.Response(text="whole")

    runner = web.ServerRunner(web.Server(answer, access_log=None))
    await runner.setup()
    for address in addresses:
        port = int(address.rpartition(":")[2])
        await web.TCPSite(runner, "127.0.0.1", port, backlog=4_096).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def ask_many(url: str, body: bytes, count: int) -> Counter[int]:
    """What became of so many requests at once; one that hangs fails the test."""
    limits, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=limits, timeout=timeout) as session:

        async def ask() -> int:
            async with session.post(url, data=BytesIO(body)) as response:
                await response.read()
                return response.status

        return Counter(await asyncio.gather(*(ask() for _ in range(count))))


async def test_clients_see_no_difference_whatever_becomes_of_the_service(tmp_path: Path) -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(4)]
    somebody = Somebody(tmp_path, addresses)
    service, small = somebody.service, chat_about("hello")
    async with sinks(addresses):
        with service, somebody.gateway:
            service.wait_ready()
            somebody.gateway.wait_until(somebody.sees_service)
            assert await ask_many(somebody.plain, small, 200) == {200: 200}
            assert await ask_many(somebody.shadowed, small, 200) == {200: 200}
            assert await ask_many(somebody.shadowed, LARGE, 2) == {200: 2}
            # 1. More at once than the circuit breaker lets be watched.
            assert await ask_many(somebody.shadowed, small, 1_500) == {200: 1_500}
            before = memory_bytes(somebody.gateway.pid)
            # 2. It hangs, and Envoy has not noticed: nobody waits, not even with bodies of 47 MB.
            service.send(signal.SIGSTOP)
            assert await ask_many(somebody.shadowed, LARGE, 3) == {200: 3}
            assert await ask_many(somebody.shadowed, small, 200) == {200: 200}
            # 3. Envoy has noticed, and keeps nothing more.
            await until(lambda: not somebody.sees_service(), limit_s=20)
            assert await ask_many(somebody.shadowed, LARGE, 3) == {200: 3}
            assert memory_bytes(somebody.gateway.pid) < before + 6 * len(LARGE)
            assert somebody.cluster("upstream_rq_active") == 0
            # 4. It is gone.
            service.send(signal.SIGCONT)
            service.kill()
            assert await ask_many(somebody.shadowed, small, 200) == {200: 200}
            assert somebody.cluster("upstream_rq_pending_overflow") == 0


@pytest.mark.parametrize("component", ["istio", "envoy-gateway"])
async def test_gateways_show_their_requests_by_our_components(
    tmp_path: Path, component: str
) -> None:
    """Both control planes only put the patches where they say; the real Envoy takes what comes out."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    somebody = Somebody(tmp_path, addresses, component)
    async with sinks(addresses):
        with somebody.service as service, somebody.gateway:
            service.wait_ready()
            somebody.gateway.wait_until(somebody.sees_service)
            assert await ask_many(somebody.shadowed, chat_about("hello"), 40) == {200: 40}

            def told() -> str:
                return str(get_json(f"{service.admin_url}/shadow")[0]["verdict"])

            # A filter that does not tell who served would be called blind.
            assert somebody.cluster("upstream_rq_total") >= 40
            await until(lambda: not somebody.cluster("upstream_rq_active"))
            assert await asyncio.to_thread(told) == "too_early"


PROFILE = """
mine: {base_ms: 10, kv_us_per_ctx_token: 0.1, prefill_ms_per_token: 0.1, kv_tokens: 12000, block_size: 16,
  max_num_batched_tokens: 8192, max_num_seqs: 64, max_model_len: 8192}
"""
JSON = {"content-type": "application/json"}
SECONDS, CHATTERS = 50, 24


async def chat_on(url: str, seconds: float) -> None:
    """Chats of four turns, one after the other by each of the users."""
    end_s = monotonic() + seconds

    async def talk(session: aiohttp.ClientSession, user: int) -> None:
        rng, number = Random(user), 0
        while monotonic() < end_s:
            number, messages = number + 1, list[dict[str, str]]()
            for turn in range(4):
                text = f"{url} {user} {number} {turn} " + "word " * rng.randint(80, 400)
                messages.append({"role": "user", "content": text})
                body = chat_body(messages, max_tokens=12)
                async with session.post(url, data=body, headers=JSON) as response:
                    assert response.status == 200, await response.text()
                    said = await response.json()
                messages.append(said["choices"][0]["message"])
                await asyncio.sleep(rng.uniform(0.2, 0.6))

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(talk(session, user) for user in range(CHATTERS)))


def count_engines(simulators: Simulators) -> list[float]:
    """Tokens looked for and found in caches, first tokens and the seconds that they took, of all endpoints."""
    names = (
        *("prefix_cache_queries_total", "prefix_cache_hits_total"),
        *("time_to_first_token_seconds_count", "time_to_first_token_seconds_sum"),
    )
    pages = [get(f"http://{address}/metrics") for address in simulators.addresses]
    found = [re.findall(rf"^vllm:{name}.* (.+)$", "\n".join(pages), re.MULTILINE) for name in names]
    return [sum(map(float, values)) for values in found]


def since(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The hit rate and the mean time to the first token in between."""
    queried, hit, answers, seconds = (b - a for a, b in zip(before, after, strict=True))
    return hit / queried, seconds / answers


async def test_the_gain_that_is_foretold_is_the_gain_that_switching_gives(tmp_path: Path) -> None:
    profile = tmp_path / "profile.yaml"
    profile.write_text(PROFILE)
    simulators = Simulators(tmp_path, free_ports(8), "--profile", str(profile), "--model", MODEL)
    engine = {"prefill_ms_per_token": 0.1, "step_ms": 10.0, "kv_tokens": 12_000}
    somebody = Somebody(tmp_path, simulators.addresses, engine=engine)
    service = somebody.service
    with simulators, service, somebody.gateway:
        simulators.wait_ready()
        service.wait_ready()
        somebody.gateway.wait_until(somebody.sees_service)
        await chat_on(somebody.shadowed, 20)
        start = count_engines(simulators)
        await chat_on(somebody.shadowed, SECONDS)
        middle = count_engines(simulators)
        await asyncio.sleep(3)
        told = get_json(f"{service.admin_url}/shadow")[0]["open_batch"]
        await chat_on(somebody.asking, 20)
        switched = count_engines(simulators)
        await chat_on(somebody.asking, SECONDS)
        end = count_engines(simulators)
    (before, before_s), (after, after_s) = since(start, middle), since(switched, end)

    assert told["served_hit_rate"] == pytest.approx(before, abs=0.03)
    assert told["picked_hit_rate"] == pytest.approx(after, abs=0.03)
    saved = 1 - told["picked_engines"] / told["served_engines"]
    assert saved == pytest.approx(1 - (1 - after) / (1 - before), rel=0.1)
    assert after_s < before_s
