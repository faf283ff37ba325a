"""A filter in `observability_mode` in somebody's Envoy: it cannot hurt, and it foretells what routing gives."""

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.slow.stack.foretold import RULES, plan_workload, run_workload
from tests.slow.stack.shadowed import LARGE, Somebody, ask_many, sinks, slowed
from tests.stack.client import chat_about
from tests.stack.fetch import get_json
from tests.stack.ports import free_ports
from tests.stack.process import memory_bytes
from tests.waiting import until

pytestmark = [pytest.mark.envoy, pytest.mark.timeout(280)]


async def tell_statuses(url: str, body: bytes, count: int) -> Counter[int]:
    return Counter(status for status, _ in await ask_many(url, body, count))


async def test_clients_see_no_difference_whatever_becomes_of_the_service(tmp_path: Path) -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(4)]
    somebody = Somebody(tmp_path, addresses)
    service, small = somebody.service, chat_about("hello")
    async with sinks(addresses):
        with service, somebody.gateway:
            service.wait_ready()
            somebody.gateway.wait_until(somebody.sees_service)
            # 1. More at once than the circuit breaker lets be watched, beside the same without the filter.
            assert await tell_statuses(somebody.plain, small, 3_000) == {200: 3_000}
            assert await tell_statuses(somebody.shadowed, small, 3_000) == {200: 3_000}
            assert await tell_statuses(somebody.shadowed, LARGE, 2) == {200: 2}
            before = memory_bytes(somebody.gateway.pid)
            # 2. It is slow, and runs a fifth of the time.
            async with slowed(service):
                assert await tell_statuses(somebody.shadowed, small, 200) == {200: 200}
                assert await tell_statuses(somebody.shadowed, LARGE, 2) == {200: 2}
            # 3. It hangs, and Envoy has not noticed: nobody waits, not even with bodies of 48 MB.
            # While it was slow, Envoy may have given it up.
            await until(somebody.sees_service, limit_s=20)
            service.send(signal.SIGSTOP)
            assert await tell_statuses(somebody.shadowed, LARGE, 3) == {200: 3}
            assert await tell_statuses(somebody.shadowed, small, 200) == {200: 200}
            # 4. Envoy has noticed, and keeps nothing more.
            await until(lambda: not somebody.sees_service(), limit_s=20)
            assert await tell_statuses(somebody.shadowed, LARGE, 3) == {200: 3}
            await until(lambda: not somebody.cluster("upstream_rq_active"), limit_s=20)
            assert memory_bytes(somebody.gateway.pid) < before + 6 * len(LARGE)
            # 5. It is gone.
            service.send(signal.SIGCONT)
            service.kill()
            assert await tell_statuses(somebody.shadowed, small, 200) == {200: 200}
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
            assert await tell_statuses(somebody.shadowed, chat_about("hello"), 40) == {200: 40}

            def told() -> str:
                return str(get_json(f"{service.admin_url}/shadow")[0]["verdict"])

            # A filter that does not tell who served would be called blind.
            assert somebody.cluster("upstream_rq_total") >= 40
            await until(lambda: not somebody.cluster("upstream_rq_active"))
            assert await asyncio.to_thread(told) == "too_early"


async def test_the_gain_that_is_foretold_is_the_gain_that_switching_gives(tmp_path: Path) -> None:
    planned, runs = plan_workload("sessions", 15), []
    for name, rule in (("watched", RULES[0]), ("switched", "")):
        folder = tmp_path / name
        folder.mkdir()
        runs.append(await run_workload(folder, "sessions", planned, rule, 15))
    served, switched = runs
    told = served.told
    saved = 1 - told["picked_engines"] / told["served_engines"]

    assert told["served_hit_rate"] == pytest.approx(served.hit_rate, abs=0.05)
    assert told["picked_hit_rate"] == pytest.approx(switched.hit_rate, abs=0.05)
    assert saved == pytest.approx(1 - (1 - switched.hit_rate) / (1 - served.hit_rate), rel=0.15)
    # The first token: the engines' clock runs on a machine that others use, too.
    gain = told["picked_mean_s"] / told["served_mean_s"]
    assert gain == pytest.approx(switched.mean_s / served.mean_s, rel=0.5)
