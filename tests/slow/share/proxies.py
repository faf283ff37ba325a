"""Several gateways before the same endpoints: each a real Envoy, and services that share picks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.slow.share.broker import Broker
from tests.stack.gateway import Edit, Gateway, edited, load, set_addresses
from tests.stack.ports import free_ports
from tests.stack.service import Pool, Service

SECRETS = {"SHARE_SECRET": "a secret of 16 bytes or more", "NATS_PASSWORD": "password"}
LONG_S = 120.0
_SHIPPED_PORTS = (8080, 9901)

Carrier = Callable[[int], dict[str, Any]]
"""From a service's port in the mesh to the part of `share` that says how letters go."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """One gateway: an Envoy, and the services that it asks by turns."""

    gateway: Gateway
    services: Sequence[Service]

    def sees_services(self) -> bool:
        """Whether Envoy asks every one of them."""
        name = "cluster.extproc.membership_healthy"
        return self.gateway.counters(name)[name] == len(self.services)

    def wait(self, others: int) -> None:
        """Waits until Envoy asks all services, and each has so many peers."""
        self.gateway.wait_until(self.sees_services, LONG_S)
        if others:
            self.gateway.wait_until(lambda: self.hears(others), LONG_S)

    def hears(self, others: int) -> bool:
        """Whether each of the services uses the counts of so many others."""
        return all(
            service.metric("extproc_share_peers", state="prompt") == others
            for service in self.services
        )


def over_mesh(ports: Sequence[int]) -> Carrier:
    peers = [f"127.0.0.1:{port}" for port in ports]
    return lambda port: {"mesh": {"listen": f"127.0.0.1:{port}", "peers": {"static": peers}}}


def over_nats(broker: Broker) -> Carrier:
    access = {
        "servers": [f"nats://127.0.0.1:{broker.port}"],
        "user": "gateway",
        "password": {"env": "NATS_PASSWORD"},
    }
    return lambda _: {"nats": access}


def share(carrier: dict[str, Any]) -> dict[str, Any]:
    """Returns the section `share` of a configuration."""
    return {"cluster": "llm", "secret": {"env": "SHARE_SECRET"}, **carrier}


def build_proxy(
    directory: Path, endpoints: Sequence[int], *, services: int = 1, edits: Sequence[Edit] = ()
) -> Proxy:
    """Builds envoy/standalone.yaml before `endpoints`, ports of 127.0.0.1; the services want `configure`."""
    client, admin, *ports = free_ports(len(_SHIPPED_PORTS) + 2 * services)
    asked, admins = ports[:services], ports[services:]

    def lead(tree: dict[str, Any]) -> None:
        set_addresses(tree, "vllm", endpoints)
        set_addresses(tree, "extproc", asked)

    directory.mkdir(parents=True)
    moved = dict(zip(_SHIPPED_PORTS, (client, admin), strict=True))
    tree = edited(load("standalone.yaml"), moved, [lead, *edits])
    return Proxy(
        Gateway(directory, tree, port=client, admin_port=admin),
        [
            _service(directory / f"service-{place}", port, admin_port)
            for place, (port, admin_port) in enumerate(zip(asked, admins, strict=True))
        ],
    )


def _service(directory: Path, port: int, admin_port: int) -> Service:
    directory.mkdir()
    return Service(directory, port=port, admin_port=admin_port, environment=SECRETS)


@contextmanager
def run_proxies(
    directory: Path,
    pools: Sequence[Pool],
    endpoints: Sequence[int],
    *,
    gateways: int,
    services: int = 1,
    carrier: str | None = None,
) -> Iterator[list[Proxy]]:
    """Starts gateways that share over a `carrier`, `mesh` or `nats`; yields them when all letters come."""
    with ExitStack() as running:
        proxies = [
            build_proxy(directory / f"front-{place}", endpoints, services=services)
            for place in range(gateways)
        ]
        sections = _carry(directory, running, carrier, gateways * services)
        all_services = [service for proxy in proxies for service in proxy.services]
        for service, section in zip(all_services, sections, strict=True):
            service.configure(pools, share=section)
            running.enter_context(service)
        for service in all_services:
            service.wait_until(service.is_ready, LONG_S)
        for proxy in proxies:
            running.enter_context(proxy.gateway).wait_ready()
            proxy.wait(len(sections) - 1 if carrier else 0)
        yield proxies


def _carry(
    directory: Path, running: ExitStack, carrier: str | None, services: int
) -> Sequence[dict[str, Any] | None]:
    """Returns each service's section `share`, starts the broker if there is one."""
    if carrier is None:
        return [None] * services
    if carrier == "nats":
        broker = running.enter_context(Broker(directory, *free_ports(1)))
        broker.wait_ready()
        return [share(over_nats(broker)(0))] * services
    ports = free_ports(services)
    return [share(over_mesh(ports)(port)) for port in ports]
