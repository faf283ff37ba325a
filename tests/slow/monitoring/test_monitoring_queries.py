"""Every query of the dashboards is asked of a real Prometheus that watches `make run`'s stack under load.

The load is a benchmark run, whose metrics are a dashboard, too. The pool is that of
envoy/extproc.yaml.
"""

import math
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitoring.dashboards import BOARDS, Board, Query
from monitoring.generate import RULES
from tests.monitoring.prometheus import Prometheus, needs_prometheus
from tests.stack.gateway import SHIPPED
from tests.stack.ports import free_ports
from tests.stack.process import Process
from tests.stack.stack import Stack

pytestmark = [needs_prometheus, pytest.mark.envoy, pytest.mark.timeout(300)]

BOARD_NAMES = [board.uid for board in BOARDS]
# What Grafana fills in. The interval is longer than the run: nothing of it is over before the
# query.
FILLED = {"$__rate_interval": "2m", "$namespace": ".*", "$pool": "tiny"}
DATASET = {"name": "synthetic", "turns": "sessions"}
LOAD: Mapping[str, Any] = {
    "name": "dashboards",
    "endpoint": "127.0.0.1",
    "processes": 1,
    "seed": 1,
    "target": {"api": "openai-chat", "model": "simulated", "endpoint-header": "x-served-by"},
    "performance": {"traffic-shape": {"req-rate": "15 qps", "duration": "12s", "dataset": DATASET}},
}
LINGER = "300s"
SEEN_S = 120.0


def shipped(stack: Stack) -> AbstractContextManager[Stack]:
    """Runs the stack with the pool of envoy/extproc.yaml."""
    (pool,) = yaml.safe_load((SHIPPED / "extproc.yaml").read_text())["pools"]
    return stack.running(pool | {"endpoints": {"static": stack.addresses}})


@contextmanager
def loading(folder: Path, stack: Stack, port: int) -> Iterator[Process]:
    """A benchmark run through the gateway, whose live metrics stay after it."""
    scrape = {"scrape": stack.addresses}
    spec = folder / "load.yaml"
    spec.write_text(yaml.safe_dump({**LOAD, **scrape, "port": int(stack.url.rpartition(":")[2])}))
    options = [
        "--output",
        str(folder / "out"),
        "--metrics-port",
        str(port),
        "--linger",
        LINGER,
        "--quiet",
    ]
    command = [sys.executable, "-m", "extproc", "bench", "run", *options, str(spec)]
    with Process("bench", command, folder) as run:
        yield run


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has seen all of a run, and its end."""
    folder = tmp_path_factory.mktemp("dashboards")
    (folder / "out").mkdir()
    [port] = free_ports(1)
    with shipped(Stack(folder, simulate=("--speed", "3"))) as stack:
        targets = {
            "extproc": f"{stack.service.admin_url}/metrics".removeprefix("http://"),
            "envoy": f"{stack.gateway.admin_url}/stats/prometheus".removeprefix("http://"),
            "benchmark": f"127.0.0.1:{port}/metrics",
        }
        with (
            Prometheus(folder, targets, [RULES]) as prometheus,
            loading(folder, stack, port) as run,
        ):
            run.wait_until((folder / "out" / "report.json").exists, 120)
            prometheus.wait_until(lambda: all(map(prometheus.query, LAST)), 60)
            yield prometheus


# What is there last: the run's figures, and what is recorded of the time before.
LAST = (
    'extproc_bench_finished > 0 and on (instance) up{job="benchmark"} == 1',
    "pool:extproc_measured_tokens_cached:ratio_rate10m > 0",
    "deriv(extproc_bench_sent[2m])",
)


def fill_variables(expression: str) -> str:
    for name, value in FILLED.items():
        expression = expression.replace(name, value)
    return expression


def query_fault(prometheus: Prometheus, query: Query) -> str | None:
    """Returns what is wrong with a query's answer."""
    lines = prometheus.query_range(fill_variables(query.expr), SEEN_S)
    if query.may_be_empty and not lines:
        return None
    if not any(math.isfinite(float(value)) for line in lines for _, value in line["values"]):
        return "no value"
    lacking = {*re.findall(r"{{(\w+)}}", query.legend)} - {*lines[0]["metric"]}
    return f"no label {lacking}" if lacking else None


@pytest.mark.parametrize("board", BOARDS, ids=BOARD_NAMES)
def test_every_query_has_an_answer_with_the_labels_of_its_legend(
    watched: Prometheus, board: Board
) -> None:
    faults = {
        f"{panel.title}: {query.expr}": found
        for panel in board.panels
        for query in panel.queries
        if (found := query_fault(watched, query))
    }

    assert faults == {}


def test_nothing_fires_under_a_load_that_is_served(watched: Prometheus) -> None:
    assert watched.firing() == {}
    assert watched.faulty_rules() == []
