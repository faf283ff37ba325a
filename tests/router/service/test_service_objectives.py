"""Pools of an InferencePool: their priorities, from their settings and its objectives; and when it goes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from extproc.errors import NoEndpoint, Overloaded, Sheddable
from extproc.router.routing.picker import Query
from extproc.router.routing.pool import Pool
from extproc.router.service.pools import Pools
from extproc.router.settings.reading import parse_settings
from extproc.router.telemetry import Metrics
from tests.router.cluster.api_server import POOLS, ApiServer, serving_api, write_access
from tests.router.cluster.pool_objects import objective, pool_object, running_pod
from tests.router.service.running import build_pools, synced
from tests.waiting import until

RESTARTS = "extproc_objectives_watch_restarts_total"
LLM_D_OBJECTIVES = "llm-d.ai/v1alpha2/inferenceobjectives"
OBJECTIVES = "inference.networking.x-k8s.io/v1alpha2/inferenceobjectives"


def objective_query(name: str) -> Query:
    return Query("GET", "/", {"x-gateway-inference-objective": name})


@dataclass
class ObjectivesCluster:
    """An API server with an InferencePool of one pod, and the service's pools that follow it."""

    server: ApiServer
    kubeconfig: Path
    pools: Pools
    metrics: Metrics

    @property
    def pool(self) -> Pool:
        return self.pools["a"].pool

    def configure(self, fields: str) -> None:
        source = (
            f"inference_pool: {{namespace: default, name: vllm, kubeconfig: {self.kubeconfig}}}"
        )
        text = f"pools: [{{name: a, endpoints: {{{source}}}{fields}}}]"
        self.pools.apply(parse_settings(text, {}).pools)

    async def until(self, **priorities: int) -> None:
        await until(lambda: self.pool.admission.priorities == priorities)


@pytest.fixture
async def objectives_cluster(tmp_path: Path) -> AsyncIterator[ObjectivesCluster]:
    metrics = Metrics()
    pools = build_pools(tmp_path, metrics=metrics)
    async with serving_api(ApiServer()) as server:
        server.put(pool_object())
        server.put(running_pod("p", "10.0.0.1"))
        server.put(objective("batch", -10))
        server.put(objective("theirs", -10, pool="qwen"))
        yield ObjectivesCluster(server, write_access(tmp_path, server.url), pools, metrics)
        await pools.stop()


async def test_objects_and_settings_give_a_pool_its_priorities(
    objectives_cluster: ObjectivesCluster,
) -> None:
    """1. The object's. 2. The file adds one, and has the last word. 3. The object goes, the file's stay."""
    objectives_cluster.configure(", max_in_flight: 1")
    await objectives_cluster.until(batch=-10)
    objectives_cluster.server.put(objective("premium", 5))
    await objectives_cluster.until(batch=-10, premium=5)
    objectives_cluster.configure(", max_in_flight: 1, objectives: {premium: 7, nightly: -1}")
    await objectives_cluster.until(batch=-10, premium=7, nightly=-1)
    objectives_cluster.server.delete("batch", OBJECTIVES)

    await objectives_cluster.until(premium=7, nightly=-1)


async def test_a_request_of_a_negative_objective_is_refused_by_a_full_pool(
    objectives_cluster: ObjectivesCluster,
) -> None:
    objectives_cluster.configure(", max_in_flight: 1")
    await objectives_cluster.until(batch=-10)
    await synced(objectives_cluster.pools)
    first = objectives_cluster.pools.picker.pick(objective_query("batch")).pick

    with pytest.raises(Sheddable):
        objectives_cluster.pools.picker.pick(objective_query("batch"))
    second = objectives_cluster.pools.picker.pick(objective_query("theirs")).pick
    with pytest.raises(Overloaded):
        objectives_cluster.pools.picker.pick(objective_query("theirs"))

    for pick in (first, second):
        pick.release()
    assert len(objectives_cluster.pool.admission) == 0


async def test_objectives_are_followed_only_where_somebody_may_be_refused(
    objectives_cluster: ObjectivesCluster,
) -> None:
    """1. No limit: no watch. 2. A limit. 3. None again: they are forgotten. 4. The pool goes."""
    objectives_cluster.configure("")
    await synced(objectives_cluster.pools)
    assert objectives_cluster.server.of(OBJECTIVES).queries == []

    objectives_cluster.configure(", max_in_flight: 1")
    await objectives_cluster.until(batch=-10)
    assert objectives_cluster.pools["a"].objectives.age_s is not None
    objectives_cluster.configure("")

    assert [
        objectives_cluster.pool.admission.priorities,
        objectives_cluster.pools["a"].objectives.age_s,
    ] == [{}, None]

    objectives_cluster.configure(", max_in_flight: 1")
    await objectives_cluster.until(batch=-10)
    objectives_cluster.pools.apply(
        parse_settings("pools: [{name: b, endpoints: {static: []}}]", {}).pools
    )
    await until(lambda: not objectives_cluster.server.of(OBJECTIVES).watchers)


async def test_a_cluster_that_may_not_be_asked_for_objectives_serves_all_alike(
    objectives_cluster: ObjectivesCluster,
) -> None:
    for kind in (OBJECTIVES, LLM_D_OBJECTIVES):
        objectives_cluster.server.of(kind).refusal = 403
    objectives_cluster.configure(", max_in_flight: 1")
    await synced(objectives_cluster.pools)
    await until(lambda: objectives_cluster.server.of(OBJECTIVES).queries)

    assert objectives_cluster.pools.picker.pick(objective_query("batch")).pick.standing is None
    assert objectives_cluster.pools["a"].keeper.fault is None
    labels = {"pool": "a", "why": "forbidden"}
    await until(lambda: objectives_cluster.metrics.registry.get_sample_value(RESTARTS, labels))
    assert objectives_cluster.pools["a"].objectives.age_s is None


async def test_a_deleted_pool_refuses_and_returns(
    objectives_cluster: ObjectivesCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """1. It is deleted. 2. Bookmarks come: nothing is said twice. 3. It is made again, with other ports."""
    objectives_cluster.configure("")
    await synced(objectives_cluster.pools)
    objectives_cluster.server.delete("vllm", POOLS)
    await until(
        lambda: (
            objectives_cluster.pools["a"].keeper.fault
            and not objectives_cluster.pool.snapshot.ready
        )
    )
    with pytest.raises(NoEndpoint):
        objectives_cluster.pools.picker.pick(objective_query("batch"))
    for _ in range(3):
        objectives_cluster.server.bookmark(POOLS)
        await asyncio.sleep(0.05)
    lines = caplog.text.count("there is no InferencePool default/vllm")
    objectives_cluster.server.put(pool_object(ports=[9000]))
    await until(lambda: objectives_cluster.pool.snapshot.ready)

    assert lines == 1
    assert (
        objectives_cluster.pools.picker.pick(objective_query("batch")).pick.endpoint.address
        == "10.0.0.1:9000"
    )
    assert objectives_cluster.pools["a"].keeper.fault is None
