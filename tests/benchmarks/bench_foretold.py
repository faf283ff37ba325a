"""Foretold against measured, on a real Envoy: `python -m tests.benchmarks.bench_foretold [WORKLOAD …]`.

Eight simulated engines, first by Envoy's own rule with the shadow beside it, then switched; each from empty
caches, with the same sessions. Prints the table of docs/why/shadow.md, in ten minutes. A cell with `!` is off
by more than a tenth, and by more than 3 points of hit rate.
"""

import argparse
import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.slow.stack.foretold import LOADS, RULES, SPEED, Ran, plan_workload, run_workload

HEADINGS = (
    *("workload", "Envoy's rule", "hits as served", "hits as picked", "prefill saved"),
    *("TTFT as served, ms", "TTFT as picked, ms"),
)


def write_row(workload: str, rule: str, served: Ran, switched: Ran) -> str:
    told = served.told
    saved = 1 - told["picked_engines"] / told["served_engines"]
    cells = [
        _share(told["served_hit_rate"], served.hit_rate),
        _share(told["picked_hit_rate"], switched.hit_rate),
        _share(saved, 1 - (1 - switched.hit_rate) / (1 - served.hit_rate)),
        _ms(told["served_mean_s"], served.mean_s),
        _ms(told["picked_mean_s"], switched.mean_s),
    ]
    return f"| {' | '.join([f'`{workload}`', rule.lower().replace('_', ' '), *cells])} |"


def _share(told: float, found: float) -> str:
    return f"{told:.1%}, {found:.1%}{_mark(told, found, 0.03)}"


def _ms(told_s: float, found_s: float) -> str:
    return f"{told_s * SPEED * 1000:.0f}, {found_s * 1000:.0f}{_mark(told_s * SPEED, found_s)}"


def _mark(told: float, found: float, least: float = 0.0) -> str:
    return " !" if abs(told - found) > max(least, 0.1 * abs(found)) else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", choices=[*LOADS, []], help="all if none")
    parser.add_argument("--seconds", type=float, default=20.0, help="measured, of each run")
    asked = parser.parse_args()
    print(f"| {' | '.join(HEADINGS)} |", "| --- " * len(HEADINGS) + "|", sep="\n")
    for workload in asked.workloads or LOADS:
        planned = plan_workload(workload, asked.seconds)
        ran = {}
        for rule in ("", *RULES):
            with TemporaryDirectory() as folder:
                run = run_workload(Path(folder), workload, planned, rule, asked.seconds)
                ran[rule] = asyncio.run(run)
        for rule in RULES:
            print(write_row(workload, rule, ran[rule], ran[""]), flush=True)


if __name__ == "__main__":
    main()
