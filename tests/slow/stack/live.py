"""A cluster in miniature: an API server, pods, the service and Envoy, for one gateway's configuration."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import aiohttp

from tests.router.cluster.api_server import ApiServer, serving_api, write_access
from tests.router.cluster.objects import Object, draining_pod, pod, slice_object
from tests.stack.client import MODEL, Answer, chat_about, send
from tests.stack.gateway import Edit, Gateway, edited, load
from tests.stack.ports import free_ports
from tests.stack.service import Service
from tests.stack.upstream import Endpoints, serve
from tests.waiting import until

IPS = [f"127.0.2.{number}" for number in range(1, 5)]


@dataclass
class LiveCluster:
    """Everything that runs. Pods have numbers."""

    gateway: Gateway
    service: Service
    api: ApiServer
    pods: Endpoints
    port: int
    metrics_port: int
    api_running: AsyncExitStack
    has_xds: bool = True

    @asynccontextmanager
    async def outage(self) -> AsyncGenerator[None]:
        """Stops the API server, and starts it again at its address."""
        port = int(self.api.url.rpartition(":")[2])
        await self.api_running.aclose()
        yield
        await self.api_running.enter_async_context(serving_api(self.api, port))

    def apply(
        self, *numbers: int, draining: frozenset[int] = frozenset(), service: str = "vllm"
    ) -> None:
        """Writes the EndpointSlice of a Service that has these pods."""
        entries = [self._entry(number, draining) for number in numbers]
        ports: list[Object] = [{"name": "http", "port": self.port, "protocol": "TCP"}]
        self.api.put(slice_object(f"{service}-1", *entries, ports=ports, service=service))

    def configure(
        self,
        when_down: Mapping[str, str] = MappingProxyType({}),
        hold: dict[str, float] | None = None,
        **services: str,
    ) -> None:
        """Writes the service's configuration: pools by name, each the pods of a Service."""
        kubeconfig = self.service.config.with_name("kubeconfig")
        source = {"namespace": "default", "port": "http", "kubeconfig": str(kubeconfig)}
        pools: list[Object] = [
            {
                "name": name,
                "models": [MODEL if name == "llama" else name],
                "endpoints": {"kubernetes": source | {"service": service}},
                "fallbacks": 2,
                # Its places outlast a restart: what a test sees before and after may be compared.
                "strategy": {"name": "prefix_hash"},
                **({} if hold is None else {"hold": hold}),
                **({"when_down": when_down[name]} if name in when_down else {}),
            }
            for name, service in services.items()
        ]
        self.service.configure(pools, xds=self.has_xds)

    def _entry(self, number: int, draining: frozenset[int]) -> Object:
        name = f"pod-{number}"
        return (
            draining_pod(name, IPS[number])
            if number in draining
            else pod(name, IPS[number], ready=True)
        )

    def address(self, number: int) -> str:
        return f"{IPS[number]}:{self.port}"

    def hosts(self, *numbers: int, draining: frozenset[int] = frozenset()) -> dict[str, str]:
        return {self.address(n): "DRAINING" if n in draining else "HEALTHY" for n in numbers}

    async def until(self, *numbers: int, draining: frozenset[int] = frozenset()) -> None:
        await until_hosts(self.gateway, "llama", self.hosts(*numbers, draining=draining))

    async def restore(self) -> None:
        """Puts back what a test left changed."""
        if self.service.is_running:
            self.service.send(signal.SIGCONT)
        else:
            self.service.start()
        self.pods.hold_again()
        self.apply(0, 1, 2)
        self.configure(llama="vllm")
        await asyncio.to_thread(self.service.wait_ready)
        await self.until(0, 1, 2)
        await until_hosts(self.gateway, "_default", self.hosts(0, 1, 2))
        await self.until_asked()

    async def until_asked(self) -> None:
        """Waits until Envoy asks the service again."""
        await asyncio.to_thread(self.gateway.wait_until, self.gateway.sees_service)


@asynccontextmanager
async def run_cluster(
    directory: Path,
    shipped: str = "xds.yaml",
    *,
    edits: Sequence[Edit] = (),
    listen: str | None = None,
) -> AsyncGenerator[LiveCluster]:
    """Runs three pods behind a shipped configuration of Envoy; the service listens on `listen`, if given."""
    client, admin, ext_proc, service_admin, pod_port, metrics = free_ports(6)
    ports = {8080: client, 9901: admin, 9902: metrics, 9002: ext_proc, 8000: pod_port}
    gateway = Gateway(directory, edited(load(shipped), ports, edits), port=client, admin_port=admin)
    service = Service(directory, port=ext_proc, admin_port=service_admin, listen=listen)
    addresses = [f"{ip}:{pod_port}" for ip in IPS]
    async with AsyncExitStack() as api_running, serve(addresses) as pods:
        api = await api_running.enter_async_context(serving_api(ApiServer()))
        cluster = LiveCluster(
            gateway, service, api, pods, pod_port, metrics, api_running, shipped == "xds.yaml"
        )
        cluster.apply(0, 1, 2)
        write_access(directory, api.url)
        cluster.configure(llama="vllm")
        with service:
            await asyncio.to_thread(service.wait_ready)
            with gateway:
                await asyncio.to_thread(gateway.wait_ready)
                if cluster.has_xds:
                    await cluster.until(0, 1, 2)
                await cluster.until_asked()
                yield cluster


async def sweep(session: aiohttp.ClientSession, count: int, text: str = "sweep") -> list[Answer]:
    """Asks `count` different things, one after the other."""
    return [await send(session, chat_about(f"{text} {number}")) for number in range(count)]


async def until_hosts(gateway: Gateway, cluster: str, wanted: dict[str, str]) -> None:
    """Waits until Envoy has exactly these hosts for a cluster."""
    await until(
        lambda: gateway.hosts(cluster) == wanted,
        lambda: f"{cluster} has {gateway.hosts(cluster)}, not {wanted}",
    )
