"""What the simulator says of five workloads, and what a real Envoy, service and clock make of them.

Each cell: the fleet draws the sessions and simulates all arms; the same sessions, at the same times and with
the same pauses, then go through Envoy and the service to simulated endpoints in real time, by `extproc bench
ab`. One table; every run's reports stay in the folder, and a valid one is not made again.

Endpoints and client want their processor time at once. As root, on a machine with other work: `nice -n -10
python -m tests.benchmarks.bench_cells --at-once 5`; where the kernel groups processes by session, nice works
within the group only, and /proc/self/autogroup takes the group's own.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import orjson
import yaml

from extproc import __version__
from extproc.bench.experiments.ab import label
from extproc.bench.measure.words import DASH, fixed, markdown_table, percent
from extproc.bench.report.report import Report, decode_report
from extproc.bench.spec.section import Component
from extproc.simulator.fleet.arms import parse_arm
from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.matrix import Row, run_matrix, values
from tests.bench.fleet import Fleet, run_fleet
from tests.benchmarks.export import export_run

ENDPOINTS = 4
# The load goes on while the last requests of the window wait.
COOL_DOWN_S = 10.0
ARMS = ("least_load", "prefix_hash:load_factor=1.25,load_floor=0", "prefix_cache")
# Those whose order says most first.
CELLS = ("T", "C", "U", "H", "CS")
HEADER = (
    "cell, arm",
    "simulated mean / p99 s / hit rate",
    "measured",
    "mean to least_load, simulated (seeds)",
    "measured",
    "mean to prefix_hash, simulated (seeds)",
    "measured",
    "verdict",
)


@dataclass(frozen=True, slots=True)
class Figures:
    """One arm in one cell: TTFT in seconds, and the share of prompt tokens that was cached."""

    mean_s: float
    p99_s: float
    hit_rate: float

    def __str__(self) -> str:
        return f"{fixed(self.mean_s, 3)} / {fixed(self.p99_s)} / {percent(self.hit_rate)}"


@dataclass(frozen=True, slots=True)
class Line:
    """An arm as simulated with each seed, the first of which was measured too."""

    arm: str
    simulated: Sequence[Figures]
    measured: Figures | None
    verdict: str


def build_cell(letter: str, arm: str, seed: int, options: argparse.Namespace) -> MatrixCell:
    return MatrixCell(
        arm=arm,
        workload=letter,
        load=options.load,
        endpoints=ENDPOINTS,
        warmup_s=options.warmup_s,
        measured_s=options.measured_s,
        seed=seed,
    )


def component(arm: str) -> Component:
    parsed = parse_arm(arm)
    return Component(name=parsed.strategy, **parsed.options)


def write_spec(
    fleet: Fleet, dataset: Path, folder: Path, missing: Sequence[str], options: argparse.Namespace
) -> Path:
    """Writes the comparison as anybody would: sessions from the file, at their times, every arm once."""
    traffic = {
        "shape": {"name": "trace"},
        "dataset": {"name": "prepared", "path": str(dataset)},
        "duration": options.warmup_s + options.measured_s + COOL_DOWN_S,
        "warm_up": options.warmup_s,
        "cool_down": COOL_DOWN_S,
    }
    arms = [{"name": parse_arm(arm).strategy, **parse_arm(arm).options} for arm in missing]
    # Sessions are asked again by their answers: a slow arm is offered less, as in the simulation.
    ab = {"arms": arms, "repeats": 1, "tolerance": 0.5}
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(fleet.spec(traffic, seed=options.seed, ab=ab), sort_keys=False))
    return path


def measure_cell(letter: str, folder: Path, options: argparse.Namespace) -> None:
    """Compares those arms in one cell that have no valid run yet."""
    missing = [arm for arm in ARMS if not is_done(folder, arm)]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    dataset = folder / "sessions.jsonl"
    dataset.write_bytes(export_run(build_cell(letter, ARMS[0], options.seed, options).simulate()))
    with (
        tempfile.TemporaryDirectory() as directory,
        run_fleet(Path(directory), endpoints=ENDPOINTS, simulate=(), processes=options.simulators) as fleet,
    ):
        spec = write_spec(fleet, dataset, folder, missing, options)
        command = [sys.executable, "-m", "extproc", "bench", "ab", str(spec), "--output", str(folder)]
        with (folder / "ab.txt").open("w") as said:
            subprocess.run([*command, "--quiet"], stdout=said, stderr=subprocess.STDOUT, check=False)
        if late := fleet.count_late():
            print(f"{letter}: endpoints were {late} times late for their own time", file=sys.stderr)


def measure_all(options: argparse.Namespace) -> None:
    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(lambda letter: measure_cell(letter, options.output / letter, options), options.cells))


def report_path(folder: Path, arm: str) -> Path:
    return folder / f"{label(component(arm))}-1" / "report.json"


def is_done(folder: Path, arm: str) -> bool:
    path = report_path(folder, arm)
    return path.exists() and decode_report(path.read_bytes()).verdict.is_valid


def read_line(folder: Path, arm: str, rows: Sequence[Row]) -> Line:
    path = report_path(folder, arm)
    report = decode_report(path.read_bytes()) if path.exists() else None
    measured = None if report is None else read_report(report)
    verdict = "not measured" if report is None else report.verdict.text
    return Line(arm, [read_row(row) for row in rows], measured, verdict)


def read_row(row: Row) -> Figures:
    mean_ms, p99_ms, hit_rate = (
        values([row], name)[0] for name in ("ttft_mean_ms", "ttft_p99_ms", "hit_rate")
    )
    return Figures(mean_ms / 1000, p99_ms / 1000, hit_rate)


def read_report(report: Report) -> Figures | None:
    """Of the steady window; cached tokens as the answers' usage told them: those of the same requests."""
    ttft = report.steady.latency_ms.get("ttft")
    if ttft is None:
        return None
    return Figures(ttft.mean / 1000, ttft.p99 / 1000, report.steady.tokens.hit_rate or 0.0)


