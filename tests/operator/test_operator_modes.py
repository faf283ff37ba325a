"""Comparisons, sweeps and searches as Benchmarks: Jobs, the router switched and given back, reports."""

import asyncio
import json
from pathlib import Path

import pytest
import yaml

from tests.operator.cluster import BENCHMARKS, JOBS, ServedCluster
from tests.operator.comparing import comparison_spec, write_settings
from tests.operator.operating import build_operator_spec, operating
from tests.operator.routers import routing

# Operators, routers, leaders and workers are processes, which take their time on a busy machine.
pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


def strategies_in(texts: list[str]) -> list[str]:
    return [yaml.safe_load(text)["pools"][0]["strategy"]["name"] for text in texts]


async def test_comparison_switches_every_replica_and_leaves_the_router_as_it_was(
    served: ServedCluster, null_server: int, tmp_path: Path
) -> None:
    """Two arms, two replicas; writes of the ConfigMap and of the status conflict now and then.

    1. Each arm in turn is written, and heard by both replicas.
    2. While it runs the status tells requests and figures so far; the operator is killed, and goes
       on.
    3. The verdict comes, the report has both arms, the router is as it was found.
    """
    text = write_settings(null_server)
    served.cluster.faults = {
        ("PUT", "configmaps"): [409, 500, 409],
        ("PUT", "benchmarks"): [409],
        ("GET", "configmaps"): [500],
    }
    async with routing(served, tmp_path, text) as router, operating(served) as operator:
        served.cluster.apply("b", comparison_spec(null_server, router.admin, 4.0))
        await served.wait(lambda: "soFar" in served.benchmark("b").get("status", {}))
        await served.wait(lambda: bool(served.benchmark("b")["status"]["soFar"]["figures"]))
        running = served.benchmark("b")["status"]
        operator.kill()
        status = await served.until("b", "Valid")
        await served.wait(lambda: router.text() == text)
        await served.wait(lambda: len(router.texts) == 3)
        async with asyncio.timeout(60):
            while await router.strategies() != ["random", "random"]:  # noqa: ASYNC110  # processes
                await asyncio.sleep(0.1)

    assert running["phase"] == "Running"
    assert running["soFar"]["doing"].startswith("least_load, repeat 1 of 1")
    assert 0 < running["soFar"]["finished"] <= running["soFar"]["planned"] == 80
    assert running["summary"]["requestsPerSecond"]
    assert operator.starts == 2
    assert strategies_in(router.texts) == ["least_load", "prefix_hash", "random"]
    assert router.metadata() == {"labels": None, "annotations": None}
    assert status["verdict"] == "comparable"
    folder = tmp_path / "results" / status["report"].partition("/")[2]
    report = json.loads((folder / "ab.json").read_text())
    assert [arm["label"] for arm in report["arms"]] == [
        "least_load",
        "prefix_hash(load_factor=1.5)",
    ]
    assert all(trial["report"]["whole"]["counts"]["completed"] == 80 for trial in report["trials"])
    assert not any(served.cluster.faults.values())


async def test_router_is_given_back_when_its_benchmark_is_suspended_and_when_it_is_deleted_unseen(
    served: ServedCluster, null_server: int, tmp_path: Path
) -> None:
    """1. Suspended within an arm: given back. 2. Resumed: switched again, another way round it is not.

    3. The operator dies, and the Benchmark is deleted before the next one looks: that one gives it
       back, and
    the arm that was measured is on the claim.
    """
    text = write_settings(null_server)
    async with routing(served, tmp_path, text, replicas=1) as router, operating(served) as operator:
        spec = comparison_spec(null_server, router.admin, results={"claim": "mine"})
        served.cluster.apply("b", spec)
        await served.wait(lambda: router.text() != text)
        served.cluster.apply("b", {**spec, "suspend": True})
        await served.until("b", "Suspended")
        await served.wait(lambda: router.text() == text)
        await served.wait(lambda: not served.cluster.of(JOBS).objects)
        spec["ab"]["repeats"] = 50
        served.cluster.apply("b", spec)
        # The first run may have measured an arm, too, before it was ended: this one has a folder of
        # its own.
        run = (await served.until("b", "Running"))["run"]
        folder = tmp_path / "results" / "b" / run
        await served.wait(lambda: any(folder.rglob("prefix_hash*/report.json")))
        assert router.text() != text
        operator.kill()
        await served.cluster.remove(BENCHMARKS, "b")
        await served.wait(lambda: router.text() == text and not served.cluster.of(JOBS).objects)

    assert router.metadata() == {"labels": None, "annotations": None}
    report = json.loads((folder / "ab.json").read_text())
    assert report["trials"]
    assert operator.starts == 2


async def test_sweep_measures_cells_as_it_should(
    served: ServedCluster, null_server: int, tmp_path: Path
) -> None:
    text = write_settings(null_server)
    async with routing(served, tmp_path, text, replicas=1) as router, operating(served):
        spec = comparison_spec(null_server, router.admin, mode="sweep", sweep={"concurrency": [2]})
        spec["performance"]["traffic-shape"] |= {"total-prompts": 30, "duration": 5}
        served.cluster.apply("b", spec)
        status = await served.until("b", "Valid")
        await served.wait(lambda: router.text() == text)

    assert strategies_in(router.texts)[-1] == "random"
    assert {"least_load", "prefix_hash"} <= set(strategies_in(router.texts))
    folder = tmp_path / "results" / status["report"].partition("/")[2]
    rows = (folder / "sweep.csv").read_text().splitlines()
    assert len(rows) == 1 + 2
    assert status["verdict"] == "every run is valid"


async def test_search_for_the_best_rate_is_one_too(
    served: ServedCluster, null_server: int, tmp_path: Path
) -> None:
    async with operating(served):
        # However slow this machine is, no rung is too much.
        ladder = {"start": 20, "factor": 2, "steps": 2, "served": 0.01}
        served.cluster.apply(
            "b", build_operator_spec(null_server, mode="saturate", saturate=ladder)
        )
        await served.wait(
            lambda: "of at most 2" in served.benchmark("b").get("status", {}).get("progress", "")
        )
        status = await served.until("b", "Valid")

    folder = tmp_path / "results" / status["report"].partition("/")[2]
    found = json.loads((folder / "saturation.json").read_text())
    assert [rung["rate"] for rung in found["rungs"]] == [20, 40]
    assert status["figures"]["inflection_rps"] == 40
