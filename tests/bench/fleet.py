"""Envoy, the service and any number of simulated vLLM endpoints: what a comparison is run against."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.stack.gateway import Gateway, edited, load, set_addresses
from tests.stack.ports import free_ports
from tests.stack.service import Service, pool
from tests.stack.simulators import Simulators

MODEL = "llama"
_SHIPPED_PORTS = (8080, 9901, 9002, 9090)


@dataclass(frozen=True, slots=True)
class ServedFleet:
    """Where the running parts are."""

    url: str
    admin: str
    settings_file: Path
    addresses: Sequence[str]
    directory: Path

    def count_late(self) -> int:
        """How often an endpoint has said that it is too late for its simulated time."""
        return sum(
            log.read_text().count("the simulation is") for log in self.directory.glob("vllm-*.log")
        )

    def spec(self, traffic: dict[str, Any], **fields: Any) -> dict[str, Any]:
        """A spec file's tree for this fleet; `ab` among the fields gets the ways to switch and flush."""
        ab = {"settings_file": str(self.settings_file), "admin": self.admin, **fields.pop("ab", {})}
        target = {
            "api": "vllm",
            "model": MODEL,
            "endpoint_header": "x-served-by",
            **fields.pop("target", {}),
        }
        return {
            "endpoint": self.url,
            "target": target,
            "scrape": list(self.addresses),
            "performance": {"traffic_shape": traffic},
            "ab": ab,
            **fields,
        }


@contextmanager
def run_fleet(
    directory: Path, *, endpoints: int, simulate: Sequence[str], processes: int = 1
) -> Iterator[ServedFleet]:
    """Starts everything on free ports and stops it at the end. `processes` share the endpoints."""
    ports = free_ports(len(_SHIPPED_PORTS) + endpoints)
    client, admin, ext_proc, service_admin = ports[: len(_SHIPPED_PORTS)]
    served = ports[len(_SHIPPED_PORTS) :]
    moved = dict(zip(_SHIPPED_PORTS, ports, strict=False))
    tree = edited(
        load("standalone.yaml"), moved, [lambda tree: set_addresses(tree, "vllm", served)]
    )
    share = -(-endpoints // processes)
    simulators = [
        Simulators(
            directory,
            served[first : first + share],
            "--model",
            MODEL,
            *simulate,
            name=f"vllm-{first}",
        )
        for first in range(0, endpoints, share)
    ]
    addresses = [address for part in simulators for address in part.addresses]
    service = Service(directory, port=ext_proc, admin_port=service_admin)
    service.configure([pool(addresses)])
    gateway = Gateway(directory, tree, port=client, admin_port=admin)
    with ExitStack() as running:
        for part in (*simulators, service, gateway):
            running.enter_context(part)
        for part in (*simulators, service, gateway):
            part.wait_until(part.is_ready)
        yield ServedFleet(
            gateway.url, f"127.0.0.1:{service_admin}", service.config, addresses, directory
        )
