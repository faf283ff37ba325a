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
from tests.router.cluster.api_server import POOLS, ApiServer, serving, write_access
from tests.router.cluster.pool_objects import objective, pool_object, running_pod
from tests.router.service.running import build_pools, synced
from tests.waiting import until

RESTARTS = "extproc_objectives_watch_restarts_total"
LLM_D_OBJECTIVES = "llm-d.ai/v1alpha2/inferenceobjectives"
OBJECTIVES = "inference.networking.x-k8s.io/v1alpha2/inferenceobjectives"


def ask(name: str) -> Query:
    return Query("GET", "/", {"x-gateway-inference-objective": name})


@dataclass
class Cluster:
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
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    metrics = Metrics()
    pools = build_pools(tmp_path, metrics=metrics)
    async with serving(ApiServer()) as server:
        server.put(pool_object())
        server.put(running_pod("p", "10.0.0.1"))
        server.put(objective("batch", -10))
        server.put(objective("theirs", -10, pool="qwen"))
        yield Cluster(server, write_access(tmp_path, server.url), pools, metrics)
        await pools.stop()


async def test_objects_and_settings_give_a_pool_its_priorities(cluster: Cluster) -> None:
    """1. The object's. 2. The file adds one, and has the last word. 3. The object goes, the file's stay."""
    cluster.configure(", max_in_flight: 1")
    await cluster.until(batch=-10)
    cluster.server.put(objective("premium", 5))
    await cluster.until(batch=-10, premium=5)
    cluster.configure(", max_in_flight: 1, objectives: {premium: 7, nightly: -1}")
    await cluster.until(batch=-10, premium=7, nightly=-1)
    cluster.server.delete("batch", OBJECTIVES)

    await cluster.until(premium=7, nightly=-1)


async def test_a_request_of_a_negative_objective_is_refused_by_a_full_pool(
    cluster: Cluster,
) -> None:
    cluster.configure(", max_in_flight: 1")
    await cluster.until(batch=-10)
    await synced(cluster.pools)
    first = cluster.pools.picker.pick(ask("batch")).pick

    with pytest.raises(Sheddable):
        cluster.pools.picker.pick(ask("batch"))
    second = cluster.pools.picker.pick(ask("theirs")).pick
    with pytest.raises(Overloaded):
        cluster.pools.picker.pick(ask("theirs"))

    for pick in (first, second):
        pick.release()
    assert len(cluster.pool.admission) == 0


async def test_objectives_are_followed_only_where_somebody_may_be_refused(cluster: Cluster) -> None:
    """1. No limit: no watch. 2. A limit. 3. None again: they are forgotten. 4. The pool goes."""
    cluster.configure("")
    await synced(cluster.pools)
    assert cluster.server.of(OBJECTIVES).queries == []

    cluster.configure(", max_in_flight: 1")
    await cluster.until(batch=-10)
    assert cluster.pools["a"].objectives.age_s is not None
    cluster.configure("")

    assert [cluster.pool.admission.priorities, cluster.pools["a"].objectives.age_s] == [{}, None]

    cluster.configure(", max_in_flight: 1")
    await cluster.until(batch=-10)
    cluster.pools.apply(parse_settings("pools: [{name: b, endpoints: {static: []}}]", {}).pools)
    await until(lambda: not cluster.server.of(OBJECTIVES).watchers)


async def test_a_cluster_that_may_not_be_asked_for_objectives_serves_all_alike(
    cluster: Cluster,
) -> None:
    for kind in (OBJECTIVES, LLM_D_OBJECTIVES):
        cluster.server.of(kind).refusal = 403
    cluster.configure(", max_in_flight: 1")
    await synced(cluster.pools)
    await until(lambda: cluster.server.of(OBJECTIVES).queries)

    assert cluster.pools.picker.pick(ask("batch")).pick.standing is None
    assert cluster.pools["a"].keeper.fault is None
    labels = {"pool": "a", "why": "forbidden"}
    await until(lambda: cluster.metrics.registry.get_sample_value(RESTARTS, labels))
    assert cluster.pools["a"].objectives.age_s is None


async def test_a_deleted_pool_refuses_and_returns(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """1. It is deleted. 2. Bookmarks come: nothing is said twice. 3. It is made again, with other ports."""
    cluster.configure("")
    await synced(cluster.pools)
    cluster.server.delete("vllm", POOLS)
    await until(lambda: cluster.pools["a"].keeper.fault and not cluster.pool.snapshot.ready)
    with pytest.raises(NoEndpoint):
        cluster.pools.picker.pick(ask("batch"))
    for _ in range(3):
        cluster.server.bookmark(POOLS)
        await asyncio.sleep(0.05)
    lines = caplog.text.count("there is no InferencePool default/vllm")
    cluster.server.put(pool_object(ports=[9000]))
    await until(lambda: cluster.pool.snapshot.ready)

    assert lines == 1
    assert cluster.pools.picker.pick(ask("batch")).pick.endpoint.address == "10.0.0.1:9000"
    assert cluster.pools["a"].keeper.fault is None
