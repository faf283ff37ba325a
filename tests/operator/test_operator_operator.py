"""The operator against a scripted API server: apply, Jobs whose Pods are processes, status, delete."""

import asyncio
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from tests.operator.cluster import BENCHMARKS, JOBS, PODS, ServedCluster
from tests.operator.operating import Object, build_operator_spec, operating
from tests.operator.statuses import fetch_text
from tests.router.cluster.api_server import event_line, refuses, status_object, stream_chunks

# Operators, leaders and workers are processes, which take their time to start on a busy machine.
pytestmark = pytest.mark.timeout(600)


@pytest.mark.slow
async def test_benchmark_goes_from_apply_to_verdict_to_nothing(
    served: ServedCluster, null_server: int, tmp_path: Path
) -> None:
    """Applied, it gets a Job whose Pod is a process here; its report is there; deleted, everything goes."""
    async with operating(served):
        served.cluster.apply("b", build_operator_spec(null_server))
        status = await served.until("b", "Valid")

        conditions = {each["type"]: each["status"] for each in status["conditions"]}
        assert conditions == {
            "Planned": "True",
            "Running": "False",
            "Valid": "True",
            "Failed": "False",
        }
        assert status["figures"]["req_per_s"] == pytest.approx(20, rel=0.2)
        assert status["figures"]["failed"] == 0
        claim, _, folder = status["report"].partition("/")
        assert claim == "b-results"
        assert (tmp_path / "results" / folder / "report.json").exists()

        writes = len(served.cluster.asked)
        await asyncio.sleep(2.5)  # two looks
        assert served.cluster.asked[writes:] == []

        await served.cluster.remove(BENCHMARKS, "b")
        await served.wait(lambda: not served.cluster.of(JOBS).objects)
    left = {kind: list(c.objects) for kind, c in served.cluster.collections.items() if c.objects}
    assert left == {}


@pytest.mark.slow
async def test_operator_shows_a_run_on_its_page(
    served: ServedCluster, null_server: int, tmp_path: Path
) -> None:
    """Until it has listed what there is it is not ready; then it shows what the status says, and the report.

    The claim, which Pods write to, is mounted where the operator looks.
    """
    async with operating(served) as operator:
        served.cluster.apply("b", build_operator_spec(null_server))
        status = await served.until("b", "Valid")
        (tmp_path / "reports" / "default").mkdir()
        (tmp_path / "reports" / "default" / "b-results").symlink_to(tmp_path / "results")
        linked = await fetch_text(operator.url + "/")
        (tmp_path / "reports" / "default" / "b-results").unlink()
        (tmp_path / "results").rename(tmp_path / "reports" / "default" / "b-results")
        report = f"reports/default/b/{status['run']}/report.html"
        async with asyncio.timeout(60):
            metrics = ""
            while 'phase="Valid"} 1.0' not in metrics:
                await asyncio.sleep(0.1)
                _, metrics = await fetch_text(operator.url + "/metrics")
        page, found, ready = [
            await fetch_text(operator.url + path) for path in ("/", f"/{report}", "/readyz")
        ]

    figure = 'extproc_benchmark_figure{benchmark="b",figure="req_per_s",namespace="default"} '
    assert f"{figure}{status['figures']['req_per_s']}" in metrics
    assert report not in linked[1]
    assert report in page[1]
    assert found[0] == ready[0] == 200
    assert "<h1>" in found[1]


@pytest.mark.slow
async def test_parts_of_an_indexed_job_are_one_load(
    served: ServedCluster, null_server: int, tmp_path: Path
) -> None:
    async with operating(served):
        spec = build_operator_spec(null_server, workers=2, **{"start-within-seconds": 25})
        served.cluster.apply("b", spec)
        status = await served.until("b", "Valid")
        await served.wait(lambda: len(served.cluster.of(JOBS).objects) == 1)

    report = msgspec.json.decode(
        (tmp_path / "results" / status["report"].partition("/")[2] / "report.json").read_bytes()
    )
    assert [part["starts"] for part in report["parts"]] == [20, 20]
    assert report["whole"]["counts"]["completed"] == 40
    assert list(served.cluster.of(JOBS).objects) == [status["run"]]


