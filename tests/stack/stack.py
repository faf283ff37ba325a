"""The whole path of a request: Envoy, the service and simulated vLLM endpoints, on free ports.

A stack is shared: a test says what it needs with `use`, and `restore` puts everything back after
it.
"""

import copy
import json
import signal
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tests.stack.gateway import (
    Edit,
    Gateway,
    Tree,
    add_variant,
    discover,
    edited,
    load,
    write_endpoints,
)
from tests.stack.otlp import tracing_to
from tests.stack.ports import free_ports
from tests.stack.process import Process
from tests.stack.service import Pool, Service, pool
from tests.stack.simulators import Simulators

# Clients, admin, ext_proc, the service's admin, and four endpoints: three in one process, the last
# one alone.
SHIPPED_PORTS = (8080, 9901, 9002, 9090, 8001, 8002, 8003, 8004)

DEFAULTS: Final[dict[str, Any]] = {"drain_s": 60}


class Stack:
    """Running parts: four simulated endpoints at `addresses`, and `spare` addresses where nobody listens."""

    def __init__(
        self,
        directory: Path,
        *,
        edits: Sequence[Edit] = (),
        variants: Mapping[str, Edit] | None = None,
        simulate: Sequence[str] | None = ("--speed", "10"),
        otlp_port: int | None = None,
        threads: int = 2,
    ) -> None:
        ports = free_ports(len(SHIPPED_PORTS) + 4 + len(variants or {}))
        client, admin, ext_proc, service_admin = ports[:4]
        self.addresses = [f"127.0.0.1:{port}" for port in ports[4:8]]
        self.spare = [f"127.0.0.1:{port}" for port in ports[8:12]]
        self._assignment = directory / "endpoints.json"
        self._variant_ports = dict(zip(variants or {}, ports[12:], strict=True))
        moved = dict(zip(SHIPPED_PORTS, ports[:8], strict=True)) | {4318: otlp_port or 4318}
        shipped = edited(load("standalone.yaml", marks="otlp" if otlp_port else ""), moved)

        def edit(tree: Tree, *more: Edit) -> Tree:
            for change in more:
                change(tree)
            discover(tree, self._assignment)
            return tree

        tree = edit(copy.deepcopy(shipped), *edits)
        for name, change in (variants or {}).items():
            add_variant(tree, name, self._variant_ports[name], edit(copy.deepcopy(shipped), change))
        parts = {} if simulate is None else {"vllm-a": ports[4:7], "vllm-b": ports[7:8]}
        options = simulate or ()
        self.simulators = [
            Simulators(directory, own, *options, name=name) for name, own in parts.items()
        ]
        self.service = Service(
            directory,
            port=ext_proc,
            admin_port=service_admin,
            environment=tracing_to(otlp_port) if otlp_port else {},
        )
        self.gateway = Gateway(directory, tree, port=client, admin_port=admin, threads=threads)
        self._faulty: frozenset[str] = frozenset()
        self._placed: list[str] = []
        self._place(self.addresses)

    @property
    def url(self) -> str:
        return self.gateway.url

    def through(self, variant: str) -> "Stack":
        """Returns this stack with the listener of a variant, which asks the service, as its gateway."""
        other = copy.copy(self)
        other.gateway = self.gateway.variant(variant, self._variant_ports[variant])
        other.gateway.wait_until(other.gateway.sees_service)
        return other

    def use(
        self, *pools: Pool, endpoints: Sequence[str] | None = None, share: Any = None, **server: Any
    ) -> None:
        """Has service and Envoy use these pools and addresses, and waits for both.

        Without them: one pool, the simulated endpoints. Other settings of `server` start the
        service again.
        """
        addresses = self.addresses if endpoints is None else list(endpoints)
        self._place(addresses)
        self.service.apply(pools or [pool(addresses)], share=share, **DEFAULTS | server)
        self.gateway.wait_until(lambda: self.gateway.has_endpoints(addresses))
        if server.get("tls") is None:
            self.gateway.wait_until(self.gateway.sees_service)

    def _place(self, addresses: list[str]) -> None:
        if addresses != self._placed:
            write_endpoints(self._assignment, addresses)
            self._placed = addresses

    def restart_service(self) -> None:
        """Starts the service again and waits until Envoy asks it."""
        self.service.start()
        self.service.wait_ready()
        self.gateway.wait_until(self.gateway.sees_service)

    def fault(self, address: str, **faults: object) -> None:
        """Has a simulated endpoint do this wrong, and nothing else."""
        body = json.dumps(faults).encode()
        request = urllib.request.Request(f"http://{address}/simulate/fail", body)
        request.add_header("content-type", "application/json")
        urllib.request.urlopen(request, timeout=60).close()
        self._faulty = self._faulty | {address} if faults else self._faulty - {address}

    def restore(self) -> None:
        """Puts back what a test left changed."""
        for part in (*self.simulators, self.service):
            if part.is_running:
                part.send(signal.SIGCONT)
            else:
                part.start()
                part.wait_ready()
        for address in self._faulty:
            self.fault(address)
        self.use()

    @contextmanager
    def running(self, *pools: Pool, **server: Any) -> Iterator["Stack"]:
        """Starts all parts; stops them at the end."""
        with ExitStack() as stack:
            for endpoints in self.simulators:
                stack.enter_context(endpoints)
            stack.callback(self.service.stop)
            self.service.apply(pools or [pool(self.addresses)], **DEFAULTS | server)
            stack.enter_context(self.gateway)
            parts: list[Process] = [*self.simulators, self.gateway]
            for part in parts:
                part.wait_ready()
            self.gateway.wait_until(self.gateway.sees_service)
            yield self


def states(stack: Stack) -> dict[str, str]:
    """The endpoints' states in the service's only pool."""
    (shown,) = stack.service.pools()
    return {endpoint["address"]: endpoint["state"] for endpoint in shown["endpoints"]}


def in_flight(stack: Stack) -> int:
    """What the service counts in its only pool."""
    (shown,) = stack.service.pools()
    total = sum(int(endpoint["in_flight"]) for endpoint in shown["endpoints"])
    assert total == shown["in_flight"]
    return total


def ends_of_holds(stack: Stack, since: Sequence[float] = (0, 0, 0)) -> list[float]:
    """How many held requests were served, refused and aborted, since then."""
    ends = zip(("served", "refused", "aborted"), since, strict=True)
    return [
        stack.service.metric("extproc_held_seconds_count", end=end) - before for end, before in ends
    ]
