"""A real Envoy fed by the discovery service alone: what it does with what it is told.

No ext_proc here: the test names pool and endpoint in the headers that the service would set.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc.aio
import pytest

from extproc.router.routing.endpoint import Endpoint
from extproc.router.stream.names import DESTINATION
from extproc.router.wire.grpcio import add_routes
from extproc.router.xds.service import Xds
from tests.slow.stack.live import until_hosts
from tests.stack.client import Answer, connect, send, servers
from tests.stack.gateway import Gateway, Tree, cluster, edited, find, load
from tests.stack.ports import free_ports
from tests.stack.upstream import HELD, Endpoints, serve
from tests.waiting import until

pytestmark = pytest.mark.envoy

IPS = [f"127.0.1.{number}" for number in range(1, 5)]


def no_service(tree: Tree) -> None:
    """Takes out ext_proc and the health check of it, and believes the client's headers."""
    [manager] = [value for value in find(tree, "typed_config") if value.get("stat_prefix") == "clients"]
    manager["http_filters"] = [manager["http_filters"][-1]]
    del manager["early_header_mutation_extensions"]
    del cluster(tree, "extproc")["health_checks"]


@dataclass
class Mesh:
    """Envoys, one discovery service, pods."""

    pods: Endpoints
    port: int
    ports: Sequence[int]
    gateways: list[Gateway] = field(default_factory=list)
    rejections: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def serving(self, replica: int = 0) -> AsyncGenerator[Xds]:
        """Runs a discovery service that knows the pool `llama`, but none of its endpoints."""
        self.xds = Xds(["llama"], open_pool="llama", on_rejection=self.rejections.append)
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        add_routes(server, self.xds.routes())
        server.add_insecure_port(f"127.0.0.1:{self.ports[replica]}")
        await server.start()
        try:
            yield self.xds
        finally:
            await server.stop(0)

    @property
    def gateway(self) -> Gateway:
        return self.gateways[0]

    def endpoint(self, number: int, *, is_ready: bool = True) -> Endpoint:
        return Endpoint(f"default/pod-{number}", self.address(number), is_ready=is_ready)

    def address(self, number: int) -> str:
        return f"{IPS[number]}:{self.port}"

    def publish(self, *numbers: int, draining: Sequence[int] = (), pool: str = "llama") -> None:
        """Publishes the pods of these numbers, some of them draining."""
        self.xds.publish(pool, [self.endpoint(n, is_ready=n not in draining) for n in numbers])

    async def until_ready(self) -> None:
        for gateway in self.gateways:
            await asyncio.to_thread(gateway.wait_ready)
        await self.until(0, 1, 2)

    async def until(self, *numbers: int, draining: Sequence[int] = (), cluster: str = "llama") -> None:
        wanted = {self.address(n): "DRAINING" if n in draining else "HEALTHY" for n in numbers}
        for gateway in self.gateways:
            await until_hosts(gateway, cluster, wanted)

    async def ask(
        self, session: aiohttp.ClientSession, *numbers: int, pool: str = "llama", body: bytes = b"{}"
    ) -> Answer:
        """Sends a request for a pool with these endpoints picked, best first."""
        headers = {"x-extproc-pool": pool} if pool else {}
        if numbers:
            headers[DESTINATION] = ",".join(map(self.address, numbers))
        return await send(session, body, headers=headers)


@asynccontextmanager
async def run_envoys(directory: Path, count: int = 1, *, replicas: int = 1) -> AsyncGenerator[Mesh]:
    """Yields Envoys and pods, and places for replicas of a discovery service that is not there yet."""
    pod_port, *ports = free_ports(1 + replicas + 2 * count)
    async with serve([f"{ip}:{pod_port}" for ip in IPS]) as pods:
        mesh = Mesh(pods, pod_port, ports[:replicas])
        with ExitStack() as stack:
            for number in range(count):
                client, admin = ports[replicas + 2 * number :][:2]
                edits = [no_service, lambda tree: place_replicas(tree, mesh.ports)]
                tree = edited(load("xds.yaml"), {8080: client, 9901: admin}, edits)
                folder = directory / f"envoy-{number}"
                folder.mkdir()
                mesh.gateways.append(Gateway(folder, tree, port=client, admin_port=admin))
                stack.enter_context(mesh.gateways[-1])
            yield mesh


