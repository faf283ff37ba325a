"""KubeAI's published 8 x L4 benchmark, run again: Envoy, the service, eight simulated endpoints.

Four caps, three strategies, the same seed for all; our table beside theirs. With `--json` the
charts of all published tables go into the same folder. The endpoints run
`--speed` times as fast as they would; figures are told in their time. Answers come whole, TTFT and
ITL from the endpoints' own histograms: at speed 10 two cores cannot carry 40,000 chunks a second.
`--stream` does it the published way, for a slower fleet or a larger machine. `python -m
tests.benchmarks.bench_seed`.
"""

import argparse
import asyncio
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiohttp
import msgspec

from extproc.bench.experiments.ab import run_trials
from extproc.bench.experiments.arms import Lab, build_switch
from extproc.bench.experiments.compare import Trial
from extproc.bench.experiments.run import run
from extproc.bench.experiments.sweep_rows import SweepRow
from extproc.bench.measure.words import fixed, markdown_table, percent
from extproc.bench.progress import RunSnapshot
from extproc.bench.record import RunResult
from extproc.bench.spec.tree import Spec
from tests.bench.fleet import ServedFleet, run_fleet
from tests.benchmarks.published import CELLS_8XL4, draw_tables, judge_row, read_table
from tests.stack.fetch import get

# kube-proxy draws an endpoint per connection. In strict turns, 800 prompts gone through again and
# again would meet the same eight endpoints each time: affinity by accident.
ARMS = {"random": "round_robin", "least_load": "least_load", "prefix_hash": "prefix_hash"}
TTFT, ITL = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
FIGURES = ("tok/s", "theirs", "ratio", "TTFT mean s", "theirs", "ITL mean ms", "theirs")
HEADER = ("strategy, cap", *FIGURES, "hit rate", "verdict", "theirs")


@dataclass(frozen=True, slots=True)
class Waits:
    """What the endpoints' histograms add up to, in their time: seconds and how many, per name.

    `late` counts how often an endpoint could not keep its pace; its times are then wrong by as
    much.
    """

    sums: Mapping[str, float]
    late: int

    def __sub__(self, before: Self) -> "Waits":
        sums = {name: value - before.sums[name] for name, value in self.sums.items()}
        return Waits(sums, self.late - before.late)

    def mean_s(self, name: str) -> float | None:
        count = self.sums[f"{name}_count"]
        return self.sums[f"{name}_sum"] / count if count else None


def read_waits(fleet: ServedFleet) -> Waits:
    sums = {f"{name}_{part}": 0.0 for name in (TTFT, ITL) for part in ("sum", "count")}
    for address in fleet.addresses:
        for line in get(f"http://{address}/metrics").splitlines():
            name, value = line.partition("{")[0], line.rpartition(" ")[2]
            if name in sums:
                sums[name] += float(value)
    return Waits(sums, fleet.count_late())


class QuietRuns:
    """Implements `Progress`: a line per cell is enough."""

    def update(self, snapshot: RunSnapshot) -> None: ...


def seed_spec(fleet: ServedFleet, row: SweepRow, options: argparse.Namespace) -> Spec:
    """The cell's load: 800 prompts of long conversations, shuffled once and gone through ten times."""
    traffic = {
        "preset": "kubeai-8xl4",
        "req_rate": min(row.load.req_rate or math.inf, options.ceiling) * options.speed,
        "max_concurrency": row.load.concurrency,
        "total_prompts": options.requests,
    }
    fields = {
        "ab": {"arms": options.arms, "repeats": 1},
        "target": {"is_streaming": options.stream},
    }
    return Spec.model_validate(
        fleet.spec(traffic, processes=options.processes, seed=12345, **fields)
    )


async def run_cap(
    fleet: ServedFleet, row: SweepRow, options: argparse.Namespace
) -> list[tuple[Trial, Waits]]:
    spec, waits = seed_spec(fleet, row, options), list[Waits]()

    async def measure(seeded: Spec, title: str) -> RunResult:
        print(f"cap {row.load.concurrency}: {title}", file=sys.stderr, flush=True)
        before = read_waits(fleet)
        result = await run(seeded, progress=QuietRuns())
        waits.append(read_waits(fleet) - before)
        return result

    async with aiohttp.ClientSession() as http:
        lab = Lab(http, build_switch(spec.ab), spec.ab, fleet.addresses)
        return list(zip(await run_trials(spec, measure, lab), waits, strict=True))


def describe_cell(trial: Trial, waits: Waits, theirs: SweepRow, speed: float) -> Sequence[str]:
    """Our cell in the endpoints' time beside the published one."""
    ours, told = trial.report.whole.throughput.total_tps / speed, theirs.figures
    rates = fixed(ours, 0), fixed(told["total_tok_per_s"], 0), fixed(ours / told["total_tok_per_s"])
    ttft_s, itl_s = waits.mean_s(TTFT), waits.mean_s(ITL)
    ttft = fixed(ttft_s), fixed(told["ttft_mean_ms"] / 1000)
    itl = fixed(itl_s and itl_s * 1000, 1), fixed(told["itl_mean_ms"], 1)
    hits = percent(trial.report.hit_rate)
    verdict = f"invalid: endpoints {waits.late}x late" if waits.late else trial.report.verdict.text
    return (
        f"{trial.arm}, {theirs.load.concurrency}",
        *rates,
        *ttft,
        *itl,
        hits,
        verdict,
        str(judge_row(theirs)),
    )


def run_all(
    options: argparse.Namespace, published: Mapping[tuple[int, str], SweepRow]
) -> list[Sequence[str]]:
    simulate = ("--speed", str(options.speed), "--profile", options.profile)
    lines = []
    with (
        tempfile.TemporaryDirectory() as folder,
        run_fleet(
            Path(folder), endpoints=8, simulate=simulate, processes=options.simulators
        ) as fleet,
    ):
        for cap in options.caps:
            for trial, waits in asyncio.run(run_cap(fleet, published[cap, "round_robin"], options)):
                lines.append(
                    describe_cell(trial, waits, published[cap, ARMS[trial.arm]], options.speed)
                )
    return lines


def main() -> None:
    rows = read_table(CELLS_8XL4)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--speed", type=float, default=5.0, help="engine seconds per second (default 5)"
    )
    parser.add_argument(
        "--requests", type=int, default=8000, help="per cell (default 8000, as published)"
    )
    parser.add_argument(
        "--ceiling", type=float, default=math.inf, help="requests/s; the published one: 75"
    )
    parser.add_argument(
        "--caps", type=int, nargs="+", default=sorted({row.load.concurrency for row in rows})
    )
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--profile", default="l4-llama8b-fp8-fitted")
    parser.add_argument("--processes", type=int, default=1, help="load processes")
    parser.add_argument(
        "--simulators", type=int, default=2, help="processes that share the endpoints"
    )
    parser.add_argument("--stream", action="store_true", help="stream answers, as published")
    parser.add_argument("--json", type=Path, help="where to write the figures, and the charts")
    options = parser.parse_args()
    lines = run_all(options, {(row.load.concurrency, row.strategy): row for row in rows})
    print(markdown_table(HEADER, lines), end="")
    if options.json is not None:
        options.json.write_bytes(
            msgspec.json.encode([dict(zip(HEADER, line, strict=True)) for line in lines])
        )
        for page in draw_tables(options.json.parent):
            print(page)


if __name__ == "__main__":
    main()