@pytest.mark.slow
async def test_late_client_makes_a_run_invalid_and_a_server_that_is_away_a_failure(
    served: ServedCluster, null_server: int
) -> None:
    async with operating(served):
        served.cluster.apply("invalid", build_operator_spec(null_server, limits={"lag-p99": 0}))
        served.cluster.apply("failed", build_operator_spec(1))
        invalid = await served.until("invalid", "Invalid")
        failed = await served.until("failed", "Failed")

    assert invalid["verdict"].startswith("invalid: client-limited")
    assert "Connection refused: no request was sent" in " ".join(failed["faults"])


@pytest.mark.slow
async def test_deletion_in_the_middle_of_a_run_ends_it_within_seconds_and_keeps_a_partial_report(
    served: ServedCluster, null_server: int, tmp_path: Path
) -> None:
    async with operating(served):
        served.cluster.apply("b", build_operator_spec(null_server, 600, results={"claim": "mine"}))
        status = await served.until("b", "Running")
        folder = tmp_path / "results" / status["report"].partition("/")[2]
        journal = folder / "run.jsonl"
        await served.wait(lambda: journal.exists() and journal.stat().st_size > 20_000)
        await served.cluster.remove(BENCHMARKS, "b")
        await served.wait(lambda: not served.cluster.of(JOBS).objects)

    assert "invalid: partial" in (folder / "summary.txt").read_text()


@pytest.mark.slow
async def test_api_servers_faults_are_lived_through(
    served: ServedCluster, null_server: int
) -> None:
    """Lists and watches expire, writes conflict or fail, the server compacts: one run, one verdict."""
    cluster = served.cluster
    cluster.answer_next("list", refuses(500), kind=BENCHMARKS)
    expired = event_line("ERROR", status_object(410, "too old resource version"))
    half = event_line("ADDED", {"metadata": {"name": "half"}})[:20]
    cluster.answer_next("watch", stream_chunks(expired), stream_chunks(half), kind=BENCHMARKS)
    cluster.answer_next("watch", stream_chunks(half, then_cut=True), kind=JOBS)
    cluster.faults = {
        ("POST", "jobs"): [500, 429],
        ("POST", "configmaps"): [503],
        ("PUT", "benchmarks"): [409, 500],
    }
    async with operating(served) as operator:
        cluster.apply("b", build_operator_spec(null_server))
        await served.until("b", "Running")
        cluster.compact()
        cluster.end_watches(BENCHMARKS)
        cluster.end_watches(JOBS)
        status = await served.until("b", "Valid")

    assert operator.starts == 1
    assert len(status["history"]) == 1
    assert not any(cluster.faults.values())
    assert len(cluster.of(PODS).objects) == 1


@pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root and setpriv to be another user",
)
async def test_operator_works_as_a_uid_without_a_name_and_runs_its_own_pods_image(
    served: ServedCluster,
) -> None:
    """As in the shipped image: no entry in /etc/passwd, no USER; `images:` has rewritten the Pod.

    Each change is followed at once: the slow look would take ten minutes here.
    """
    image = "my.registry/extproc-router:9"
    container = {"name": "operator", "image": image}
    metadata = {"name": "operator-1"}
    served.cluster.add(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": metadata,
            "spec": {"containers": [container]},
        }
    )
    served.cluster.has_nodes = False
    environment = {
        name: value for name, value in os.environ.items() if name not in {"USER", "LOGNAME"}
    }
    environment |= {"POD_NAME": "operator-1", "HOME": "/"}
    # It may read what root may: the interpreter of the tests may be below /root.
    user = ["setpriv", "--reuid=65532", "--regid=65532", "--clear-groups"]
    user += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    async with operating(served, image=None, look=600, user=user, environment=environment):
        served.cluster.apply("b", {**build_operator_spec(1), "mode": "saturate"})
        status = await served.until("b", "Starting")
        job = served.cluster.of(JOBS).objects[status["run"]]
        served.cluster.add(build_pod(job, "CreateContainerConfigError", 'secret "keys" not found'))
        await served.wait(lambda: "keys" in served.benchmark("b")["status"]["message"])
        served.cluster.apply("b", {**build_operator_spec(1), "mode": "saturate", "suspend": True})
        await served.until("b", "Suspended")

    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == image


def build_pod(job: Object, reason: str, message: str) -> Object:
    """A Pod of a Job that the kubelet cannot start."""
    waiting = {"state": {"waiting": {"reason": reason, "message": message}}}
    labels = {**job["spec"]["template"]["metadata"]["labels"], "job-name": job["metadata"]["name"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{job['metadata']['name']}-x", "labels": labels},
        "status": {"phase": "Pending", "containerStatuses": [waiting]},
    }
