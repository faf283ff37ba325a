"""An InferencePool and its pods followed together, against a scripted API server."""

import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

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
from tests.router.cluster.harness import Kube, RecordingSink, has, running_source
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
def pool_kube(
    pool_server: ApiServer,
    access: Callable[..., KubeAccess],
    sink: RecordingSink,
    delays: list[float],
    token: Path,
) -> Kube:
    def build(settle_s: float = 0.01) -> InferencePoolSource:
        return InferencePoolSource(access(pool_server), "default", "vllm", settle_s=settle_s)

    return Kube(pool_server, build, sink, delays, token)


async def test_the_pool_is_asked_for_by_name_and_its_pods_by_their_labels(pool_kube: Kube) -> None:
    async with pool_kube.running():
        await pool_kube.until(has("a", "b"))
        await pool_kube.until_watched()

    [pool], [pods] = pool_kube.server.of(POOLS).lists, pool_kube.server.of(PODS).lists
    assert pool == {"fieldSelector": "metadata.name=vllm", "limit": "100"}
    assert pods == {"labelSelector": "app=vllm,model=llama", "limit": "100"}
    for kind, version, selector in ((POOLS, "104", pool), (PODS, "104", pods)):
        [watch] = pool_kube.server.of(kind).watches
        assert (watch["resourceVersion"], watch["allowWatchBookmarks"]) == (version, "true")
        assert selector.items() - watch.items() == {("limit", "100")}
    assert len(pool_kube.sink.lists) == 1
    assert pool_kube.sink.restarts == []


async def test_pods_are_followed_as_they_come_become_ready_terminate_and_go(
    pool_kube: Kube,
) -> None:
    """Pods of no pool, or of another, change nothing; other ports need no new list."""
    async with pool_kube.watching():
        pool_kube.server.put(running_pod("c", phase="Pending", ready=None))
        pool_kube.server.put(running_pod("c", "10.0.0.3", ready="False"))
        pool_kube.server.put(running_pod("c", "10.0.0.3"))
        await pool_kube.until(has("a", "b", "c"))
        pool_kube.server.put(running_pod("a", "10.0.0.1", deleted=True))
        await pool_kube.until(
            lambda sink: [e.is_ready for e in sink.lists[-1]] == [False, True, True]
        )
        pool_kube.server.delete("a", PODS)
        await pool_kube.until(has("b", "c"))
        pool_kube.server.put(
            running_pod("b", "10.0.0.2", labels=OTHERS)
        )  # taken out of the pool by its labels
        await pool_kube.until(has("c"))
        pool_kube.server.put(running_pod("y", "10.0.9.2", labels=OTHERS))
        pool_kube.server.put(pool_object("another", labels=OTHERS))
        pool_kube.server.put(running_pod("d", "10.0.0.4"))
        await pool_kube.until(has("c", "d"))
        pool_kube.server.put(pool_object(ports=[8000, 8001]))
        await pool_kube.until(has("c:8000", "c:8001", "d:8000", "d:8001"))
        pool_kube.server.put(pool_object(ports=[9000]))
        await pool_kube.until(lambda sink: sink.addresses == ["10.0.0.3:9000", "10.0.0.4:9000"])

    assert not {"default/x", "default/y"} & {
        each.name for listed in pool_kube.sink.lists for each in listed
    }
    assert len(pool_kube.server.of(PODS).lists) == 1


async def test_many_pods_come_in_pages_of_one_version_and_one_that_is_late_begins_anew(
    pool_kube: Kube,
) -> None:
    for number in range(230):
        pool_kube.server.put(running_pod(f"p{number}", f"10.1.{number}.1"))
    listed = pool_kube.server.list_objects

    async def too_late(request: object) -> object:
        await until(
            lambda: pool_kube.server.of(POOLS).watchers
        )  # else the pool's watch would be late, too
        pool_kube.server.compact()
        return await listed(request)  # type: ignore[arg-type]  # the scripted form of an answer

    pool_kube.server.of(PODS).answer_next("list", listed, too_late)  # type: ignore[arg-type]
    async with pool_kube.running():
        await pool_kube.until(lambda sink: len(sink.names) == 232)
        await pool_kube.until_watched()

    pods = pool_kube.server.of(PODS)
    assert ["continue" in query for query in pods.lists] == [False, True, False, True, True]
    assert pods.watches[0]["resourceVersion"] == str(pool_kube.server.version)
    assert (len(pool_kube.sink.lists), pool_kube.sink.restarts, pool_kube.delays) == (
        1,
        ["expired"],
        [0],
    )


