"""An InferencePool and its pods followed together, against a scripted API server."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from random import Random

import pytest

from extproc.router.cluster.inference_pool_source import InferencePoolSource, PoolName
from extproc.router.cluster.kube_api import Patience
from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.cluster.listwatch import KubeAccess
from tests.router.cluster.api_server import (
    PODS,
    POOLS,
    ApiServer,
    line,
    refuses,
    serving,
    status_object,
    streams,
    write_kubeconfig,
)
from tests.router.cluster.harness import RecordingSink, running
from tests.router.cluster.pool_objects import LABELS, pool_object, running_pod

IMPATIENT = Patience(answer_s=0.5, silence_s=0.5)
BuildSource = Callable[..., InferencePoolSource]
OTHERS = {"app": "others"}
KINDS = [POOLS, PODS]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with serving(ApiServer()) as server:
        server.put(pool_object())
        server.put(running_pod("a", "10.0.0.1"))
        server.put(running_pod("b", "10.0.0.2"))
        server.put(running_pod("x", "10.0.9.1", labels=OTHERS))
        yield server


@pytest.fixture
def delays() -> list[float]:
    return []


@pytest.fixture
def build(server: ApiServer, tmp_path: Path, delays: list[float]) -> BuildSource:
    (tmp_path / "token").write_text("token-1")

    async def nap(delay_s: float) -> None:
        delays.append(delay_s)
        await asyncio.sleep(0.001)

    def build(*, settle_s: float = 0.01, patience: Patience = Patience()) -> InferencePoolSource:  # noqa: B008 - frozen
        path = tmp_path / "kubeconfig"
        write_kubeconfig(path, server.url, tmp_path / "token")
        access = KubeAccess(KubeClients(str(path)).open, Random(7), patience=patience, sleep=nap)
        return InferencePoolSource(access, PoolName("default", "vllm"), settle_s=settle_s)

    return build


def has(*names: str) -> Callable[[RecordingSink], bool]:
    return lambda sink: sink.names == [f"default/{name}" for name in names]


def watched(server: ApiServer, *kinds: str) -> Callable[[RecordingSink], bool]:
    return lambda _: all(server.of(kind).watchers for kind in kinds or KINDS)


async def test_the_pool_is_asked_for_by_name_and_its_pods_by_their_labels(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(has("a", "b"))
        await sink.until(watched(server))

    [pool], [pods] = server.of(POOLS).lists, server.of(PODS).lists
    assert pool == {"fieldSelector": "metadata.name=vllm", "limit": "100"}
    assert pods == {"labelSelector": "app=vllm,model=llama", "limit": "100"}
    for kind, version, selector in ((POOLS, "104", pool), (PODS, "104", pods)):
        [watch] = server.of(kind).watches
        assert (watch["resourceVersion"], watch["allowWatchBookmarks"]) == (version, "true")
        assert selector.items() - watch.items() == {("limit", "100")}
    assert len(sink.lists) == 1
    assert sink.restarts == []


async def test_pods_are_followed_as_they_come_become_ready_terminate_and_go(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(watched(server))
        server.put(running_pod("c", phase="Pending", ready=None))
        server.put(running_pod("c", "10.0.0.3", ready="False"))
        server.put(running_pod("c", "10.0.0.3"))
        await sink.until(has("a", "b", "c"))
        server.put(running_pod("a", "10.0.0.1", deleted=True))
        await sink.until(lambda told: [e.is_ready for e in told.lists[-1]] == [False, True, True])
        server.delete("a", PODS)
        await sink.until(has("b", "c"))
        server.put(running_pod("b", "10.0.0.2", labels=OTHERS))  # taken out of the pool by its labels
        await sink.until(has("c"))

    assert len(server.of(PODS).lists) == 1


async def test_another_pools_pods_and_another_pool_change_nothing(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(watched(server))
        server.put(running_pod("y", "10.0.9.2", labels=OTHERS))
        server.put(pool_object("another", labels=OTHERS))
        server.put(running_pod("c", "10.0.0.3"))
        await sink.until(has("a", "b", "c"))

    assert {name for told in sink.lists for name in (e.name for e in told)} == {
        "default/a",
        "default/b",
        "default/c",
    }


async def test_a_list_of_many_pods_comes_in_pages_of_one_version(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    for number in range(230):
        server.put(running_pod(f"p{number}", f"10.1.{number}.1"))
    async with running(build(), sink):
        await sink.until(lambda told: len(told.names) == 232)
        await sink.until(watched(server))

    assert ["continue" in query for query in server.of(PODS).lists] == [False, True, True]
    assert len(sink.lists) == 1
    assert server.of(PODS).watches[0]["resourceVersion"] == str(server.version)


async def test_a_page_that_came_too_late_begins_a_new_list(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    for number in range(230):
        server.put(running_pod(f"p{number}", f"10.1.{number}.1"))
    listed = server._list

    async def too_late(request: object) -> object:
        server.compact()
        return await listed(request)  # type: ignore[arg-type]  # the scripted form of an answer

    server.of(PODS).answer_next("list", listed, too_late)  # type: ignore[arg-type]
    async with running(build(), sink):
        await sink.until(lambda told: len(told.names) == 232)

    assert sink.restarts == ["expired"]
    assert delays == [0]


async def test_other_ports_are_told_without_a_new_list_of_pods(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(watched(server))
        server.put(pool_object(ports=[8000, 8001]))
        await sink.until(has("a:8000", "a:8001", "b:8000", "b:8001"))
        server.put(pool_object(ports=[9000]))
        await sink.until(lambda told: told.addresses == ["10.0.0.1:9000", "10.0.0.2:9000"])

    assert len(server.of(PODS).lists) == 1


async def test_another_selector_lists_its_pods_and_keeps_what_is_known_meanwhile(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(watched(server))
        server.of(PODS).answer_next("list", refuses(500), refuses(500))
        server.put(pool_object(labels=OTHERS, ports=[9000]))
        await sink.until(lambda told: told.restarts == ["server_error", "server_error"])
        before = sink.addresses
        await sink.until(has("x"))
        await sink.until(lambda _: len(server.of(PODS).watchers) == 1)
        server.put(running_pod("a", "10.0.0.7"))  # of the selector before
        server.put(running_pod("y", "10.0.9.2", labels=OTHERS))
        await sink.until(has("x", "y"))

    assert before == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert [query["labelSelector"] for query in server.of(PODS).lists] == [
        "app=vllm,model=llama",
        *["app=others"] * 3,
    ]
    assert all(told for told in sink.lists)


async def test_a_deleted_pool_has_no_endpoints_and_comes_back_when_it_is_made_again(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(watched(server))
        server.delete("vllm", POOLS)
        await sink.until(lambda told: told.lacking)
        assert sink.lists[-1] == []
        await sink.until(lambda _: not server.of(PODS).watchers)
        server.put(running_pod("c", "10.0.0.3"))
        server.put(pool_object())
        await sink.until(has("a", "b", "c"))

    assert set(sink.lacking) == {("no_pool", "there is no InferencePool default/vllm")}
    assert [len(told) for told in sink.lists] == [2, 0, 3]
    assert sink.restarts == []


async def test_a_pool_that_was_never_there_is_lacking_and_not_empty(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    server.delete("vllm", POOLS)
    async with running(build(), sink):
        await sink.until(lambda told: told.lacking)
        await sink.until(watched(server, POOLS))
        said = len(sink.lacking)
        server.bookmark(POOLS)
        await sink.until(lambda told: len(told.lacking) > said)
        assert (sink.lists, sink.confirmed_total) == ([], 0)
        server.put(pool_object())
        await sink.until(has("a", "b"))


async def test_a_pool_without_pods_is_empty_and_not_lacking(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    server.put(pool_object(labels={"app": "nobody"}))
    async with running(build(), sink):
        await sink.until(lambda told: told.lists == [[]])
        server.put(running_pod("n", "10.0.0.9", labels={"app": "nobody"}))
        await sink.until(has("n"))

    assert sink.lacking == []


@pytest.mark.parametrize(
    ("pool", "why"), [(pool_object(labels={}), "no_selector"), (pool_object(ports=[]), "no_port")]
)
async def test_a_pool_that_selects_nothing_is_lacking(
    server: ApiServer, build: BuildSource, sink: RecordingSink, pool: dict[str, object], why: str
) -> None:
    async with running(build(), sink):
        await sink.until(watched(server))
        server.put(pool)
        await sink.until(lambda told: told.lacking)
        assert sink.lists[-1] == []
        server.put(pool_object())
        await sink.until(has("a", "b"))

    assert {told_why for told_why, _ in sink.lacking} == {why}


async def test_a_server_that_knows_no_pools_is_said_once_more_at_each_try(
    server: ApiServer, build: BuildSource, sink: RecordingSink, delays: list[float]
) -> None:
    server.of(POOLS).refusal = 404
    async with running(build(), sink):
        await sink.until(lambda told: len(told.lacking) >= 4)
        assert (sink.lists, sink.restarts) == ([], [])
        assert set(sink.lacking) == {
            ("no_crd", "the API server knows no InferencePools: are their CRDs installed?")
        }
        assert all(delays[:4])
        server.of(POOLS).refusal = None
        await sink.until(has("a", "b"))


GONE = line("ERROR", status_object(410, "too old resource version"))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_watch_that_fails_keeps_the_endpoints_and_starts_again(
    server: ApiServer, build: BuildSource, sink: RecordingSink, kind: str
) -> None:
    """What may fail of a watch, and how it starts again, is in `test_cluster_watch_faults`."""
    server.of(kind).answer_next("watch", refuses(410))
    async with running(build(), sink):
        await sink.until(lambda told: told.restarts)
        await sink.until(watched(server, kind))
        server.put(running_pod("c", "10.0.0.3"))
        server.put(pool_object(ports=[9000]))
        await sink.until(lambda told: told.addresses == [f"10.0.0.{n}:9000" for n in (1, 2, 3)])

    assert sink.restarts[0] == "expired"
    assert all(len(told) >= 2 for told in sink.lists)
    assert sink.lacking == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_list_that_fails_is_tried_again_and_tells_nothing(
    server: ApiServer, build: BuildSource, sink: RecordingSink, kind: str
) -> None:
    fault = streams(b'{"metadata": {"resourceVersion": "1"}, "items": [7]}')
    server.of(kind).answer_next("list", fault, fault)
    async with running(build(), sink):
        await sink.until(lambda told: told.restarts)
        assert sink.lists == []
        await sink.until(has("a", "b"))

    assert set(sink.restarts) == {"garbled"}
    assert sink.lacking == []


async def test_pods_bookmarks_confirm_the_list_and_the_pools_do_not(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(), sink):
        await sink.until(watched(server))
        server.bookmark(POOLS)
        server.version = 500
        server.bookmark(PODS)
        await sink.until(lambda told: told.confirmed_total >= 1)
        by_bookmarks = sink.confirmed_total
        server.end_watches(PODS)
        await sink.until(lambda told: told.confirmed_total >= 2)  # the watch is taken again

    assert server.of(PODS).watches[1]["resourceVersion"] == "500"
    assert by_bookmarks == 1


async def test_a_list_is_not_confirmed_while_the_pool_is_not_heard_of(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    """Its pods may be others by now; a list that grows old says so."""
    async with running(build(), sink):
        await sink.until(watched(server))
        server.of(POOLS).refusal = 403
        server.end_watches(POOLS)
        await sink.until(lambda told: told.restarts.count("forbidden") >= 2)
        server.bookmark(PODS)
        server.put(running_pod("c", "10.0.0.3"))
        await sink.until(has("a", "b", "c"))
        assert sink.confirmed_total == 0
        server.of(POOLS).refusal = None
        await sink.until(watched(server))
        server.bookmark(PODS)
        await sink.until(lambda told: told.confirmed_total >= 1)


async def test_a_pod_with_an_address_that_is_none_is_said_once(
    server: ApiServer, build: BuildSource, sink: RecordingSink, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    server.put(running_pod("c", "10.0.0"))
    async with running(build(), sink):
        await sink.until(watched(server))
        server.put(running_pod("d", "10.0.0.4"))
        await sink.until(has("a", "b", "d"))

    assert [record.getMessage() for record in caplog.records] == [
        "Pod default/c is left out: '10.0.0' is not an IP address"
    ]


async def test_it_may_be_run_again_and_says_its_pool_in_logs(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    source = build()
    for _ in range(2):
        async with running(source, sink):
            await sink.until(has("a", "b"))
            await sink.until(watched(server))
        await sink.until(lambda _: not server.of(PODS).watchers)
        sink.lists.clear()

    assert LABELS.items() <= server.of(PODS).objects["a"]["metadata"]["labels"].items()


async def test_pods_that_all_turn_not_ready_at_once_are_picked_all_the_same(
    server: ApiServer, build: BuildSource, sink: RecordingSink
) -> None:
    async with running(build(settle_s=0.1), sink):
        await sink.until(watched(server))
        for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
            server.put(running_pod(name, address, ready="False"))
        await sink.until(lambda told: told.lacking)

    assert [why for why, _ in sink.lacking] == ["not_ready"]
    assert len(sink.lists) == 1
