"""The objectives of a pool, from a scripted API server over real sockets."""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import pytest

from extproc.router.cluster.listwatch import KubeAccess
from extproc.router.cluster.objectives import APIS, ObjectivesSource
from tests.router.cluster.api_server import ApiServer, event_line, serving_api, status_object
from tests.router.cluster.harness import running_source
from tests.router.cluster.pool_objects import objective
from tests.waiting import until

UPSTREAM, LLM_D = KINDS = [f"{api}/inferenceobjectives" for api in APIS]


@dataclass
class Sink:
    """The source's priorities, and its waits. The time is the test's."""

    server: ApiServer
    access: Callable[..., KubeAccess]
    delays: list[float]
    all_: list[Mapping[str, int]] = field(default_factory=list)
    restarts: list[str] = field(default_factory=list)
    now_s: float = 0.0

    def following(self) -> AbstractAsyncContextManager[object]:
        self.source = ObjectivesSource(
            self.access(self.server, clock=lambda: self.now_s), "default", "vllm"
        )
        return running_source(self.source, self)  # type: ignore[arg-type]  # the objectives' sink

    def replace(self, priorities: Mapping[str, int]) -> None:
        self.all_.append(priorities)

    def restarted(self, why: str) -> None:
        self.restarts.append(why)

    async def until_last(self, **priorities: int) -> None:
        await until(lambda: self.all_ and self.all_[-1] == priorities)


@pytest.fixture
async def objectives_server() -> AsyncIterator[ApiServer]:
    """Knows upstream's kind, and not llm-d's."""
    async with serving_api(ApiServer()) as server:
        server.of(LLM_D).refusal = 404
        yield server


@pytest.fixture
def objectives_sink(
    objectives_server: ApiServer, access: Callable[..., KubeAccess], delays: list[float]
) -> Sink:
    return Sink(objectives_server, access, delays)


async def test_the_priorities_of_a_pools_objectives_are_listed_and_no_others(
    objectives_sink: Sink,
) -> None:
    for each in (
        objective("batch", -10),
        objective("unset"),
        objective("grouped", 3, group="inference.networking.k8s.io", kind="InferencePool"),
        objective("older", 4, group="inference.networking.x-k8s.io"),
        objective("theirs", 5, pool="qwen"),
        objective("a-service", 5, kind="Service"),
        objective("foreign", 5, group="example.com"),
        objective("nobodys", 5, pool=""),
    ):
        objectives_sink.server.put(each)
    async with objectives_sink.following():
        await objectives_sink.until_last(batch=-10, unset=0, grouped=3, older=4)

    assert len(objectives_sink.all_) == 1


async def test_an_objective_that_is_added_changed_moved_or_deleted_is_followed(
    objectives_sink: Sink,
) -> None:
    async with objectives_sink.following():
        for object_, expected in [
            (objective("batch", -1), {"batch": -1}),
            (objective("batch", -2), {"batch": -2}),
            (objective("premium", 9), {"batch": -2, "premium": 9}),
            (objective("batch", -2, pool="qwen"), {"premium": 9}),
        ]:
            objectives_sink.server.put(object_)
            await objectives_sink.until_last(**expected)
        objectives_sink.server.delete("premium", UPSTREAM)
        await objectives_sink.until_last()
        objectives_sink.server.delete("batch", UPSTREAM)
        objectives_sink.server.put(objective("last", 1))
        await objectives_sink.until_last(last=1)

    assert len(objectives_sink.all_) == 6


async def test_a_cluster_without_the_kind_is_asked_again_seldom_and_quietly(
    objectives_sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    objectives_sink.server.of(UPSTREAM).refusal = 404
    async with objectives_sink.following():
        await until(
            lambda: len(objectives_sink.delays) >= 2 and objectives_sink.source.age_s is None
        )
        objectives_sink.server.of(UPSTREAM).refusal = None
        objectives_sink.server.put(objective("batch", -1))
        await objectives_sink.until_last(batch=-1)

        assert objectives_sink.source.age_s == 0.0

    assert {*objectives_sink.delays} == {300.0}
    assert objectives_sink.restarts == []
    assert caplog.records == []


async def test_a_missing_role_is_logged_once_and_what_is_known_stays(
    objectives_sink: Sink, caplog: pytest.LogCaptureFixture
) -> None:
    objectives_sink.server.put(objective("batch", -1))
    upstream = objectives_sink.server.of(UPSTREAM)
    async with objectives_sink.following():
        await objectives_sink.until_last(batch=-1)
        await until(lambda: upstream.watchers)
        upstream.refusal = 403
        upstream.send(event_line("ERROR", status_object(410, "too old")))
        await until(lambda: len(upstream.lists) >= 4)

    assert objectives_sink.all_ == [{"batch": -1}]
    assert objectives_sink.restarts[0] == "expired"
    assert set(objectives_sink.restarts[1:]) == {"forbidden"}
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "forbidden" in record.getMessage()


@pytest.mark.parametrize("priority", ["high", 1.5, [], True])
async def test_an_object_that_no_schema_allows_changes_nothing(
    objectives_sink: Sink, priority: object
) -> None:
    objectives_sink.server.put(objective("batch", -1))
    async with objectives_sink.following():
        await objectives_sink.until_last(batch=-1)
        objectives_sink.server.put(objective("batch", priority))
        await until(lambda: len(objectives_sink.server.of(UPSTREAM).lists) >= 2)

    assert objectives_sink.all_ == [{"batch": -1}]


async def test_half_a_line_comes_whole_in_the_next_watch(objectives_sink: Sink) -> None:
    whole, upstream = (
        event_line("ADDED", objective("batch", -1)),
        objectives_sink.server.of(UPSTREAM),
    )
    async with objectives_sink.following():
        await until(lambda: upstream.watchers)
        upstream.send(whole[:20])
        upstream.end_watches()
        await until(lambda: len(upstream.watches) >= 2 and upstream.watchers)
        upstream.send(whole)
        await objectives_sink.until_last(batch=-1)

    assert objectives_sink.restarts == ["connection"]


async def test_llm_ds_go_first_and_the_age_is_of_the_group_confirmed_longest_ago(
    objectives_sink: Sink,
) -> None:
    """1. Both are listed. 2. Time goes by. 3. A bookmark of one, an object of the other. 4. One goes."""
    objectives_sink.server.of(LLM_D).refusal = None
    for each in (objective("a", 2), objective("a", 1, api=APIS[1])):
        objectives_sink.server.put(each)
    async with objectives_sink.following():
        await until(lambda: all(objectives_sink.server.of(kind).watchers for kind in KINDS))
        await objectives_sink.until_last(a=1)  # llm-d's objects go first
        objectives_sink.now_s = 60.0
        assert objectives_sink.source.age_s == 60.0
        objectives_sink.server.bookmark(LLM_D)
        objectives_sink.server.put(objective("b", 2, api=APIS[1]))
        await objectives_sink.until_last(a=1, b=2)
        assert objectives_sink.source.age_s == 60.0
        objectives_sink.server.put(objective("c", 3))
        await objectives_sink.until_last(a=1, b=2, c=3)
        assert objectives_sink.source.age_s == 0.0
        objectives_sink.server.delete("a", LLM_D)
        await objectives_sink.until_last(a=2, b=2, c=3)
