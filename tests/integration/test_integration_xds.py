"""A real Envoy fed by the discovery service alone: what it does with what it is told.

No ext_proc here: the test names pool and endpoint in the headers that the service would set.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import aiohttp
import grpc.aio
import pytest

from extproc.cluster.xds import Xds
from extproc.cluster.xds_cluster import PICK_KEY
from extproc.routing.endpoint import Endpoint
from tests.integration.client import Answer, connect, send, statuses
from tests.integration.gateway import Gateway, Tree, edited, find, load
from tests.integration.mesh import HELD, Pods, hosts, run_pods, until_hosts
from tests.integration.ports import free_ports

pytestmark = pytest.mark.envoy

IPS = [f"127.0.1.{number}" for number in range(1, 5)]


def no_service(tree: Tree) -> None:
    """Takes out ext_proc and the health check of it, and believes the client's headers."""
    [manager] = [
        value for value in find(tree, "typed_config") if value.get("stat_prefix") == "clients"
    ]
    manager["http_filters"] = [manager["http_filters"][-1]]
    del manager["early_header_mutation_extensions"]
    tree["static_resources"]["clusters"][0].pop("health_checks")


@dataclass
class Mesh:
    """Envoys, one discovery service, pods."""

    xds: Xds
    gateways: list[Gateway]
    pods: Pods
    rejections: list[str] = field(default_factory=list)

    @property
    def gateway(self) -> Gateway:
        return self.gateways[0]

    def endpoint(self, number: int, *, is_ready: bool = True) -> Endpoint:
        return Endpoint(f"default/pod-{number}", self.address(number), is_ready=is_ready)

    def address(self, number: int) -> str:
        return f"{IPS[number]}:{self.pods.port}"

    def publish(self, *numbers: int, draining: Sequence[int] = (), pool: str = "llama") -> None:
        """Publishes the pods of these numbers, some of them draining."""
        self.xds.publish(pool, [self.endpoint(n, is_ready=n not in draining) for n in numbers])

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
            headers[PICK_KEY] = ",".join(map(self.address, numbers))
        return await send(session, body, headers=headers)


@asynccontextmanager
async def run_mesh(directory: Path, *, envoys: int = 1) -> AsyncGenerator[Mesh]:
    rejections: list[str] = []
    xds = Xds(["llama"], on_rejection=rejections.append)
    server = grpc.aio.server()
    xds.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ports = free_ports(1 + 2 * envoys)
    gateways = []
    try:
        async with run_pods(IPS, ports[0]) as pods:
            for number in range(envoys):
                client, admin = ports[1 + 2 * number :][:2]
                tree = edited(load("xds.yaml"), {8080: client, 9901: admin, 9002: port}, [no_service])
                folder = directory / f"envoy-{number}"
                folder.mkdir()
                gateways.append(Gateway(folder, tree, port=client, admin_port=admin))
                gateways[-1].start()
            mesh = Mesh(xds, gateways, pods, rejections)
            mesh.publish(0, 1, 2)
            for gateway in gateways:
                await asyncio.to_thread(gateway.wait_ready)
            await mesh.until(0, 1, 2)
            yield mesh
    finally:
        for gateway in gateways:
            gateway.stop()
        await server.stop(0)


async def served(mesh: Mesh, session: aiohttp.ClientSession, count: int, *numbers: int) -> Counter[str]:
    answers = [await mesh.ask(session, *numbers) for _ in range(count)]
    assert statuses(answers) == {200: count}
    return Counter(answer.served_by for answer in answers)


async def test_a_published_endpoint_is_served_within_a_second_by_every_envoy(tmp_path: Path) -> None:
    async with run_mesh(tmp_path, envoys=2) as mesh:
        for gateway in mesh.gateways:
            async with connect(gateway.url) as session:
                assert mesh.address(3) not in await served(mesh, session, 5, 3)

        mesh.publish(0, 1, 2, 3)
        began = perf_counter()
        await mesh.until(0, 1, 2, 3)
        took_s = perf_counter() - began

        for gateway in mesh.gateways:
            async with connect(gateway.url) as session:
                assert await served(mesh, session, 5, 3) == {mesh.address(3): 5}
        assert took_s < 1


async def test_a_draining_endpoint_is_passed_by_even_if_it_is_picked(tmp_path: Path) -> None:
    async with run_mesh(tmp_path) as mesh, connect(mesh.gateway.url) as session:
        assert await served(mesh, session, 5, 1, 2) == {mesh.address(1): 5}

        mesh.publish(0, 1, 2, draining=[1])
        began = perf_counter()
        await mesh.until(0, 1, 2, draining=[1])
        took_s = perf_counter() - began

        print("DRAIN listed", await served(mesh, session, 20, 1, 2))
        print("DRAIN alone", await served(mesh, session, 20, 1))
        print("DRAIN fallback", await served(mesh, session, 60))
        print(took_s)
