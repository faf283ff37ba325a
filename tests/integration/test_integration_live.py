"""The whole in a cluster: EndpointSlices, the service, xDS, a real Envoy, pods that come and go."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import aiohttp
import pytest

from tests.cluster.api_server import ApiServer, serving, write_kubeconfig
from tests.cluster.objects import Object, draining_pod, pod, slice_object
from tests.integration.client import MODEL, Answer, ask, connect, send, statuses
from tests.integration.gateway import Gateway, edited, load
from tests.integration.mesh import Pods, run_pods, until, until_hosts
from tests.integration.ports import free_ports
from tests.integration.service import Service

pytestmark = pytest.mark.envoy

IPS = [f"127.0.2.{number}" for number in range(1, 5)]
STREAMS = 200


@dataclass
class Cluster:
    """Everything that runs. Pods are known by their numbers."""

    gateway: Gateway
    service: Service
    api: ApiServer
    pods: Pods
    api_running: AsyncExitStack

    @asynccontextmanager
    async def outage(self) -> AsyncGenerator[None]:
        """Stops the API server, and starts it again at its address."""
        port = int(self.api.url.rpartition(":")[2])
        await self.api_running.aclose()
        yield
        await self.api_running.enter_async_context(serving(self.api, port))

    def apply(self, *numbers: int, draining: frozenset[int] = frozenset(), service: str = "vllm") -> None:
        """Writes the EndpointSlice of a Service that has these pods."""
        entries = [self._entry(number, draining) for number in numbers]
        ports: list[Object] = [{"name": "http", "port": self.pods.port, "protocol": "TCP"}]
        self.api.put(slice_object(f"{service}-1", *entries, ports=ports, service=service))

    def configure(self, **services: str) -> None:
        """Writes the service's configuration: pools by name, each the pods of a Service."""
        kubeconfig = self.service.config.with_name("kubeconfig")
        source = {"namespace": "default", "port": "http", "kubeconfig": str(kubeconfig)}
        pools: list[Object] = [
            {
                "name": name,
                "models": [MODEL if name == "llama" else name],
                "endpoints": {"kubernetes": source | {"service": service}},
            }
            for name, service in services.items()
        ]
        self.service.configure(pools, xds=True)

    def _entry(self, number: int, draining: frozenset[int]) -> Object:
        name = f"pod-{number}"
        return draining_pod(name, IPS[number]) if number in draining else pod(name, IPS[number], ready=True)

    def address(self, number: int) -> str:
        return f"{IPS[number]}:{self.pods.port}"

    def hosts(self, *numbers: int, draining: frozenset[int] = frozenset()) -> dict[str, str]:
        return {self.address(n): "DRAINING" if n in draining else "HEALTHY" for n in numbers}

    async def until(self, *numbers: int, draining: frozenset[int] = frozenset()) -> None:
        await until_hosts(self.gateway, "llama", self.hosts(*numbers, draining=draining))

    async def until_asked(self) -> None:
        """Waits until Envoy asks the service again."""
        await asyncio.to_thread(self.gateway.wait_until, self.gateway.sees_service)


@asynccontextmanager
async def run_cluster(directory: Path) -> AsyncGenerator[Cluster]:
    ports = free_ports(5)
    client, admin, ext_proc, service_admin, pod_port = ports
    tree = edited(load("xds.yaml"), {8080: client, 9901: admin, 9002: ext_proc})
    gateway = Gateway(directory, tree, port=client, admin_port=admin)
    service = Service(directory, port=ext_proc, admin_port=service_admin)
    token = directory / "token"
    token.write_text("token-1")
    async with AsyncExitStack() as api_running, run_pods(IPS, pod_port) as pods:
        api = await api_running.enter_async_context(serving(ApiServer()))
        cluster = Cluster(gateway, service, api, pods, api_running)
        cluster.apply(0, 1, 2)
        write_kubeconfig(directory / "kubeconfig", api.url, token)
        cluster.configure(llama="vllm")
        with service:
            await asyncio.to_thread(service.wait_ready)
            with gateway:
                await asyncio.to_thread(gateway.wait_ready)
                await cluster.until(0, 1, 2)
                await cluster.until_asked()
                yield cluster


async def sweep(session: aiohttp.ClientSession, count: int, text: str = "sweep") -> list[Answer]:
    """Asks `count` different things, one after the other."""
    return [await send(session, ask(f"{text} {number}")) for number in range(count)]


def servers(answers: list[Answer]) -> Counter[str]:
    assert statuses(answers) == {200: len(answers)}
    return Counter(answer.served_by for answer in answers)


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
