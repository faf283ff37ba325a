"""A real Prometheus under test: Debian's `prometheus` and `promtool`."""

import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from tests.stack.fetch import answers, get
from tests.stack.ports import free_ports
from tests.stack.process import Process

# It shares the machine with everything that it watches.
PATIENCE_S = 30.0

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus is not installed: apt-get install prometheus",
)


def promtool(*arguments: str) -> str:
    """Returns promtool's complaint, empty if it has none."""
    result = subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=110, check=False
    )
    return result.stdout + result.stderr if result.returncode else ""


class Prometheus(Process):
    """Scrapes `targets` (addresses with their paths, by job) each second and evaluates the rules as often."""

    def __init__(self, directory: Path, targets: Mapping[str, str], rules: Sequence[Path]) -> None:
        [port] = free_ports(1)
        config = directory / "prometheus.yaml"
        config.write_text(yaml.safe_dump(_configuration(targets, rules)))
        options = [
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'prometheus'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
        ]
        super().__init__("prometheus", ["prometheus", *options], directory)
        self.url = f"http://127.0.0.1:{port}"

    def is_ready(self) -> bool:
        return answers(f"{self.url}/-/ready")

    def ask(self, path: str, **parameters: str) -> Any:
        """Returns what the API answers; raises `OSError` for a query that it refuses."""
        return json.loads(get(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", PATIENCE_S))[
            "data"
        ]

    def query(self, expression: str) -> list[Any]:
        """Returns the samples of an instant query."""
        result: list[Any] = self.ask("query", query=expression)["result"]
        return result

    def query_range(self, expression: str, last_s: float) -> list[Any]:
        """Returns the lines that a panel of the last `last_s` seconds would draw."""
        now_s = time.time()
        span = {"start": f"{now_s - last_s:.3f}", "end": f"{now_s:.3f}", "step": "1"}
        result: list[Any] = self.ask("query_range", query=expression, **span)["result"]
        return result

    def firing(self) -> dict[str, Any]:
        """Returns the alerts that fire, by name; of several with one name, the last."""
        alerts = self.ask("alerts")["alerts"]
        return {each["labels"]["alertname"]: each for each in alerts if each["state"] == "firing"}

    def faulty_rules(self) -> list[str]:
        """Returns the rules that cannot be evaluated, and why."""
        groups = self.ask("rules")["groups"]
        return [
            f"{rule['name']}: {rule.get('lastError')}"
            for group in groups
            for rule in group["rules"]
            if rule["health"] == "err"
        ]


def _configuration(targets: Mapping[str, str], rules: Sequence[Path]) -> dict[str, Any]:
    scrapes = []
    for job, target in targets.items():
        address, _, path = target.partition("/")
        scrapes.append(
            {
                "job_name": job,
                "metrics_path": f"/{path}",
                "static_configs": [{"targets": [address]}],
            }
        )
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules],
        "scrape_configs": scrapes,
    }
