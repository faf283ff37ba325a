import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random

import pytest
import trustme

from extproc.router.cluster.kube_api import WatchLost
from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.cluster.kubernetes import KubernetesSource
from extproc.router.cluster.listwatch import KubeAccess
from tests.router.cluster.api_server import ApiServer, serving_api, write_kubeconfig
from tests.router.cluster.harness import RecordingSink, running_source
from tests.router.cluster.objects import pod, slice_object


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def tls_server(authority: trustme.CA) -> AsyncIterator[ApiServer]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    async with serving_api(ApiServer(), tls=tls) as server:
        server.put(slice_object("s1", pod("a", "10.0.0.1")))
        yield server


@pytest.fixture
def service_account(tmp_path: Path, authority: trustme.CA) -> Path:
    """The folder that the kubelet mounts into a pod."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text("token-1")
    return tmp_path


def pod_environment(server: ApiServer) -> dict[str, str]:
    _, _, port = server.url.rpartition(":")
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}


@pytest.fixture
def clients(tls_server: ApiServer, service_account: Path) -> KubeClients:
    return KubeClients(environment=pod_environment(tls_server), service_account=service_account)


def following(clients: KubeClients, sink: RecordingSink) -> AbstractAsyncContextManager[object]:
    async def nap(_: float) -> None:
        await asyncio.sleep(0.005)

    access = KubeAccess(clients.open, Random(7), sleep=nap)
    return running_source(KubernetesSource(access, "default", "vllm", ("http",)), sink)


async def test_a_pod_uses_its_service_account_and_a_rotated_token_at_once(
    clients: KubeClients, tls_server: ApiServer, service_account: Path, sink: RecordingSink
) -> None:
    """Whose token may end in a newline."""
    async with following(clients, sink):
        await sink.until(lambda sink: sink.names == ["default/a"])
        await sink.until(lambda _: tls_server.watchers)
        tls_server.tokens = {"token-2"}
        await asyncio.to_thread((service_account / "token").write_text, "token-2\n")
        tls_server.end_watches()
        await sink.until(lambda _: len(tls_server.watches) >= 2 and tls_server.watchers)

    assert sink.restarts == ["closed"]


async def test_a_server_of_another_authority_is_not_talked_to(
    clients: KubeClients, tls_server: ApiServer, service_account: Path, sink: RecordingSink
) -> None:
    trustme.CA().cert_pem.write_to_path(str(service_account / "ca.crt"))
    async with following(clients, sink):
        await sink.until(lambda sink: len(sink.restarts) >= 2)

    assert set(sink.restarts) == {"connection"}
    assert tls_server.lists == tls_server.watches == []


async def test_an_empty_token_is_no_credential(clients: KubeClients, service_account: Path) -> None:
    await asyncio.to_thread((service_account / "token").write_text, "")
    with pytest.raises(WatchLost, match="Token file exists but empty") as caught:
        await clients.open()

    assert caught.value.why == "credentials"


def test_the_own_namespace_is_the_pods(tmp_path: Path) -> None:
    clients = KubeClients(service_account=tmp_path)
    outside = clients.own_namespace()
    (tmp_path / "namespace").write_text("llm\n")

    assert (outside, clients.own_namespace()) == ("default", "llm")


async def test_a_kubeconfig_that_is_no_yaml_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("users: [{token: 'secret-token\n}]: [")

    with pytest.raises(WatchLost) as caught:
        await KubeClients(str(path)).open()

    assert "Error at " in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_a_kubeconfig_goes_before_the_service_account(
    tmp_path: Path, tls_server: ApiServer
) -> None:
    write_kubeconfig(tmp_path / "kubeconfig", "https://red.example", tmp_path / "token")
    (tmp_path / "token").write_text("token-red")
    clients = KubeClients(str(tmp_path / "kubeconfig"), environment=pod_environment(tls_server))

    async with await clients.open() as client:
        assert client.configuration.host == "https://red.example"
