"""An InferencePool and its pods followed together, against a scripted API server."""

import logging
from collections.abc import AsyncIterator, Callable

import pytest

from extproc.router.cluster.inference_pool_source import InferencePoolSource
from extproc.router.cluster.listwatch import KubeAccess
from tests.router.cluster.api_server import (
    PODS,
    POOLS,
    ApiServer,
    refuses,
    serving_api,
    stream_chunks,
)
from tests.router.cluster.harness import BuildSource, Kube, has, running_source
from tests.router.cluster.pool_objects import pool_object, running_pod
from tests.waiting import until

OTHERS = {"app": "others"}
KINDS = [POOLS, PODS]


@pytest.fixture
async def pool_server() -> AsyncIterator[ApiServer]:
    async with serving_api(ApiServer()) as server:
        server.put(pool_object())
        server.put(running_pod("a", "10.0.0.1"))
        server.put(running_pod("b", "10.0.0.2"))
        server.put(running_pod("x", "10.0.9.1", labels=OTHERS))
        yield server


@pytest.fixture
def build_pool_source(access: Callable[..., KubeAccess]) -> BuildSource:
    def build(settle_s: float = 0.01) -> InferencePoolSource:
        return InferencePoolSource(access(), "default", "vllm", settle_s=settle_s)

    return build


async def test_the_pool_is_asked_for_by_name_and_its_pods_by_their_labels(kube: Kube) -> None:
    async with kube.running():
        await kube.until(has("a", "b"))
        await kube.until_watched()

    [pool], [pods] = kube.server.of(POOLS).lists, kube.server.of(PODS).lists
    assert pool == {"fieldSelector": "metadata.name=vllm", "limit": "100"}
    assert pods == {"labelSelector": "app=vllm,model=llama", "limit": "100"}
    for kind, version, selector in ((POOLS, "104", pool), (PODS, "104", pods)):
        [watch] = kube.server.of(kind).watches
        assert (watch["resourceVersion"], watch["allowWatchBookmarks"]) == (version, "true")
        assert selector.items() - watch.items() == {("limit", "100")}
    assert len(kube.sink.lists) == 1
    assert kube.sink.restarts == []


async def test_pods_are_followed_as_they_come_become_ready_terminate_and_go(kube: Kube) -> None:
    """Pods of no pool, or of another, change nothing; other ports need no new list."""
    async with kube.watching():
        kube.server.put(running_pod("c", phase="Pending", ready=None))
        kube.server.put(running_pod("c", "10.0.0.3", ready="False"))
        kube.server.put(running_pod("c", "10.0.0.3"))
        await kube.until(has("a", "b", "c"))
        kube.server.put(running_pod("a", "10.0.0.1", deleted=True))
        await kube.until(lambda sink: [e.is_ready for e in sink.lists[-1]] == [False, True, True])
        kube.server.delete("a", PODS)
        await kube.until(has("b", "c"))
        kube.server.put(
            running_pod("b", "10.0.0.2", labels=OTHERS)
        )  # taken out of the pool by its labels
        await kube.until(has("c"))
        kube.server.put(running_pod("y", "10.0.9.2", labels=OTHERS))
        kube.server.put(pool_object("another", labels=OTHERS))
        kube.server.put(running_pod("d", "10.0.0.4"))
        await kube.until(has("c", "d"))
        kube.server.put(pool_object(ports=[8000, 8001]))
        await kube.until(has("c:8000", "c:8001", "d:8000", "d:8001"))
        kube.server.put(pool_object(ports=[9000]))
        await kube.until(lambda sink: sink.addresses == ["10.0.0.3:9000", "10.0.0.4:9000"])

    assert not {"default/x", "default/y"} & {
        each.name for listed in kube.sink.lists for each in listed
    }
    assert len(kube.server.of(PODS).lists) == 1


