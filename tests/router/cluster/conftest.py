import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import pytest

from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.cluster.kubernetes import KubernetesSource
from extproc.router.cluster.listwatch import KubeAccess
from tests.router.cluster.api_server import ApiServer, serving_api, write_kubeconfig
from tests.router.cluster.harness import PATIENT, Kube, RecordingSink
from tests.router.cluster.objects import A, B, slice_object


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with serving_api(ApiServer()) as server:
        server.put(slice_object("s1", A, B))
        yield server


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("token-1")
    return path


@pytest.fixture
def delays() -> list[float]:
    return []


@pytest.fixture
def access(token: Path, tmp_path: Path, delays: list[float]) -> Callable[..., KubeAccess]:
    async def nap(delay_s: float) -> None:
        delays.append(delay_s)
        await asyncio.sleep(0.001)

    def access(server: ApiServer, **options: object) -> KubeAccess:
        path = tmp_path / "kubeconfig"
        write_kubeconfig(path, server.url, token)
        arguments = {"sleep": nap, "rng": Random(7), "patience": PATIENT} | options
        return KubeAccess(KubeClients(str(path)).open, **arguments)  # type: ignore[arg-type]  # the test's

    return access


@pytest.fixture
def kube(
    server: ApiServer,
    access: Callable[..., KubeAccess],
    sink: RecordingSink,
    delays: list[float],
    token: Path,
) -> Kube:
    def build(settle_s: float = 0.01, **options: object) -> KubernetesSource:
        return KubernetesSource(
            access(server, **options), "default", "vllm", ("http",), settle_s=settle_s
        )

    return Kube(server, build, sink, delays, token)
