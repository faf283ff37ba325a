"""The metrics of Benchmarks in a real Prometheus."""

import asyncio
import subprocess
from pathlib import Path

from tests.monitoring.prometheus import Prometheus, needs_prometheus
from tests.operator.statuses import everything, get, served


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
