"""A real Envoy fed by the discovery service alone: what it does with what it is told.

No ext_proc here: the test names pool and endpoint in the headers that the service would set.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc.aio
import pytest

from extproc.grpc_server.grpcio import add_routes
from extproc.router.routing.endpoint import Endpoint
from extproc.router.stream.names import DESTINATION
from extproc.router.xds.service import Xds
from tests.slow.stack.live import until_hosts
from tests.stack.client import Answer, connect, send, servers
from tests.stack.gateway import Gateway, Tree, cluster_named, edited, find, load, set_addresses
from tests.stack.ports import free_ports
from tests.stack.upstream import HELD, Endpoints, serve
from tests.waiting import until

pytestmark = pytest.mark.envoy

IPS = [f"127.0.1.{number}" for number in range(1, 5)]


def no_service(tree: Tree) -> None:
    """Takes out ext_proc and the health check of it, and believes the client's headers."""
    [manager] = [
        value for value in find(tree, "typed_config") if value.get("stat_prefix") == "clients"
    ]
    manager["http_filters"] = [manager["http_filters"][-1]]
    del manager["early_header_mutation_extensions"]
    del cluster_named(tree, "extproc")["health_checks"]


@dataclass
class Mesh:
    """An Envoy, one discovery service, pods."""

    pods: Endpoints
    port: int
    ports: Sequence[int]
    gateway: Gateway
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

    def endpoint(self, number: int, *, is_ready: bool = True) -> Endpoint:
        return Endpoint(f"default/pod-{number}", self.address(number), is_ready=is_ready)

    def address(self, number: int) -> str:
        return f"{IPS[number]}:{self.port}"

    def publish(self, *numbers: int, draining: Sequence[int] = (), pool: str = "llama") -> None:
        """Publishes the pods of these numbers, some of them draining."""
        self.xds.publish(pool, [self.endpoint(n, is_ready=n not in draining) for n in numbers])

    async def until_ready(self) -> None:
        await asyncio.to_thread(self.gateway.wait_ready)
        await self.until(0, 1, 2)

    async def until(
        self, *numbers: int, draining: Sequence[int] = (), cluster: str = "llama"
    ) -> None:
        wanted = {self.address(n): "DRAINING" if n in draining else "HEALTHY" for n in numbers}
        await until_hosts(self.gateway, cluster, wanted)

    async def ask(
        self,
        session: aiohttp.ClientSession,
        *numbers: int,
        pool: str = "llama",
        body: bytes = b"{}",
    ) -> Answer:
        """Sends a request for a pool with these endpoints picked, best first."""
        headers = {"x-extproc-pool": pool} if pool else {}
        if numbers:
            headers[DESTINATION] = ",".join(map(self.address, numbers))
        return await send(session, body, headers=headers)


@asynccontextmanager
async def run_xds_envoy(directory: Path, *, replicas: int = 1) -> AsyncGenerator[Mesh]:
    """Yields an Envoy and pods, and places for replicas of a discovery service that is not there yet."""
    pod_port, client, admin, *ports = free_ports(3 + replicas)
    edits = [no_service, lambda tree: set_addresses(tree, "extproc", ports)]
    tree = edited(load("xds.yaml"), {8080: client, 9901: admin}, edits)
    gateway = Gateway(directory, tree, port=client, admin_port=admin)
    async with serve([f"{ip}:{pod_port}" for ip in IPS]) as pods:
        with gateway:
            yield Mesh(pods, pod_port, ports, gateway)


@asynccontextmanager
async def run_mesh(directory: Path) -> AsyncGenerator[Mesh]:
    """Yields an Envoy in step with a pool `llama` of the first three pods."""
    async with run_xds_envoy(directory) as mesh, mesh.serving():
        mesh.publish(0, 1, 2)
        await mesh.until_ready()
        yield mesh


async def servers_of_answers(
    mesh: Mesh, session: aiohttp.ClientSession, count: int, *numbers: int
) -> Counter[str]:
    return servers([await mesh.ask(session, *numbers) for _ in range(count)])


async def test_the_fallback_passes_by_a_draining_endpoint_a_pick_does_not(tmp_path: Path) -> None:
    """Envoy takes an override whatever the host's health: not to pick it is the service's business.

    Where all drain they take picks and nothing else.
    """
    async with run_mesh(tmp_path) as mesh, connect(mesh.gateway.url) as session:
        mesh.publish(0, 1, 2, draining=[1])
        await mesh.until(0, 1, 2, draining=[1])
        fallen_back = await servers_of_answers(mesh, session, 40)
        picked = await servers_of_answers(mesh, session, 5, 1, 2)

        mesh.publish(0, 1, draining=[0, 1])
        await mesh.until(0, 1, draining=[0, 1])
        still_picked = await servers_of_answers(mesh, session, 1, 1)
        refused = await mesh.ask(session)

        mesh.publish(0, 2)
        await mesh.until(0, 2)
        removed = await servers_of_answers(mesh, session, 5, 1, 2)

    assert removed.keys() == {mesh.address(2)}, "a pick that is gone falls to the next of the list"
    assert fallen_back.keys() == {mesh.address(0), mesh.address(2)}
    assert picked.keys() == still_picked.keys() == {mesh.address(1)}
    assert (refused.status, refused.error["code"]) == (503, "upstream_unavailable")


async def test_pools_come_and_go_and_the_open_one_is_the_default(tmp_path: Path) -> None:
    """1. A pool comes. 2. It goes and comes back, with the endpoint it had.

    3. No pool is open: what nobody routed is refused, an answer that began goes on. 4. It is alone,
       and open.
    """
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

        streaming = asyncio.create_task(mesh.ask(session, pool="", body=HELD))
        await until(lambda: mesh.pods.held == 1)
        mesh.xds.open(None)
        await until_hosts(mesh.gateway, "_default", {})
        closed = await mesh.ask(session, pool="")
        assert (await mesh.ask(session, 1)).served_by == mesh.address(1)

        mesh.xds.open("qwen")
        mesh.xds.remove("llama")
        await until_hosts(mesh.gateway, "llama", {})
        await mesh.until(3, cluster="_default")
        assert (await mesh.ask(session, pool="")).served_by == mesh.address(3)
        gone = await mesh.ask(session, pool="llama")
        mesh.pods.release()
        assert (await streaming).body == b"first last"

    assert closed.error == {
        "message": "No endpoint could take the request; try again.",
        "type": "service_unavailable",
        "param": None,
        "code": "upstream_unavailable",
    }
    for answer in (closed, gone):
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert answer.error["code"] == "upstream_unavailable"


async def test_envoy_refuses_what_it_cannot_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with run_mesh(tmp_path) as mesh, connect(mesh.gateway.url) as session:
        mesh.xds.publish("llama", [Endpoint("liar", "not-an-address:8000")])
        await until(lambda: mesh.rejections)
        assert sum((await servers_of_answers(mesh, session, 5)).values()) == 5

        mesh.publish(3)
        await mesh.until(3)

    assert mesh.rejections == ["ClusterLoadAssignment"]
    assert "not-an-address" in caplog.text


async def test_an_envoy_whose_replica_dies_hears_of_changes_from_another(tmp_path: Path) -> None:
    async with (
        run_xds_envoy(tmp_path, replicas=2) as mesh,
        AsyncExitStack() as one,
        AsyncExitStack() as other,
    ):
        running = {
            await stack.enter_async_context(mesh.serving(n)): stack
            for n, stack in enumerate((one, other))
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