def describe(letter: str, lines: Sequence[Line]) -> Iterator[Sequence[str]]:
    for line in lines:
        yield (
            f"{letter}, {parse_arm(line.arm).strategy}",
            str(line.simulated[0]),
            DASH if line.measured is None else str(line.measured),
            *compare(line, lines[0]),
            *compare(line, lines[1]),
            line.verdict,
        )


def compare(line: Line, base: Line) -> Sequence[str]:
    """TTFT mean over that of another arm: simulated, with the range of all seeds; measured."""
    ratios = [
        ours.mean_s / theirs.mean_s for ours, theirs in zip(line.simulated, base.simulated, strict=True)
    ]
    real = line.measured.mean_s / base.measured.mean_s if line.measured and base.measured else None
    return f"{ratio(ratios[0])} ({ratio(min(ratios))} to {ratio(max(ratios))})", ratio(real)


def ratio(value: float | None) -> str:
    return fixed(value, 2 if value is None or value > 0.1 else 3)


def simulate_all(options: argparse.Namespace) -> list[Row]:
    """Every cell and arm with every seed."""
    seeds = range(options.seed, options.seed + options.seeds)
    cells = [
        build_cell(letter, arm, seed, options) for letter in options.cells for arm in ARMS for seed in seeds
    ]
    return run_matrix(cells, options.output / "simulated", 2, lambda _share, _row: None, __version__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cells", nargs="+", default=CELLS, help=f"workloads (default {' '.join(CELLS)})")
    parser.add_argument("--load", type=float, default=0.75, help="share of the workload's capacity")
    parser.add_argument("--warmup-s", type=float, default=120.0)
    parser.add_argument("--measured-s", type=float, default=240.0)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--seeds", type=int, default=8, help="so many are simulated, to know chance")
    parser.add_argument("--at-once", type=int, default=1, help="cells measured side by side")
    parser.add_argument("--simulators", type=int, default=1, help="processes that share a cell's endpoints")
    parser.add_argument("--output", type=Path, default=Path("build/cells"), help="where reports are kept")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--table", action="store_true", help="only the table of what is there")
    options = parser.parse_args()
    if not options.table:
        measure_all(options)
    rows = iter(simulate_all(options))
    table: list[Sequence[str]] = []
    for letter in options.cells:
        lines = [
            read_line(options.output / letter, arm, [next(rows) for _ in range(options.seeds)])
            for arm in ARMS
        ]
        table += describe(letter, lines)
    print(markdown_table(HEADER, table), end="")
    if options.json is not None:
        options.json.write_bytes(orjson.dumps([HEADER, *table]))


if __name__ == "__main__":
    main()
