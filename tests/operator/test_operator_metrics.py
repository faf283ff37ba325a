"""Benchmarks as metrics, in a real Prometheus."""

import asyncio
import subprocess
from pathlib import Path

from extproc.operator.metrics import PHASES
from extproc.operator.status_schema import build_status_schema
from tests.monitoring.prometheus import Prometheus, needs_prometheus
from tests.operator.statuses import (
    body_of,
    everything,
    get,
    nightly,
    scrape,
    searching,
    served,
)


async def test_metrics_say_what_the_statuses_say() -> None:
    samples = await scrape(everything())
    slower = "default", "slower"

    assert samples["extproc_benchmark_info", *slower, "run", "llama"] == 1
    assert samples["extproc_benchmark_figure", *slower, "req_per_s"] == 5
    assert samples["extproc_benchmark_figure", *slower, "ttft_p95_ms"] == 1000
    assert samples["extproc_benchmark_runs", *slower, "Valid"] == 4
    assert samples["extproc_benchmark_regressions", *slower] == 2
    assert samples["extproc_benchmark_last_run_finished_timestamp_seconds", *slower] == 1795363200
    assert samples["extproc_benchmark_next_run_timestamp_seconds", *slower] == 1795366800
    assert samples["extproc_benchmark_runs", "other", "cut-short", "Invalid"] == 1
    assert samples["extproc_benchmark_progress_ratio", "other", "chat"] == 0.45
    phases = {key[1:]: value for key, value in samples.items() if key[0] == "extproc_benchmark_phase"}
    assert len(phases) == 7 * len(PHASES)
    assert sorted(key for key, value in phases.items() if value) == [
        ("default", "chat", "Valid"),
        ("default", "hostile", "Valid"),
        ("default", "refused", "Refused"),
        ("default", "slower", "Valid"),
        ("other", "chat", "Running"),
        ("other", "cut-short", "Invalid"),
    ]


def test_phases_are_those_of_the_status() -> None:
    said = build_status_schema()["properties"]["phase"]["description"]

    assert said.removesuffix(".").replace(" or ", ", ").split(", ") == list(PHASES)


async def test_figures_of_a_benchmark_are_bounded() -> None:
    body = body_of(nightly([10]), "b")
    body["status"]["figures"] = {f"f{number}": number for number in range(1000)}
    samples = await scrape({("default", "b"): body})

    assert sum(key[0] == "extproc_benchmark_figure" for key in samples) == 50


@needs_prometheus
async def test_prometheus_has_nothing_to_say_against_the_metrics_and_takes_them(tmp_path: Path) -> None:
    async with served(everything()) as url:
        _, text = await get(f"{url}/metrics")
        command = ["promtool", "check", "metrics"]
        checked = await asyncio.to_thread(subprocess.run, command, input=text.encode(), capture_output=True)
        with Prometheus(tmp_path, {"operator": f"{url}/metrics".removeprefix("http://")}, []) as prometheus:
            await asyncio.to_thread(prometheus.wait_ready)
            query = 'extproc_benchmark_figure{benchmark="slower",figure="req_per_s"}'
            await asyncio.to_thread(prometheus.wait_until, lambda: bool(prometheus.query(query)))
            [found] = prometheus.query(query)

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    assert found["value"][1] == "5"
    assert found["metric"]["namespace"] == "default"


async def test_progress_of_a_search_is_no_number() -> None:
    body = body_of(searching(), "search")
    samples = await scrape({("default", "search"): body})

    assert body["status"]["progress"] == "run 3 of at most 12"
    assert [key for key in samples if key[0] == "extproc_benchmark_progress_ratio"] == []
