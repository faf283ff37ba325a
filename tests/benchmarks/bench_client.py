"""The benchmark's own client: 2,000 req/s and 20,000 chunks/s from two processes, and how late it is.

Reference in the same run: a tenth of that load. `python -m tests.benchmarks.bench_client [--json PATH]`.
"""

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import orjson
from rich.console import Console
from rich.table import Table

from extproc.bench.experiments.run import run
from extproc.bench.judge.verdict import judge
from extproc.bench.progress import Standing
from extproc.bench.record import RunResult
from extproc.bench.spec.tree import Spec
from tests.benchmarks.report import Row

RATES = (200, 2_000)
CHUNKS = 10
DURATION_S = 5
STEADY_S = (1, 5)
ROUNDS = 3
NULL_SERVER = Path(__file__).parents[1] / "bench" / "null_server.py"


class Silence:
    def update(self, snapshot: Standing) -> None:
        pass


@contextmanager
def null_server() -> Iterator[int]:
    """A server whose chunks come 10 ms apart, each in a packet of its own."""
    command = [sys.executable, str(NULL_SERVER), "--gap", "0.01"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate(timeout=10)


def build_spec(port: int, rate: int) -> Spec:
    traffic = {
        "req-rate": rate,
        "duration": DURATION_S,
        "dataset": {"name": "random", "input-tokens": 100},
        "max-output-length": CHUNKS,
    }
    return Spec.model_validate(
        {
            "endpoint": "127.0.0.1",
            "port": port,
            "processes": 2,
            "target": {"model": "null"},
            "performance": {"traffic-shape": traffic},
        }
    )


def measure(result: RunResult) -> dict[tuple[str, str], float]:
    figures = judge(result).figures
    # Not over the whole run: its first and last tenth of a second have fewer answers under way.
    chunks = sum(STEADY_S[0] <= at_s < STEADY_S[1] for record in result.records for at_s in record.chunk_s)
    return {
        ("requests begun", "req/s"): figures.achieved_rps or 0.0,
        ("chunks received", "chunks/s"): chunks / (STEADY_S[1] - STEADY_S[0]),
        ("failed", "requests"): sum(not record.is_ok for record in result.records),
        ("lag p99", "ms"): 1e3 * (figures.lag_p99_s or 0.0),
        ("event loop lag p99", "ms"): 1e3 * (figures.loop_lag_p99_s or 0.0),
        ("CPU of the busiest process", "%"): 100 * (figures.cpu or 0.0),
        ("valid", "runs"): judge(result).is_valid,
    }


def measure_rate(port: int, rate: int) -> list[Row]:
    rounds = [measure(asyncio.run(run(build_spec(port, rate), progress=Silence()))) for _ in range(ROUNDS)]
    return [
        Row(f"{name} at {rate:,} req/s", [one[name, unit] for one in rounds], unit)
        for name, unit in rounds[0]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    path = parser.parse_args().json
    title = f"Benchmark client: {CHUNKS} chunks per request, 2 processes, {ROUNDS} rounds of {DURATION_S} s"
    with null_server() as port:
        rows = [row for rate in RATES for row in measure_rate(port, rate)]
    table = Table("", "min", "median", "max", "unit", title=title)
    for row in rows:
        figures = [f"{value:,.2f}" for value in (min(row.samples), row.median, max(row.samples))]
        table.add_row(row.name, *figures, row.unit)
    Console(width=110).print(table)
    if path is not None:
        path.write_bytes(orjson.dumps({"title": title, "rows": [asdict(row) for row in rows]}))


if __name__ == "__main__":
    main()