async def test_another_selector_lists_its_pods_and_keeps_what_is_known_meanwhile(
    pool_kube: Kube,
) -> None:
    async with pool_kube.watching():
        pool_kube.server.of(PODS).answer_next("list", refuses(500), refuses(500))
        pool_kube.server.put(pool_object(labels=OTHERS, ports=[9000]))
        await pool_kube.until(lambda sink: sink.restarts == ["server_error", "server_error"])
        before = pool_kube.sink.addresses
        await pool_kube.until(has("x"))
        await pool_kube.until(lambda _: len(pool_kube.server.of(PODS).watchers) == 1)
        pool_kube.server.put(running_pod("a", "10.0.0.7"))  # of the selector before
        pool_kube.server.put(running_pod("y", "10.0.9.2", labels=OTHERS))
        await pool_kube.until(has("x", "y"))

    assert before == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert [query["labelSelector"] for query in pool_kube.server.of(PODS).lists] == [
        "app=vllm,model=llama",
        *["app=others"] * 3,
    ]
    assert all(listed for listed in pool_kube.sink.lists)


async def test_a_deleted_pool_has_no_endpoints_and_comes_back_when_it_is_made_again(
    pool_kube: Kube,
) -> None:
    async with pool_kube.watching():
        pool_kube.server.delete("vllm", POOLS)
        await pool_kube.until(lambda sink: sink.lacking)
        assert pool_kube.sink.lists[-1] == []
        await pool_kube.until(lambda _: not pool_kube.server.of(PODS).watchers)
        pool_kube.server.put(running_pod("c", "10.0.0.3"))
        pool_kube.server.put(pool_object())
        await pool_kube.until(has("a", "b", "c"))

    assert set(pool_kube.sink.lacking) == {("no_pool", "there is no InferencePool default/vllm")}
    assert [len(listed) for listed in pool_kube.sink.lists] == [2, 0, 3]
    assert pool_kube.sink.restarts == []


async def test_a_pool_that_was_never_there_is_lacking_and_not_empty(pool_kube: Kube) -> None:
    pool_kube.server.delete("vllm", POOLS)
    async with pool_kube.running():
        await pool_kube.until(lambda sink: sink.lacking)
        await pool_kube.until_watched(POOLS)
        count = len(pool_kube.sink.lacking)
        pool_kube.server.bookmark(POOLS)
        await pool_kube.until(lambda sink: len(sink.lacking) > count)
        assert (pool_kube.sink.lists, pool_kube.sink.confirmed_total) == ([], 0)
        count = len(pool_kube.sink.lacking)
        pool_kube.server.put(pool_object(labels={"app": "nobody"}))
        await pool_kube.until(
            lambda sink: sink.lists == [[]]
        )  # without pods: empty, and not lacking
        pool_kube.server.put(running_pod("n", "10.0.0.9", labels={"app": "nobody"}))
        await pool_kube.until(has("n"))

    assert len(pool_kube.sink.lacking) == count


@pytest.mark.parametrize(
    ("pool", "why"), [(pool_object(labels={}), "no_selector"), (pool_object(ports=[]), "no_port")]
)
async def test_a_pool_that_selects_nothing_is_lacking(
    pool_kube: Kube, pool: dict[str, object], why: str
) -> None:
    async with pool_kube.watching():
        pool_kube.server.put(pool)
        await pool_kube.until(lambda sink: sink.lacking)
        assert pool_kube.sink.lists[-1] == []
        pool_kube.server.put(pool_object())
        await pool_kube.until(has("a", "b"))

    assert {lacking_why for lacking_why, _ in pool_kube.sink.lacking} == {why}


async def test_a_server_that_knows_no_pools_is_logged_once_more_at_each_try(
    pool_kube: Kube,
) -> None:
    pool_kube.server.of(POOLS).refusal = 404
    async with pool_kube.running():
        await pool_kube.until(lambda sink: len(sink.lacking) >= 4)
        assert (pool_kube.sink.lists, pool_kube.sink.restarts) == ([], [])
        reason = "the API server has no InferencePools: are their CRDs installed?"
        assert set(pool_kube.sink.lacking) == {("no_crd", reason)}
        assert all(pool_kube.delays[:4])
        pool_kube.server.of(POOLS).refusal = None
        await pool_kube.until(has("a", "b"))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_list_or_watch_that_fails_is_tried_again_and_takes_nothing(
    pool_kube: Kube, kind: str
) -> None:
    """What may fail of them, and how they start again, is in `test_cluster_watch_faults`."""
    fault = stream_chunks(b'{"metadata": {"resourceVersion": "1"}, "items": [7]}')
    pool_kube.server.of(kind).answer_next("list", fault, fault)
    pool_kube.server.of(kind).answer_next("watch", refuses(410))
    async with pool_kube.running():
        await pool_kube.until(lambda sink: sink.restarts)
        assert pool_kube.sink.lists == []
        await pool_kube.until(lambda sink: "expired" in sink.restarts)
        await pool_kube.until_watched(kind)
        pool_kube.server.put(running_pod("c", "10.0.0.3"))
        pool_kube.server.put(pool_object(ports=[9000]))
        await pool_kube.until(
            lambda sink: sink.addresses == [f"10.0.0.{n}:9000" for n in (1, 2, 3)]
        )

    assert set(pool_kube.sink.restarts) == {"garbled", "expired"}
    assert all(len(listed) >= 2 for listed in pool_kube.sink.lists)
    assert pool_kube.sink.lacking == []


