"""envoy/sidecar.yaml as a pod runs it: a unix socket to the service, vLLM by a name, metrics listener."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.stack.client import ask, connect, send
from tests.stack.fetch import answers, get
from tests.stack.gateway import Gateway, Tree, cluster, edited, find, load
from tests.stack.ports import free_ports
from tests.stack.service import Service, pool
from tests.stack.simulators import Simulators

pytestmark = pytest.mark.envoy


class Sidecar(NamedTuple):
    """The running parts."""

    gateway: Gateway
    service: Service
    simulators: Simulators


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory, metrics_port: int) -> Iterator[Sidecar]:
    directory = tmp_path_factory.mktemp("sidecar")
    client, admin, service_admin, vllm = free_ports(4)
    socket = directory / "ext_proc.sock"

    def localise(tree: Tree) -> None:
        for pipe in find(tree, "pipe"):
            pipe["path"] = str(socket)
        for address in find(cluster(tree, "vllm"), "socket_address"):
            address["address"] = "localhost"

    moved = {8080: client, 9901: admin, 9902: metrics_port, 8000: vllm}
    tree = edited(load("sidecar.yaml"), moved, [localise])
    simulators = Simulators(directory, range(vllm, vllm + 1), "--speed", "10")
    service = Service(directory, port=0, admin_port=service_admin, listen=f"unix:{socket}")
    service.configure([pool(simulators.addresses)])
    gateway = Gateway(directory, tree, port=client, admin_port=admin)
    with ExitStack() as running:
        for part in (simulators, service, gateway):
            running.enter_context(part)
            part.wait_ready()
        gateway.wait_until(gateway.sees_service)
        yield Sidecar(gateway, service, simulators)


async def test_request_is_routed_over_the_unix_socket(sidecar: Sidecar) -> None:
    async with connect(sidecar.gateway.url) as session:
        answer = await send(session, ask("hello"))

    assert (answer.status, answer.served_by) == (200, sidecar.simulators.addresses[0])
    assert answer.headers["x-extproc-pool"] == "vllm"


def test_prometheus_finds_metrics_and_nothing_else(sidecar: Sidecar, metrics_port: int) -> None:
    """The listener that is open to the network shows two paths of the admin port, not the port."""
    open_port = f"http://127.0.0.1:{metrics_port}"

    assert "envoy_cluster_upstream_rq_total" in get(f"{open_port}/stats/prometheus")
    assert answers(f"{open_port}/ready")
    assert not answers(f"{open_port}/config_dump")
    assert not answers(f"{open_port}/quitquitquit")


def test_socket_is_the_services_own(sidecar: Sidecar) -> None:
    """Nobody else may write to it: what it says decides where prompts go."""
    socket = Path(sidecar.service.config).with_name("ext_proc.sock")

    assert socket.stat().st_mode & 0o022 == 0