async def test_many_pods_come_in_pages_of_one_version_and_one_that_is_late_begins_anew(
    kube: Kube,
) -> None:
    for number in range(230):
        kube.server.put(running_pod(f"p{number}", f"10.1.{number}.1"))
    listed = kube.server.list_objects

    async def too_late(request: object) -> object:
        await until(
            lambda: kube.server.of(POOLS).watchers
        )  # else the pool's watch would be late, too
        kube.server.compact()
        return await listed(request)  # type: ignore[arg-type]  # the scripted form of an answer

    kube.server.of(PODS).answer_next("list", listed, too_late)  # type: ignore[arg-type]
    async with kube.running():
        await kube.until(lambda sink: len(sink.names) == 232)
        await kube.until_watched()

    pods = kube.server.of(PODS)
    assert ["continue" in query for query in pods.lists] == [False, True, False, True, True]
    assert pods.watches[0]["resourceVersion"] == str(kube.server.version)
    assert (len(kube.sink.lists), kube.sink.restarts, kube.delays) == (1, ["expired"], [0])


async def test_another_selector_lists_its_pods_and_keeps_what_is_known_meanwhile(
    kube: Kube,
) -> None:
    async with kube.watching():
        kube.server.of(PODS).answer_next("list", refuses(500), refuses(500))
        kube.server.put(pool_object(labels=OTHERS, ports=[9000]))
        await kube.until(lambda sink: sink.restarts == ["server_error", "server_error"])
        before = kube.sink.addresses
        await kube.until(has("x"))
        await kube.until(lambda _: len(kube.server.of(PODS).watchers) == 1)
        kube.server.put(running_pod("a", "10.0.0.7"))  # of the selector before
        kube.server.put(running_pod("y", "10.0.9.2", labels=OTHERS))
        await kube.until(has("x", "y"))

    assert before == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert [query["labelSelector"] for query in kube.server.of(PODS).lists] == [
        "app=vllm,model=llama",
        *["app=others"] * 3,
    ]
    assert all(listed for listed in kube.sink.lists)


async def test_a_deleted_pool_has_no_endpoints_and_comes_back_when_it_is_made_again(
    kube: Kube,
) -> None:
    async with kube.watching():
        kube.server.delete("vllm", POOLS)
        await kube.until(lambda sink: sink.lacking)
        assert kube.sink.lists[-1] == []
        await kube.until(lambda _: not kube.server.of(PODS).watchers)
        kube.server.put(running_pod("c", "10.0.0.3"))
        kube.server.put(pool_object())
        await kube.until(has("a", "b", "c"))

    assert set(kube.sink.lacking) == {("no_pool", "there is no InferencePool default/vllm")}
    assert [len(listed) for listed in kube.sink.lists] == [2, 0, 3]
    assert kube.sink.restarts == []


async def test_a_pool_that_was_never_there_is_lacking_and_not_empty(kube: Kube) -> None:
    kube.server.delete("vllm", POOLS)
    async with kube.running():
        await kube.until(lambda sink: sink.lacking)
        await kube.until_watched(POOLS)
        count = len(kube.sink.lacking)
        kube.server.bookmark(POOLS)
        await kube.until(lambda sink: len(sink.lacking) > count)
        assert (kube.sink.lists, kube.sink.confirmed_total) == ([], 0)
        count = len(kube.sink.lacking)
        kube.server.put(pool_object(labels={"app": "nobody"}))
        await kube.until(lambda sink: sink.lists == [[]])  # without pods: empty, and not lacking
        kube.server.put(running_pod("n", "10.0.0.9", labels={"app": "nobody"}))
        await kube.until(has("n"))

    assert len(kube.sink.lacking) == count


@pytest.mark.parametrize(
    ("pool", "why"), [(pool_object(labels={}), "no_selector"), (pool_object(ports=[]), "no_port")]
)
async def test_a_pool_that_selects_nothing_is_lacking(
    kube: Kube, pool: dict[str, object], why: str
) -> None:
    async with kube.watching():
        kube.server.put(pool)
        await kube.until(lambda sink: sink.lacking)
        assert kube.sink.lists[-1] == []
        kube.server.put(pool_object())
        await kube.until(has("a", "b"))

    assert {lacking_why for lacking_why, _ in kube.sink.lacking} == {why}


