"""What `promtool` says of rules, their cases, a configuration, and the metrics of Benchmarks."""

import asyncio
import subprocess
from pathlib import Path

import pytest
import yaml

from monitoring.generate import ROOT, RULES
from tests.monitoring.prometheus import Prometheus, needs_prometheus, promtool
from tests.operator.statuses import everything, fetch_text, serving_bodies

CASES = RULES.with_suffix(".test.yaml")
CONFIG = ROOT / "monitoring" / "prometheus.yaml"


pytestmark = needs_prometheus


@pytest.mark.parametrize(
    "asked", [("check", "rules", RULES), ("test", "rules", CASES), ("check", "config", CONFIG)]
)
def test_promtool_has_nothing_to_say_against_rules_cases_and_configuration(
    asked: tuple[object, ...],
) -> None:
    """Each alert fires where it should and nowhere else."""
    assert promtool(*map(str, asked)) == ""


def test_the_cases_see_a_rule_that_is_wrong(tmp_path: Path) -> None:
    wrong = RULES.read_text().replace('="ready"', '=~"ready|cooling"')
    assert wrong != RULES.read_text()
    (tmp_path / RULES.name).write_text(wrong)
    cases = yaml.safe_load(CASES.read_text())
    cases["tests"] = [
        each for each in cases["tests"] if each["name"].endswith("endpoints, of one replica")
    ]
    (tmp_path / CASES.name).write_text(yaml.safe_dump(cases))

    assert "FAILED" in promtool("test", "rules", str(tmp_path / CASES.name))


async def test_prometheus_has_nothing_to_say_against_the_metrics_and_takes_them(
    tmp_path: Path,
) -> None:
    async with serving_bodies(everything()) as url:
        _, text = await fetch_text(f"{url}/metrics")
        command = ["promtool", "check", "metrics"]
        checked = await asyncio.to_thread(
            subprocess.run, command, input=text.encode(), capture_output=True
        )
        with Prometheus(
            tmp_path, {"operator": f"{url}/metrics".removeprefix("http://")}, []
        ) as prometheus:
            await asyncio.to_thread(prometheus.wait_ready)
            query = 'extproc_benchmark_figure{benchmark="slower",figure="req_per_s"}'
            await asyncio.to_thread(prometheus.wait_until, lambda: bool(prometheus.query(query)))
            [found] = prometheus.query(query)

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    assert found["value"][1] == "5"
    assert found["metric"]["namespace"] == "default"