def place_replicas(tree: Tree, ports: Sequence[int]) -> None:
    addresses = [{"socket_address": {"address": "127.0.0.1", "port_value": port}} for port in ports]
    endpoints = [{"endpoint": {"address": address}} for address in addresses]
    cluster(tree, "extproc")["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]


@asynccontextmanager
async def run_mesh(directory: Path, *, envoys: int = 1) -> AsyncGenerator[Mesh]:
    """Yields Envoys in step with a pool `llama` of the first three pods."""
    async with run_envoys(directory, envoys) as mesh, mesh.serving():
        mesh.publish(0, 1, 2)
        await mesh.until_ready()
        yield mesh


async def served(mesh: Mesh, session: aiohttp.ClientSession, count: int, *numbers: int) -> Counter[str]:
    return servers([await mesh.ask(session, *numbers) for _ in range(count)])


async def test_a_published_endpoint_is_served_by_every_envoy(tmp_path: Path) -> None:
    async with run_mesh(tmp_path, envoys=2) as mesh:
        for gateway in mesh.gateways:
            async with connect(gateway.url) as session:
                assert mesh.address(3) not in await served(mesh, session, 5, 3)

        mesh.publish(0, 1, 2, 3)
        await mesh.until(0, 1, 2, 3)

        for gateway in mesh.gateways:
            async with connect(gateway.url) as session:
                assert await served(mesh, session, 5, 3) == {mesh.address(3): 5}


async def test_the_fallback_passes_by_a_draining_endpoint_a_pick_does_not(tmp_path: Path) -> None:
    """Envoy takes an override whatever the host's health: not to pick it is the service's business.

    Where all drain they take picks and nothing else.
    """
    async with run_mesh(tmp_path) as mesh, connect(mesh.gateway.url) as session:
        mesh.publish(0, 1, 2, draining=[1])
        await mesh.until(0, 1, 2, draining=[1])
        fallen_back = await served(mesh, session, 40)
        picked = await served(mesh, session, 5, 1, 2)

        mesh.publish(0, 1, draining=[0, 1])
        await mesh.until(0, 1, draining=[0, 1])
        still_picked = await served(mesh, session, 1, 1)
        refused = await mesh.ask(session)

    assert fallen_back.keys() == {mesh.address(0), mesh.address(2)}
    assert picked.keys() == still_picked.keys() == {mesh.address(1)}
    assert (refused.status, refused.error["code"]) == (503, "upstream_unavailable")


async def test_pools_come_and_go_and_the_open_one_is_the_default(tmp_path: Path) -> None:
    """1. A pool comes. 2. It goes and comes back, with the endpoint it had. 3. It is alone, and open."""
    async with run_mesh(tmp_path) as mesh, connect(mesh.gateway.url) as session:
        mesh.publish(3, pool="qwen")
        await mesh.until(3, cluster="qwen")
        assert (await mesh.ask(session, 3, pool="qwen")).served_by == mesh.address(3)
        assert (await mesh.ask(session, pool="")).served_by != mesh.address(3)

        for pause_s in (0, 0.001, 0.05):
            mesh.xds.remove("qwen")
            await asyncio.sleep(pause_s)
            mesh.publish(3, pool="qwen")
            await mesh.until(3, cluster="qwen")
        assert (await mesh.ask(session, pool="qwen")).served_by == mesh.address(3)

        mesh.xds.open("qwen")
        mesh.xds.remove("llama")
        await until_hosts(mesh.gateway, "llama", {})
        await mesh.until(3, cluster="_default")
        assert (await mesh.ask(session, pool="")).served_by == mesh.address(3)
        gone = await mesh.ask(session, pool="llama")
    assert (gone.status, gone.error["code"]) == (503, "upstream_unavailable")


async def test_without_an_open_pool_what_nobody_routed_is_refused(tmp_path: Path) -> None:
    """Also while an answer streams that began when there was one."""
    async with run_mesh(tmp_path) as mesh, connect(mesh.gateway.url) as session:
        streaming = asyncio.create_task(mesh.ask(session, pool="", body=HELD))
        await until(lambda: mesh.pods.held == 1)

        mesh.xds.open(None)
        await until_hosts(mesh.gateway, "_default", {})
        closed = await mesh.ask(session, pool="")
        named = await mesh.ask(session, 1)
        mesh.xds.open("llama")
        await mesh.until(0, 1, 2, cluster="_default")
        opened = await mesh.ask(session, pool="")
        mesh.pods.release()

        assert (await streaming).body == b"first last"
    assert (closed.status, closed.headers["retry-after"]) == (503, "1")
    assert closed.error == {
        "message": "No endpoint could take the request; try again.",
        "type": "service_unavailable",
        "param": None,
        "code": "upstream_unavailable",
    }
    assert (named.served_by, opened.status) == (mesh.address(1), 200)


async def test_envoy_refuses_what_it_cannot_use_and_keeps_what_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_mesh(tmp_path) as mesh, connect(mesh.gateway.url) as session:
        mesh.xds.publish("llama", [Endpoint("liar", "not-an-address:8000")])
        await until(lambda: mesh.rejections)
        assert sum((await served(mesh, session, 5)).values()) == 5

        mesh.publish(3)
        await mesh.until(3)

    assert mesh.rejections == ["ClusterLoadAssignment"]
    assert "not-an-address" in caplog.text


async def test_a_new_instance_takes_over_without_a_host_lost(tmp_path: Path) -> None:
    """Envoy keeps what it has until it is told better.

    1. The service dies: Envoy goes on. 2. A new one does not know its endpoints yet: Envoy goes on.
    3. It knows them: nothing changes in Envoy. 4. They change: Envoy follows.
    """
    async with run_envoys(tmp_path) as mesh, connect(mesh.gateway.url) as session:
        async with mesh.serving():
            mesh.publish(0, 1, 2)
            await mesh.until_ready()
        assert sum((await served(mesh, session, 5)).values()) == 5

        async with mesh.serving():
            await until(lambda: mesh.xds.streams_open)
            await asyncio.sleep(0.2)
            assert await served(mesh, session, 5, 1) == {mesh.address(1): 5}

            changes = membership_changes(mesh)
            mesh.publish(2, 1, 0)
            await asyncio.sleep(0.2)
            assert membership_changes(mesh) == changes

            mesh.publish(0, 1, 2, 3)
            await mesh.until(0, 1, 2, 3)
    assert mesh.rejections == []


async def test_an_envoy_whose_replica_dies_hears_of_changes_from_another(tmp_path: Path) -> None:
    async with run_envoys(tmp_path, replicas=2) as mesh, AsyncExitStack() as one, AsyncExitStack() as other:
        running = {
            await stack.enter_async_context(mesh.serving(n)): stack for n, stack in enumerate((one, other))
        }
        for xds in running:
            xds.publish("llama", [mesh.endpoint(number) for number in range(3)])
        await mesh.until_ready()
        [asked] = [xds for xds in running if xds.streams_open]
        [spare] = running.keys() - {asked}

        await running[asked].aclose()
        spare.publish("llama", [mesh.endpoint(number) for number in range(4)])
        await mesh.until(0, 1, 2, 3)

    assert mesh.rejections == []


def membership_changes(mesh: Mesh) -> int:
    return mesh.gateway.counters("cluster.llama.membership_change")["cluster.llama.membership_change"]
