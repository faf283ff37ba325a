"""A Service's endpoints, followed as its EndpointSlices change, from a scripted API server."""

import logging

import pytest

from tests.router.cluster.api_server import SLICES
from tests.router.cluster.harness import Kube, has
from tests.router.cluster.objects import A, B, C, Object, draining_pod, pod, slice_object


async def test_lists_then_watches_from_the_lists_version(kube: Kube) -> None:
    async with kube.running():
        await kube.until(has("a", "b"))
        await kube.until_watched()

    [listed], [watched] = kube.server.lists, kube.server.watches
    assert listed == {"labelSelector": "kubernetes.io/service-name=vllm", "limit": "100"}
    assert watched["resourceVersion"] == "101"
    assert watched["allowWatchBookmarks"] == "true"
    assert 240 <= int(watched["timeoutSeconds"]) <= 300
    assert kube.sink.restarts == []


async def test_slices_of_its_service_are_followed_until_there_is_none(kube: Kube) -> None:
    async with kube.watching():
        kube.server.put(slice_object("s2", C))
        await kube.until(has("a", "b", "c"))
        kube.server.put(slice_object("s1", A, draining_pod("b", "10.0.0.2")))
        await kube.until(lambda sink: [e.is_ready for e in sink.lists[-1]] == [True, False, True])
        kube.server.put(slice_object("other", pod("d", "10.0.0.4"), service="other"))
        kube.server.delete("s1")
        await kube.until(has("c"))
        kube.server.delete("s2")
        await kube.until(lambda sink: sink.lacking)

    assert kube.sink.lists[-1] == []
    assert all("default/d" not in [e.name for e in listed] for listed in kube.sink.lists)
    assert len(kube.server.lists) == 1


OTHER_PORT = slice_object("s1", A, B, ports=[{"name": "metrics", "port": 9000, "protocol": "TCP"}])
NO_PORT = "Service default/vllm: every EndpointSlice has no TCP port 'http', only metrics=9000/TCP"
NO_SERVICE = "Service default/vllm has no EndpointSlice: is there such a Service?"


@pytest.mark.parametrize(
    ("before", "why", "reason"),
    [(None, "no_service", NO_SERVICE), (OTHER_PORT, "no_port", NO_PORT)],
)
async def test_a_service_or_port_that_is_not_there_is_reported_as_lacking_and_not_as_empty(
    kube: Kube, *, before: Object | None, why: str, reason: str
) -> None:
    if before:
        kube.server.put(before)
    else:
        kube.server.delete("s1")
    async with kube.running():
        await kube.until(lambda sink: sink.lacking)
        await kube.until_watched(SLICES)
        kube.server.bookmark()
        await kube.until(lambda sink: len(sink.lacking) >= 2)

        assert (kube.sink.lists, kube.sink.confirmed_total) == ([], 0)

        kube.server.put(slice_object("s1", ports=[]))
        await kube.until(
            lambda sink: sink.lists == [[]]
        )  # scaled to nothing: empty, and not lacking
        kube.server.put(slice_object("s1", A, B))
        await kube.until(has("a", "b"))

    assert set(kube.sink.lacking) == {(why, reason)}


async def test_those_that_all_turn_not_ready_at_once_are_picked_all_the_same(kube: Kube) -> None:
    """What a control plane says after a long outage: the nodes' leases are old, and all pods serve."""
    away = [pod("a", "10.0.0.1", ready=False), pod("b", "10.0.0.2", ready=False)]
    async with kube.running():
        await kube.until(has("a", "b"))
        await kube.until_watched()
        kube.server.put(slice_object("s1", *away))
        await kube.until(lambda sink: sink.lacking)
        kube.server.bookmark()
        await kube.until(lambda sink: len(sink.lacking) >= 2)
        kube.server.put(slice_object("s1", away[0]))
        await kube.until(has("a"))
        kube.server.put(slice_object("s1", A))
        await kube.until(lambda sink: len(sink.lists) >= 3)

    assert {why for why, _ in kube.sink.lacking} == {"not_ready"}
    assert [[(each.name, each.is_ready) for each in listed] for listed in kube.sink.lists] == [
        [("default/a", True), ("default/b", True)],
        [("default/a", True)],
        [("default/a", True)],
    ]


async def test_a_burst_makes_one_list_and_a_pod_that_moves_between_slices_never_goes(
    kube: Kube,
) -> None:
    async with kube.watching(settle_s=0.5):
        kube.server.put(slice_object("s1", A))  # the controller's updates come in any order
        for number in range(10, 30):
            kube.server.put(slice_object("s2", pod(f"p{number}", f"10.0.0.{number}")))
        kube.server.put(slice_object("s2", B, C))
        await kube.until(has("a", "b", "c"))

    assert len(kube.sink.lists) == 2


async def test_a_slice_without_the_port_is_logged_once(
    kube: Kube, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    kube.server.put(slice_object("s2", C, ports=[]))
    async with kube.watching():
        kube.server.put(slice_object("s1", A))
        await kube.until(has("a"))

    assert caplog.messages == ["EndpointSlice s2 has no TCP port 'http', only none"]
