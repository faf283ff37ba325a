import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from extproc.router.cluster.kube_api import Patience
from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.cluster.kubernetes import KubernetesSource
from extproc.router.cluster.listwatch import KubeAccess
from tests.router.cluster.api_server import ApiServer, serving, write_kubeconfig
from tests.router.cluster.harness import PATIENT, BuildSource, RecordingSink
from tests.router.cluster.objects import A, B, slice_object


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with serving(ApiServer()) as server:
        server.put(slice_object("s1", A, B))
        yield server


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("token-1")
    return path


@pytest.fixture
def delays() -> list[float]:
    """The back-off delays that the source asked for; the sleeps themselves are short."""
    return []


@pytest.fixture
def build(server: ApiServer, token: Path, tmp_path: Path, delays: list[float]) -> BuildSource:
    async def nap(delay_s: float) -> None:
        delays.append(delay_s)
        await asyncio.sleep(0.001)

    def build(patience: Patience = PATIENT, settle_s: float = 0.01, **options: object) -> KubernetesSource:
        path = tmp_path / "kubeconfig"
        write_kubeconfig(path, server.url, token)
        arguments = {"sleep": nap, "rng": Random(7)} | options
        access = KubeAccess(
            KubeClients(kubeconfig=str(path)).open,
            patience=patience,
            **arguments,  # type: ignore[arg-type]  # options of the test
        )
        return KubernetesSource(access, "default", "vllm", ("http",), settle_s=settle_s)

    return build