async def test_a_server_that_knows_no_pools_is_said_once_more_at_each_try(kube: Kube) -> None:
    kube.server.of(POOLS).refusal = 404
    async with kube.running():
        await kube.until(lambda sink: len(sink.lacking) >= 4)
        assert (kube.sink.lists, kube.sink.restarts) == ([], [])
        reason = "the API server has no InferencePools: are their CRDs installed?"
        assert set(kube.sink.lacking) == {("no_crd", reason)}
        assert all(kube.delays[:4])
        kube.server.of(POOLS).refusal = None
        await kube.until(has("a", "b"))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_list_or_watch_that_fails_is_tried_again_and_takes_nothing(
    kube: Kube, kind: str
) -> None:
    """What may fail of them, and how they start again, is in `test_cluster_watch_faults`."""
    fault = stream_chunks(b'{"metadata": {"resourceVersion": "1"}, "items": [7]}')
    kube.server.of(kind).answer_next("list", fault, fault)
    kube.server.of(kind).answer_next("watch", refuses(410))
    async with kube.running():
        await kube.until(lambda sink: sink.restarts)
        assert kube.sink.lists == []
        await kube.until(lambda sink: "expired" in sink.restarts)
        await kube.until_watched(kind)
        kube.server.put(running_pod("c", "10.0.0.3"))
        kube.server.put(pool_object(ports=[9000]))
        await kube.until(lambda sink: sink.addresses == [f"10.0.0.{n}:9000" for n in (1, 2, 3)])

    assert set(kube.sink.restarts) == {"garbled", "expired"}
    assert all(len(listed) >= 2 for listed in kube.sink.lists)
    assert kube.sink.lacking == []


async def test_pods_bookmarks_confirm_the_list_and_the_pools_do_not(kube: Kube) -> None:
    async with kube.watching():
        kube.server.bookmark(POOLS)
        kube.server.version = 500
        kube.server.bookmark(PODS)
        await kube.until(lambda sink: sink.confirmed_total >= 1)
        by_bookmarks = kube.sink.confirmed_total
        kube.server.end_watches(PODS)
        await kube.until(lambda sink: sink.confirmed_total >= 2)  # the watch is taken again

    assert kube.server.of(PODS).watches[1]["resourceVersion"] == "500"
    assert by_bookmarks == 1


async def test_a_list_is_not_confirmed_while_the_pool_is_not_heard_of(kube: Kube) -> None:
    """Its pods may be others by now; a list that grows old says so."""
    async with kube.watching():
        kube.server.of(POOLS).refusal = 403
        kube.server.end_watches(POOLS)
        await kube.until(lambda sink: sink.restarts.count("forbidden") >= 2)
        kube.server.bookmark(PODS)
        kube.server.put(running_pod("c", "10.0.0.3"))
        await kube.until(has("a", "b", "c"))
        assert kube.sink.confirmed_total == 0
        kube.server.of(POOLS).refusal = None
        await kube.until_watched()
        kube.server.bookmark(PODS)
        await kube.until(lambda sink: sink.confirmed_total >= 1)


async def test_a_pod_with_a_wrong_address_is_said_once(
    kube: Kube, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    kube.server.put(running_pod("c", "10.0.0"))
    async with kube.watching():
        kube.server.put(running_pod("d", "10.0.0.4"))
        await kube.until(has("a", "b", "d"))

    assert caplog.messages == ["Pod default/c is left out: '10.0.0' is not an IP address"]


async def test_it_may_be_run_again(kube: Kube) -> None:
    source = kube.build()
    for _ in range(2):
        async with running_source(source, kube.sink):
            await kube.until(has("a", "b"))
            await kube.until_watched()
        await kube.until(lambda _: not kube.server.of(PODS).watchers)
        kube.sink.lists.clear()


async def test_pods_that_all_turn_not_ready_at_once_are_picked_all_the_same(kube: Kube) -> None:
    async with kube.watching(settle_s=0.1):
        for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
            kube.server.put(running_pod(name, address, ready="False"))
        await kube.until(lambda sink: sink.lacking)

    assert [why for why, _ in kube.sink.lacking] == ["not_ready"]
    assert len(kube.sink.lists) == 1
