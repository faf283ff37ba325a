import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
import trustme

from extproc.router.cluster.kube_api import WatchLost
from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.cluster.kubernetes import KubernetesSource
from extproc.router.cluster.listwatch import KubeAccess
from tests.router.cluster.api_server import ApiServer, serving
from tests.router.cluster.harness import RecordingSink, running
from tests.router.cluster.objects import pod, slice_object


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def server(authority: trustme.CA) -> AsyncIterator[ApiServer]:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    async with serving(ApiServer(), tls=tls) as server:
        server.put(slice_object("s1", pod("a", "10.0.0.1")))
        yield server


@pytest.fixture
def service_account(tmp_path: Path, authority: trustme.CA) -> Path:
    """The folder that the kubelet mounts into a pod."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    (tmp_path / "token").write_text("token-1")
    return tmp_path


def environment(server: ApiServer) -> dict[str, str]:
    _, _, port = server.url.rpartition(":")
    return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}


def source_of(clients: KubeClients) -> KubernetesSource:
    async def nap(_: float) -> None:
        await asyncio.sleep(0.005)

    access = KubeAccess(clients.open, Random(7), sleep=nap)
    return KubernetesSource(access, "default", "vllm", ("http",))


async def test_a_pod_uses_its_service_account(
    server: ApiServer, service_account: Path, sink: RecordingSink
) -> None:
    clients = KubeClients(environment=environment(server), service_account=service_account)
    async with running(source_of(clients), sink):
        await sink.until(lambda told: told.names == ["default/a"])

    assert sink.restarts == []


async def test_a_rotated_service_account_token_is_used_at_once(
    server: ApiServer, service_account: Path, sink: RecordingSink
) -> None:
    clients = KubeClients(environment=environment(server), service_account=service_account)
    async with running(source_of(clients), sink):
        await sink.until(lambda _: server.watchers)
        server.tokens = {"token-2"}
        await asyncio.to_thread((service_account / "token").write_text, "token-2")
        server.end_watches()
        await sink.until(lambda _: len(server.watches) >= 2 and server.watchers)

    assert sink.restarts == ["closed"]


async def test_a_server_of_another_authority_is_not_talked_to(
    server: ApiServer, service_account: Path, sink: RecordingSink
) -> None:
    trustme.CA().cert_pem.write_to_path(str(service_account / "ca.crt"))
    clients = KubeClients(environment=environment(server), service_account=service_account)
    async with running(source_of(clients), sink):
        await sink.until(lambda told: len(told.restarts) >= 2)

    assert set(sink.restarts) == {"connection"}
    assert server.lists == server.watches == []


async def test_an_empty_token_is_no_credential(server: ApiServer, service_account: Path) -> None:
    await asyncio.to_thread((service_account / "token").write_text, "")
    clients = KubeClients(environment=environment(server), service_account=service_account)

    with pytest.raises(WatchLost, match="Token file exists but empty") as caught:
        await clients.open()

    assert caught.value.why == "credentials"


async def test_a_service_account_token_that_ends_in_a_newline_is_a_token(
    server: ApiServer, service_account: Path, sink: RecordingSink
) -> None:
    await asyncio.to_thread((service_account / "token").write_text, "token-1\n")
    clients = KubeClients(environment=environment(server), service_account=service_account)
    async with running(source_of(clients), sink):
        await sink.until(lambda told: told.names == ["default/a"])

    assert sink.restarts == []


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


async def test_a_kubeconfig_goes_before_the_service_account(tmp_path: Path, server: ApiServer) -> None:
    tree = {
        "clusters": [{"name": "red", "cluster": {"server": "https://red.example"}}],
        "users": [{"name": "red", "user": {"token": "token-red"}}],
        "contexts": [{"name": "red", "context": {"cluster": "red", "user": "red"}}],
        "current-context": "red",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(tree))
    clients = KubeClients(str(path), environment=environment(server))

    async with await clients.open() as client:
        assert client.configuration.host == "https://red.example"
