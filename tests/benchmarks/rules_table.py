"""`prefix_cache` beside the best of the other rules: the tables of docs/why/results.md, as Markdown.

It reads what `extproc simulate matrix FOLDER` left: `python -m tests.benchmarks.rules_table FOLDER`. A
figure divides the time of `prefix_cache` by the shortest of any other rule, chosen anew for each seed and
column: the geometric mean of the seeds, and in brackets the largest. Another rule's mean is compared over
the seeds that it ran.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Final

from extproc.bench.measure.words import markdown_table
from extproc.simulator.fleet.matrix import Row, compare_to_best, read_done_rows, values

RULE: Final = "prefix_cache"
FIGURES: Final = ("ttft_mean_ms", "ttft_p99_ms", "e2e_mean_ms")
HEADS: Final = (
    *("workload, load, seeds", "`prefix_cache`, TTFT mean / p99, s"),
    *("TTFT mean", "TTFT p99", "end to end", "next best, by TTFT mean", "`llmd_sticky`"),
)


def build_row(name: str, arms: Mapping[str, Sequence[Row]]) -> list[str]:
    cells = []
    for figure in FIGURES:
        ratios = compare_to_best(RULE, arms, figure).values()
        cells.append(f"{geometric_mean(ratios):.2f} ({max(ratios):.2f})")
    seeds = {row["seed"] for row in arms[RULE]}
    slower = {arm: 1 / geometric_mean(_beside(arm, arms)) for arm in arms.keys() - {RULE}}
    others = sorted(slower, key=slower.__getitem__)
    mean_s, p99_s = (geometric_mean(values(arms[RULE], figure)) / 1000 for figure in FIGURES[:2])
    return [
        *(f"{name}, {len(seeds)}", f"{mean_s:.3f} / {p99_s:.3g}", *cells, f"`{others[0]}`"),
        f"{slower['llmd_sticky']:.1f}" if "llmd_sticky" in slower else "",
    ]


def _beside(arm: str, arms: Mapping[str, Sequence[Row]]) -> list[float]:
    """The rule's mean TTFT as a share of this arm's, by seed."""
    ran = {row["seed"] for row in arms[arm]}
    mine = [row for row in arms[RULE] if row["seed"] in ran]
    return [*compare_to_best(RULE, {RULE: mine, arm: arms[arm]}).values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    found: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in read_done_rows(parser.parse_args().folder).values():
        found[f"`{row['workload']}` {row['load']}"][str(row["arm"])].append(row)
    print(markdown_table(HEADS, [build_row(name, arms) for name, arms in found.items()]))


if __name__ == "__main__":
    main()
