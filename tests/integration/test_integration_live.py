"""The whole in a cluster: EndpointSlices, the service, xDS, a real Envoy, pods that come and go."""

import asyncio
from collections import Counter
from pathlib import Path
from time import perf_counter

import pytest

from tests.integration.client import ask, connect, send
from tests.integration.live import run_cluster, servers, sweep
from tests.integration.mesh import until, until_hosts

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
    3. A request for its model goes there, others do not. 4. The service is killed: the first pool answers.
    """
    async with run_cluster(tmp_path) as cluster, connect(cluster.gateway.url) as session:
        cluster.apply(3, service="qwen-pods")
        cluster.configure(llama="vllm", qwen="qwen-pods")
        await until_hosts(cluster.gateway, "qwen", cluster.hosts(3))

        theirs = [await send(session, ask(f"chat {number}", model="qwen")) for number in range(8)]
        others = await sweep(session, 20)
        await asyncio.to_thread(cluster.service.kill)
        fallen_back = [await send(session, ask(f"chat {number}", model="qwen")) for number in range(8)]

    assert servers(theirs) == {cluster.address(3): 8}
    assert cluster.address(3) not in servers(others) | servers(fallen_back)


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
