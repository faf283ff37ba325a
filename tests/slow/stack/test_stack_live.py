"""The whole in a cluster: EndpointSlices, the service, xDS, a real Envoy, pods that come and go."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import aiohttp
import pytest

from tests.slow.stack.live import Cluster, run_cluster, servers, sweep
from tests.slow.stack.mesh import until_hosts
from tests.stack.client import Answer, ask, connect, send
from tests.stack.stack import eventually
from tests.waiting import until

pytestmark = pytest.mark.envoy

STREAMS = 200


async def test_pods_come_drain_and_go_under_open_streams(tmp_path: Path) -> None:
    """Nobody who streams notices.

    1. 200 streams are open on three pods. 2. A fourth becomes ready: it gets traffic within a second.
    3. One terminates: within a second it gets none. 4. It is gone while its streams go on.
    5. Every stream ends as it should, and so did every request meanwhile.
    """
    async with run_cluster(tmp_path) as cluster, connect(cluster.gateway.url) as session:
        bodies = [ask(f"held {number}") for number in range(STREAMS)]
        streams = [asyncio.create_task(send(session, body)) for body in bodies]
        await until(lambda: cluster.pods.held == STREAMS)

        cluster.apply(0, 1, 2, 3)
        began = perf_counter()
        while cluster.address(3) not in servers(await sweep(session, 4, str(perf_counter()))):
            pass
        came_s = perf_counter() - began

        cluster.apply(0, 1, 2, 3, draining=frozenset({1}))
        began = perf_counter()
        await cluster.until(0, 1, 2, 3, draining=frozenset({1}))
        drained_s = perf_counter() - began
        while_draining = servers(await sweep(session, 60))

        cluster.apply(0, 2, 3)
        await cluster.until(0, 2, 3)
        after = servers(await sweep(session, 60))

        cluster.pods.release.set()
        answers = await asyncio.gather(*streams)

    assert came_s < 1
    assert drained_s < 1
    assert cluster.address(1) not in while_draining | after
    assert Counter((answer.status, answer.body) for answer in answers) == {(200, b"first last"): STREAMS}
    assert servers(answers)[cluster.address(1)] > STREAMS / 10


@pytest.mark.parametrize("outage_s", [3, pytest.param(60, marks=pytest.mark.slow)])
async def test_an_outage_of_the_api_server_does_not_touch_traffic(tmp_path: Path, outage_s: float) -> None:
    """The last list stays in force; what changed meanwhile is learnt when the server is back."""
    async with run_cluster(tmp_path) as cluster, connect(cluster.gateway.url) as session:
        before = [answer.served_by for answer in await sweep(session, 30)]
        async with cluster.outage():
            began = perf_counter()
            while perf_counter() - began < outage_s:
                assert [answer.served_by for answer in await sweep(session, 30)] == before
                await asyncio.sleep(0.2)
            cluster.apply(0, 1, 2, 3)

        await until_hosts(cluster.gateway, "llama", cluster.hosts(0, 1, 2, 3), timeout_s=35)


async def test_a_pool_added_to_the_configuration_is_served_without_touching_envoy(tmp_path: Path) -> None:
    """One file, one more pool.

    1. A second Service has a pod. 2. The configuration names it as a pool: Envoy has a cluster for it.
    3. A request for its model goes there, others do not. 4. The service is killed: one pool's prompts are
    not another's, and Envoy cannot tell whose they are, so nobody gets them. 5. It is back.
    """
    async with run_cluster(tmp_path) as cluster, connect(cluster.gateway.url) as session:
        cluster.apply(3, service="qwen-pods")
        cluster.configure(llama="vllm", qwen="qwen-pods")
        await until_hosts(cluster.gateway, "qwen", cluster.hosts(3))

        theirs = [await send(session, ask(f"chat {number}", model="qwen")) for number in range(8)]
        others = await sweep(session, 20)
        before = len(cluster.pods.bodies)
        await asyncio.to_thread(cluster.service.kill)
        refused = [await send(session, ask(f"chat {number}", model="qwen")) for number in range(8)]
        refused += [await send(session, ask(f"chat {number}")) for number in range(8)]
        reached = len(cluster.pods.bodies) - before

        await asyncio.to_thread(cluster.service.start)
        await asyncio.to_thread(cluster.service.wait_ready)
        await cluster.until_asked()
        back = [await send(session, ask(f"chat {number}", model="qwen")) for number in range(8)]

    assert servers(theirs) == servers(back) == {cluster.address(3): 8}
    assert cluster.address(3) not in servers(others)
    assert {(answer.status, answer.error["code"]) for answer in refused} == {(503, "upstream_unavailable")}
    assert reached == 0


@pytest.mark.parametrize("hangs", [False, True], ids=["killed", "hangs"])
async def test_when_down_is_the_operators_to_say(tmp_path: Path, *, hangs: bool) -> None:
    """1. A pool alone is closed: 503. 2. One of two is open: it takes all. 3. A pool alone: it takes all."""
    async with run_cluster(tmp_path) as cluster, connect(cluster.gateway.url) as session:
        cluster.apply(3, service="qwen-pods")
        seen = []
        for down, services in (
            ({"llama": "closed"}, {"llama": "vllm"}),
            ({"qwen": "open"}, {"llama": "vllm", "qwen": "qwen-pods"}),
            ({}, {"llama": "vllm"}),
        ):
            cluster.configure(when_down=down, **services)
            await until_hosts(cluster.gateway, "_default", DEFAULTS[tuple(down.values())](cluster))
            await asyncio.to_thread(stop_answering, cluster, hangs=hangs)
            seen.append({answer.status for answer in await sweep_any(session, 8)})
            served = {answer.served_by for answer in await sweep_any(session, 8)}
            await asyncio.to_thread(answer_again, cluster, hangs=hangs)
            await cluster.until_asked()
            assert served <= {*DEFAULTS[tuple(down.values())](cluster), ""}

    assert seen == [{503}, {200}, {200}]


DEFAULTS: dict[tuple[str, ...], Callable[[Cluster], dict[str, str]]] = {
    ("closed",): lambda _: {},
    ("open",): lambda cluster: cluster.hosts(3),
    (): lambda cluster: cluster.hosts(0, 1, 2),
}


def stop_answering(cluster: Cluster, *, hangs: bool) -> None:
    if hangs:
        cluster.service.send(signal.SIGSTOP)
        cluster.gateway.wait_until(lambda: not cluster.gateway.sees_service())
    else:
        cluster.service.kill()


def answer_again(cluster: Cluster, *, hangs: bool) -> None:
    if hangs:
        cluster.service.send(signal.SIGCONT)
    else:
        cluster.service.start()
        cluster.service.wait_ready()


async def sweep_any(session: aiohttp.ClientSession, count: int) -> list[Answer]:
    return [await send(session, ask(f"sweep {number}")) for number in range(count)]


async def test_a_pool_that_may_not_be_listed_answers_503_alone(tmp_path: Path) -> None:
    """No Role for it, from a time when the API server was up, and a pool from one when it was away.

    1. A pool is added whose Service is not there. 2. The API server goes, and a third pool is added.
    3. The first pool is served all the while, the others get 503 of the service's own, at once.
    4. The API server is back: the third pool is served.
    """
    async with run_cluster(tmp_path) as cluster, connect(cluster.gateway.url) as session:
        cluster.apply(3, service="late-pods")
        cluster.configure(llama="vllm", missing="nobody")
        await until_pool(cluster, "missing", "no_service")
        async with cluster.outage():
            cluster.configure(llama="vllm", missing="nobody", late="late-pods")
            await until_pool(cluster, "late", "connection")
            assert await asyncio.to_thread(cluster.service.is_ready)

            theirs = await sweep(session, 20)
            refused = [
                await send(session, ask("hello", model=model)) for model in ("missing", "late") for _ in "12"
            ]
            passed_by = cluster.gateway.ext_proc()["failure_mode_allowed"]
        await until_hosts(cluster.gateway, "late", cluster.hosts(3), timeout_s=35)
        late = [await send(session, ask(f"chat {number}", model="late")) for number in range(4)]

    assert servers(theirs).keys() <= {cluster.address(number) for number in range(3)}
    assert {(answer.status, answer.error["code"]) for answer in refused} == {(503, "no_endpoint")}
    assert servers(late) == {cluster.address(3): 4}
    assert passed_by == 0


async def until_pool(cluster: Cluster, pool: str, why: str) -> None:
    def is_told() -> bool:
        return cluster.service.metric("extproc_pool_fault", pool=pool, why=why) == 1

    assert await asyncio.to_thread(eventually, is_told)


async def test_a_restarted_service_finds_envoy_with_its_clusters_and_affinity_is_back(tmp_path: Path) -> None:
    """Killed, it is missed by nobody; back, it picks as before.

    1. Prompts have their pods. 2. The service is killed: every request is answered, somewhere.
    3. It starts again: each prompt goes to the pod it had; Envoy never changed a cluster.
    """
    async with run_cluster(tmp_path) as cluster, connect(cluster.gateway.url) as session:
        before = [answer.served_by for answer in await sweep(session, 30)]
        held = asyncio.create_task(send(session, ask("held")))
        await until(lambda: cluster.pods.held == 1)

        await asyncio.to_thread(cluster.service.kill)
        assert len(servers(await sweep(session, 30))) == 3

        await asyncio.to_thread(cluster.service.start)
        await asyncio.to_thread(cluster.service.wait_ready)
        await cluster.until_asked()
        after = [answer.served_by for answer in await sweep(session, 30)]
        changes = cluster.gateway.counters("cluster.llama.membership_change")
        removed = cluster.gateway.counters("cluster_manager.cluster_removed")
        cluster.pods.release.set()

        assert (await held).body == b"first last"
    assert after == before
    assert list(changes.values()) == [1]
    assert list(removed.values()) == [0]