async def test_pods_bookmarks_confirm_the_list_and_the_pools_do_not(pool_kube: Kube) -> None:
    async with pool_kube.watching():
        pool_kube.server.bookmark(POOLS)
        pool_kube.server.version = 500
        pool_kube.server.bookmark(PODS)
        await pool_kube.until(lambda sink: sink.confirmed_total >= 1)
        by_bookmarks = pool_kube.sink.confirmed_total
        pool_kube.server.end_watches(PODS)
        await pool_kube.until(lambda sink: sink.confirmed_total >= 2)  # the watch is taken again

    assert pool_kube.server.of(PODS).watches[1]["resourceVersion"] == "500"
    assert by_bookmarks == 1


async def test_a_list_is_not_confirmed_while_the_pool_is_not_watched(pool_kube: Kube) -> None:
    """Its pods may be others by now; a list that grows old says so."""
    async with pool_kube.watching():
        pool_kube.server.of(POOLS).refusal = 403
        pool_kube.server.end_watches(POOLS)
        await pool_kube.until(lambda sink: sink.restarts.count("forbidden") >= 2)
        pool_kube.server.bookmark(PODS)
        pool_kube.server.put(running_pod("c", "10.0.0.3"))
        await pool_kube.until(has("a", "b", "c"))
        assert pool_kube.sink.confirmed_total == 0
        pool_kube.server.of(POOLS).refusal = None
        await pool_kube.until_watched()
        pool_kube.server.bookmark(PODS)
        await pool_kube.until(lambda sink: sink.confirmed_total >= 1)


async def test_a_pod_with_a_wrong_address_is_logged_once(
    pool_kube: Kube, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    pool_kube.server.put(running_pod("c", "10.0.0"))
    async with pool_kube.watching():
        pool_kube.server.put(running_pod("d", "10.0.0.4"))
        await pool_kube.until(has("a", "b", "d"))

    assert caplog.messages == ["Pod default/c is left out: '10.0.0' is not an IP address"]


async def test_it_may_be_run_again(pool_kube: Kube) -> None:
    source = pool_kube.build()
    for _ in range(2):
        async with running_source(source, pool_kube.sink):
            await pool_kube.until(has("a", "b"))
            await pool_kube.until_watched()
        await pool_kube.until(lambda _: not pool_kube.server.of(PODS).watchers)
        pool_kube.sink.lists.clear()


async def test_pods_that_all_turn_not_ready_at_once_are_picked_all_the_same(
    pool_kube: Kube,
) -> None:
    async with pool_kube.watching(settle_s=0.1):
        for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
            pool_kube.server.put(running_pod(name, address, ready="False"))
        await pool_kube.until(lambda sink: sink.lacking)

    assert [why for why, _ in pool_kube.sink.lacking] == ["not_ready"]
    assert len(pool_kube.sink.lists) == 1


async def test_one_pool_has_pods_that_answer_and_pods_that_prefill(pool_kube: Kube) -> None:
    """By the label of llm-d; a pod without it answers, one with both roles is in both lists."""
    for number, role in enumerate(("prefill", "decode", "both", "prefill-decode", "encode")):
        labels = {"app": "vllm", "model": "llama", "llm-d.ai/role": role}
        pool_kube.server.put(running_pod(role, f"10.0.1.{number}", labels=labels))
    names = {}
    for prefills in (False, True):
        source = cast("InferencePoolSource", pool_kube.build())
        source = replace(source, prefills=prefills)
        pool_kube.sink.lists.clear()
        async with running_source(source, pool_kube.sink):
            await until(lambda: bool(pool_kube.sink.lists))
            names[prefills] = {one.name.partition("/")[2] for one in pool_kube.sink.lists[-1]}

    assert names[False] == {"a", "b", "decode", "both", "prefill-decode"}
    assert names[True] == {"prefill", "both", "prefill-decode"}


async def test_a_label_tells_pods_of_two_revisions_apart_and_a_change_of_it_counts(
    pool_kube: Kube,
) -> None:
    source = replace(cast("InferencePoolSource", pool_kube.build()), match_label="revision")

    def read() -> list[str]:
        return [one.revision for one in pool_kube.sink.lists[-1]] if pool_kube.sink.lists else []

    async def is_known_as(revision: str) -> None:
        labels = {"app": "vllm", "model": "llama", "revision": revision}
        pool_kube.server.put(running_pod("a", "10.0.0.1", labels=labels))
        await until(lambda: read() == [revision, ""])

    async with running_source(source, pool_kube.sink):
        await is_known_as("7")
        await is_known_as("8")
