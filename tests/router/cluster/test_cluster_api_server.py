"""The test API server itself, read by the official client: what the other tests rest on."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kubernetes.aio import watch
from kubernetes.aio.client import DiscoveryV1Api

from extproc.router.cluster.kubeclient import KubeClients
from tests.router.cluster.api_server import ApiServer, serving, write_kubeconfig
from tests.router.cluster.objects import draining_pod, parsed, pod, slice_object

SELECTOR = "kubernetes.io/service-name=vllm"


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with serving(ApiServer()) as server:
        server.put(slice_object("s1", pod("a", "10.0.0.1", zone="eu-1a"), draining_pod("b", "10.0.0.2")))
        server.put(slice_object("other", pod("x", "10.0.9.1"), service="other"))
        yield server


@pytest.fixture
async def api(server: ApiServer, tmp_path: Path) -> AsyncIterator[DiscoveryV1Api]:
    (tmp_path / "token").write_text("token-1")
    write_kubeconfig(tmp_path / "kubeconfig", server.url, tmp_path / "token")
    async with await KubeClients(str(tmp_path / "kubeconfig")).open() as client:
        yield DiscoveryV1Api(client)


async def test_a_list_says_the_same_through_the_official_models(
    server: ApiServer, api: DiscoveryV1Api
) -> None:
    listed = await api.list_namespaced_endpoint_slice("default", label_selector=SELECTOR)

    serialized = api.api_client.sanitize_for_serialization(listed)
    assert [parsed(slice_) for slice_ in serialized["items"]] == [parsed(server.slices["s1"])]


async def test_a_watch_tells_what_came_after_the_version_and_nothing_of_others(
    server: ApiServer, api: DiscoveryV1Api
) -> None:
    server.put(slice_object("s2", pod("c", "10.0.0.3")))
    server.put(slice_object("other", service="other"))
    server.put(slice_object("s1"))
    server.delete("s2")

    async with watch.Watch() as watcher:
        stream = watcher.stream(
            api.list_namespaced_endpoint_slice, "default", label_selector=SELECTOR, resource_version="102"
        )
        events = [await anext(stream) for _ in range(3)]

    assert [(event["type"], event["object"].metadata.name) for event in events] == [
        ("ADDED", "s2"),
        ("MODIFIED", "s1"),
        ("DELETED", "s2"),
    ]


@pytest.mark.parametrize(("version", "code"), [("102", 410), ("1000", 504)])
async def test_a_version_out_of_the_history_or_the_future_is_refused(
    server: ApiServer, api: DiscoveryV1Api, version: str, code: int
) -> None:
    server.compact()
    response = await api.list_namespaced_endpoint_slice_without_preload_content(
        "default", label_selector=SELECTOR, resource_version=version, watch=True
    )

    assert response.status == code
    response.close()
