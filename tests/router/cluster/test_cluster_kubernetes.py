"""A Service's endpoints, followed as its EndpointSlices change, from a scripted API server."""

import asyncio
import logging
from time import thread_time

import pytest

from tests.router.cluster.api_server import ApiServer
from tests.router.cluster.harness import BuildSource, RecordingSink, has, running
from tests.router.cluster.objects import A, B, C, Object, draining_pod, pod, slice_object


async def test_lists_then_watches_from_the_lists_version(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(has("a", "b"))
        await sink.until(lambda _: server.watchers)

    [listed], [watched] = server.lists, server.watches
    assert listed == {"labelSelector": "kubernetes.io/service-name=vllm", "limit": "100"}
    assert watched["resourceVersion"] == "101"
    assert watched["allowWatchBookmarks"] == "true"
    assert 240 <= int(watched["timeoutSeconds"]) <= 300
    assert sink.restarts == []


async def test_follows_added_modified_and_deleted_slices(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.put(slice_object("s2", C))
        await sink.until(has("a", "b", "c"))
        server.put(slice_object("s1", A, draining_pod("b", "10.0.0.2")))
        await sink.until(lambda told: [e.is_ready for e in told.lists[-1]] == [True, False, True])
        server.delete("s1")
        await sink.until(has("c"))

    assert len(server.lists) == 1


async def test_an_empty_service_is_told_as_empty(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    server.put(slice_object("s1", ports=[]))
    async with running(build(), sink):
        await sink.until(lambda told: told.lists == [[]])
        server.put(slice_object("s1", A))
        await sink.until(has("a"))

    assert sink.lacking == []


def other_port() -> Object:
    return slice_object("s1", A, B, ports=[{"name": "metrics", "port": 9000, "protocol": "TCP"}])


@pytest.mark.parametrize(
    ("before", "why", "reason"),
    [
        (None, "no_service", "Service default/vllm has no EndpointSlice: is there such a Service?"),
        (
            other_port(),
            "no_port",
            "Service default/vllm: every EndpointSlice has no TCP port 'http', only metrics=9000/TCP",
        ),
    ],
)
async def test_a_service_or_port_that_is_not_there_is_told_as_lacking_and_not_as_empty(
    server: ApiServer,
    build: BuildSource,
    sink: RecordingSink,
    *,
    before: Object | None,
    why: str,
    reason: str,
) -> None:
    if before:
        server.put(before)
    else:
        server.delete("s1")
    async with running(build(), sink):
        await sink.until(lambda told: told.lacking)
        await sink.until(lambda _: server.watchers)
        server.bookmark()
        await sink.until(lambda told: len(told.lacking) >= 2)

        assert (sink.lists, sink.confirmed_total) == ([], 0)

        server.put(slice_object("s1", A, B))
        await sink.until(has("a", "b"))

    assert set(sink.lacking) == {(why, reason)}


async def test_a_service_that_is_deleted_later_is_told_as_empty_and_as_lacking(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.delete("s1")
        await sink.until(lambda told: told.lacking)

    assert [len(told) for told in sink.lists] == [2, 0]


async def test_those_that_all_turn_not_ready_at_once_are_picked_all_the_same(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    """What a control plane says after a long outage: the nodes' leases are old, and all pods serve."""
    away = [pod("a", "10.0.0.1", ready=False), pod("b", "10.0.0.2", ready=False)]
    async with running(build(), sink):
        await sink.until(has("a", "b"))
        await sink.until(lambda _: server.watchers)
        server.put(slice_object("s1", *away))
        await sink.until(lambda told: told.lacking)
        server.bookmark()
        await sink.until(lambda told: len(told.lacking) >= 2)
        server.put(slice_object("s1", away[0]))
        await sink.until(has("a"))
        server.put(slice_object("s1", A))
        await sink.until(lambda told: len(told.lists) >= 3)

    assert {why for why, _ in sink.lacking} == {"not_ready"}
    assert [[(each.name, each.is_ready) for each in told] for told in sink.lists] == [
        [("default/a", True), ("default/b", True)],
        [("default/a", True)],
        [("default/a", True)],
    ]


async def test_slices_of_other_services_are_not_asked_for(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    server.put(slice_object("other", C, service="other"))
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.put(slice_object("other", C, service="other"))
        server.put(slice_object("s2", pod("d", "10.0.0.4")))
        await sink.until(has("a", "b", "d"))

    assert all("default/c" not in [e.name for e in told] for told in sink.lists)


async def test_a_burst_of_events_is_told_once(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(settle_s=0.5), sink):
        await sink.until(lambda _: server.watchers)
        for number in range(10, 30):
            server.put(slice_object("s2", pod(f"p{number}", f"10.0.0.{number}")))
        await sink.until(has("a", "b", "p29"))

    assert len(sink.lists) == 2


async def test_a_pod_that_moves_between_slices_never_goes(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(settle_s=0.1), sink):
        await sink.until(lambda _: server.watchers)
        server.put(slice_object("s1", A))  # the controller's updates come in any order
        server.put(slice_object("s2", B))
        await sink.until(lambda told: len(told.lists) >= 2)

    assert [[e.name for e in told] for told in sink.lists] == [["default/a", "default/b"]] * 2


async def test_a_slice_without_the_port_is_logged_once(
    server: ApiServer, build: BuildSource, sink: RecordingSink, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    server.put(slice_object("s2", C, ports=[]))
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        server.put(slice_object("s1", A))
        await sink.until(has("a"))

    assert [record.getMessage() for record in caplog.records] == [
        "EndpointSlice s2 has no TCP port 'http', only none"
    ]


@pytest.mark.slow
async def test_idling_costs_less_than_one_percent_of_a_core(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    server.put(slice_object("s1", *(pod(f"p{number}", f"10.0.1.{number}") for number in range(100))))
    async with running(build(), sink):
        await sink.until(lambda _: server.watchers)
        start_s = thread_time()
        for _ in range(2):
            server.bookmark()  # sixty times as often as a real API server
            await asyncio.sleep(1)

        assert (thread_time() - start_s) / 2 < 0.01
        assert sink.confirmed_total == 2
