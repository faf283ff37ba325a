"""The whole path of a request: Envoy, the service and simulated vLLM endpoints, on free ports."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.stack.gateway import Edit, Gateway, edited, load
from tests.stack.otlp import tracing_to
from tests.stack.ports import free_ports
from tests.stack.service import Pool, Service, pool
from tests.stack.simulators import Simulators

# Clients, admin, ext_proc, the service's admin, and four endpoints: three in one process, the last one alone.
SHIPPED_PORTS = (8080, 9901, 9002, 9090, 8001, 8002, 8003, 8004)


@dataclass(frozen=True, slots=True)
class Stack:
    """Running parts. `ports` are those of the four endpoints of envoy/standalone.yaml."""

    gateway: Gateway
    service: Service
    ports: Sequence[int]
    simulators: Sequence[Simulators]

    @property
    def url(self) -> str:
        return self.gateway.url

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports]

    def wait_ready(self) -> None:
        for part in (*self.simulators, self.service, self.gateway):
            part.wait_ready()

    def restart_service(self) -> None:
        """Starts the service again and waits until Envoy asks it."""
        self.service.start()
        self.service.wait_ready()
        self.gateway.wait_until(self.gateway.sees_service)


@contextmanager
def run_stack(
    directory: Path,
    *,
    edits: Sequence[Edit] = (),
    pools: Callable[[list[str]], list[Pool]] = lambda addresses: [pool(addresses)],
    simulate: Sequence[str] | None = ("--speed", "10"),
    transport: str = "native",
    otlp_port: int | None = None,
    threads: int = 2,
    **server: Any,
) -> Iterator[Stack]:
    """Starts envoy/standalone.yaml (after `edits`), the service and four endpoints; stops them all.

    `pools` makes the service's pools from the endpoints' addresses; `server` are further settings of
    its section of that name, `transport` how it serves gRPC, `threads` Envoy's; `simulate` are options of
    the simulated endpoints, `None` starts none. With an `otlp_port` Envoy's block for traces is uncommented
    and the service has a variable: both send there.
    """
    ports = free_ports(len(SHIPPED_PORTS))
    client, admin, ext_proc, service_admin = ports[:4]
    moved = dict(zip(SHIPPED_PORTS, ports, strict=True))
    environment = {}
    if otlp_port is not None:
        moved[4318] = otlp_port
        environment = tracing_to(otlp_port)
    tree = edited(load("standalone.yaml", marks="otlp" if otlp_port else ""), moved, edits)
    parts = {} if simulate is None else {"vllm-a": ports[4:7], "vllm-b": ports[7:8]}
    simulators = [Simulators(directory, own, *(simulate or ()), name=name) for name, own in parts.items()]
    service = Service(
        directory, port=ext_proc, admin_port=service_admin, transport=transport, environment=environment
    )
    gateway = Gateway(directory, tree, port=client, admin_port=admin, threads=threads)
    stack = Stack(gateway, service, ports[4:], simulators)
    service.configure(pools(stack.addresses), **server)
    with ExitStack() as running:
        for part in (*simulators, service):
            running.enter_context(part)
        service.wait_ready()
        running.enter_context(gateway)
        stack.wait_ready()
        gateway.wait_until(gateway.sees_service)
        yield stack


def eventually(is_true: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    """Polls until `is_true`, at most `timeout_s`; returns whether it became so."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
