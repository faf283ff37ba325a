"""One Benchmark's trouble is not another's: what somebody made by hand, and what the API server refuses."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from extproc.operator.calls import ApiRefusal, opening
from extproc.operator.commands import run_operator
from extproc.operator.state import Delete
from extproc.operator.watches import WatchHealth, follow
from extproc.operator.work_queue import QueueOptions, WorkQueue, act
from extproc.router.cluster.kubeclient import KubeClients
from extproc.router.logs import configure_logging
from tests.operator.cluster import BENCHMARKS, JOBS, ServedCluster, serving_cluster
from tests.operator.world import SPEC as RUN
from tests.router.cluster.api_server import write_kubeconfig
from tests.waiting import until

Object = dict[str, Any]
SPEC = {**RUN, "mode": "saturate"}
pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def cluster_without_nodes(tmp_path: Path) -> AsyncIterator[ServedCluster]:
    async with serving_cluster(tmp_path) as made:
        made.cluster.has_nodes = False
        yield made


@asynccontextmanager
async def operator_task(served: ServedCluster) -> AsyncIterator[asyncio.Task[None]]:
    """An operator that looks at everything again and again; an end of its own is a failure."""
    options = QueueOptions("image:1", look_s=0.1, namespaces=["default"])
    clients, stop = KubeClients(kubeconfig=str(served.kubeconfig)), asyncio.Event()
    task = asyncio.create_task(run_operator(clients, options, stop))
    try:
        yield task
        assert not task.done()
    finally:
        stop.set()
        await asyncio.wait([task])


def jobs_of(served: ServedCluster, name: str) -> list[Object]:
    return [
        job
        for job in served.cluster.of(JOBS).objects.values()
        if job["metadata"]["labels"]["extproc.dev/benchmark"] == name
    ]


def spoil_job(served: ServedCluster, **labels: str) -> None:
    """A Job that somebody made, as if it belonged to the Benchmark."""
    owner = {"kind": "Benchmark", "uid": served.benchmark("odd")["metadata"]["uid"]}
    metadata = {
        "name": "theirs",
        "labels": {"extproc.dev/benchmark": "odd", **labels},
        "annotations": {"extproc.dev/due": "soon"},
        "ownerReferences": [owner],
    }
    served.cluster.add({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {}})


def spoil_pod(served: ServedCluster) -> None:
    labels = {"extproc.dev/benchmark": "odd", "extproc.dev/part": "leader"}
    served.cluster.add(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "theirs", "labels": labels}}
    )


def spoil_status(served: ServedCluster, **status: object) -> None:
    served.cluster.store({**served.benchmark("odd"), "status": status})


@pytest.mark.parametrize(
    "spoil",
    [
        spoil_job,
        lambda served: spoil_job(served, **{"extproc.dev/run": "x", "extproc.dev/part": "leader"}),
        spoil_pod,
        lambda served: spoil_status(served, history=[{}]),
        lambda served: spoil_status(served, lastScheduledAt="soon"),
        lambda served: spoil_status(served, conditions=7),
    ],
    ids=["job", "job of a run", "pod", "history", "time", "conditions"],
)
async def test_benchmark_that_somebody_spoilt_does_not_end_the_operator(
    cluster_without_nodes: ServedCluster, spoil: Any
) -> None:
    """Whatever there is to be read, others are looked after, and the operator goes on."""
    cluster_without_nodes.cluster.apply("odd", {**SPEC, "schedule": "0 0 1 1 *"})
    spoil(cluster_without_nodes)
    async with operator_task(cluster_without_nodes):
        cluster_without_nodes.cluster.apply("other", SPEC)
        await cluster_without_nodes.until("other", "Starting")


async def test_job_without_our_labels_is_nobodys_run(cluster_without_nodes: ServedCluster) -> None:
    cluster_without_nodes.cluster.apply("odd", SPEC)
    spoil_job(cluster_without_nodes)
    spoil_pod(cluster_without_nodes)
    async with operator_task(cluster_without_nodes):
        status = await cluster_without_nodes.until("odd", "Starting")

    assert [job["metadata"]["name"] for job in jobs_of(cluster_without_nodes, "odd")] == [
        "theirs",
        status["run"],
    ]


@pytest.mark.parametrize(
    ("plural", "refusal"),
    [
        (
            "jobs",
            (
                422,
                'Job.batch "b" is invalid: spec.template.spec.nodeSelector: Invalid value: "no!"',
            ),
        ),
        ("jobs", (403, "exceeded quota: few-jobs")),
        (
            "configmaps",
            (403, "unable to create new content in namespace default: it is being terminated"),
        ),
    ],
)
async def test_what_the_api_server_refuses_is_logged_and_tried_again(
    cluster_without_nodes: ServedCluster, plural: str, refusal: tuple[int, str]
) -> None:
    """1. The status says what was refused, and why. 2. Said once. 3. When it is allowed, the run begins."""
    cluster_without_nodes.cluster.refusals["POST", plural] = refusal
    async with operator_task(cluster_without_nodes):
        cluster_without_nodes.cluster.apply("b", SPEC)
        status = await cluster_without_nodes.until("b", "Refused")
        writes, tries = (
            cluster_without_nodes.cluster.asked.count(what)
            for what in ("PUT benchmarks", f"POST {plural}")
        )
        await cluster_without_nodes.wait(
            lambda: cluster_without_nodes.cluster.asked.count(f"POST {plural}") > tries + 2
        )
        assert cluster_without_nodes.cluster.asked.count("PUT benchmarks") == writes
        cluster_without_nodes.cluster.refusals.clear()
        await cluster_without_nodes.until("b", "Starting")

    assert refusal[1] in status["faults"][0]


async def test_job_that_was_made_again_is_not_deleted_by_who_saw_the_one_before(
    cluster_without_nodes: ServedCluster,
) -> None:
    async with operator_task(cluster_without_nodes):
        cluster_without_nodes.cluster.apply("b", SPEC)
        await cluster_without_nodes.until("b", "Starting")
    [job] = jobs_of(cluster_without_nodes, "b")
    async with opening(KubeClients(kubeconfig=str(cluster_without_nodes.kubeconfig))) as calls:
        body, name = cluster_without_nodes.benchmark("b"), job["metadata"]["name"]
        with pytest.raises(ApiRefusal, match="409"):
            await act(Delete(name, "uid-of-another"), body, calls)
        assert (
            "deletionTimestamp"
            not in cluster_without_nodes.cluster.of(JOBS).objects[name]["metadata"]
        )
        await act(Delete(name, job["metadata"]["uid"]), body, calls)
        await act(Delete("no-such-job", "uid"), body, calls)

    assert "deletionTimestamp" in cluster_without_nodes.cluster.of(JOBS).objects[name]["metadata"]


@pytest.mark.parametrize("status", [409, 429])
async def test_run_begins_once_however_long_the_status_cannot_be_written(
    cluster_without_nodes: ServedCluster, status: int
) -> None:
    """Minutes of an overloaded API server are many tries: the Job is made by the first."""
    cluster_without_nodes.cluster.refusals["PUT", "benchmarks"] = status, "not now"
    async with operator_task(cluster_without_nodes):
        cluster_without_nodes.cluster.apply("b", SPEC)
        await cluster_without_nodes.wait(
            lambda: cluster_without_nodes.cluster.asked.count("PUT benchmarks") >= 5
        )
        assert "status" not in cluster_without_nodes.benchmark("b")
        assert len(jobs_of(cluster_without_nodes, "b")) == 1
        cluster_without_nodes.cluster.refusals.clear()
        await cluster_without_nodes.until("b", "Starting")

    assert cluster_without_nodes.cluster.asked.count("POST jobs") == 1


async def test_benchmark_that_is_gone_takes_its_refusals_with_it(
    cluster_without_nodes: ServedCluster,
) -> None:
    cluster_without_nodes.cluster.refusals["POST", "jobs"] = 403, "no"
    async with operator_task(cluster_without_nodes):
        cluster_without_nodes.cluster.apply("b", SPEC)
        await cluster_without_nodes.until("b", "Refused")
        await cluster_without_nodes.cluster.remove(BENCHMARKS, "b")
        await cluster_without_nodes.wait(
            lambda: cluster_without_nodes.cluster.find(BENCHMARKS, "b") is None
        )
        tries = cluster_without_nodes.cluster.asked.count("POST jobs")
        cluster_without_nodes.cluster.apply("other", {**SPEC, "suspend": True})
        await cluster_without_nodes.until("other", "Suspended")

    assert cluster_without_nodes.cluster.asked.count("POST jobs") <= tries + 1


async def test_outage_of_the_api_server_is_one_line_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four watches and two Benchmarks that are looked at ten times a second."""
    stream, root = StringIO(), logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    configure_logging("INFO", stream, clock=lambda: 0.0)
    lines: list[str] = []
    outages = logging.getLogger("extproc.operator.watches")

    def note(record: logging.LogRecord) -> bool:
        lines.append(record.getMessage())
        return True

    monkeypatch.setattr(outages, "filters", [note])
    (tmp_path / "token").write_text("token-1")
    write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1", tmp_path / "token")
    clients = KubeClients(kubeconfig=str(tmp_path / "kubeconfig"))
    queue = WorkQueue(clients, QueueOptions("image:1", look_s=0.1), lambda: datetime.now(UTC))
    healths: list[WatchHealth] = []
    for name in "ab":
        queue.learn(("default", name), {})
    tasks = [
        asyncio.create_task(queue.run()),
        asyncio.create_task(follow(clients, (), queue, healths)),
    ]
    await until(lambda: healths and all(health.fault for health in healths))
    await until(lambda: sum(line.startswith("benchmark") for line in lines) >= 6)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)

    [line] = stream.getvalue().splitlines()
    assert "ClientConnectorError" in line
