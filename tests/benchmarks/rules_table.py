"""`prefix_cache` beside the best of the other rules: the tables of docs/why/results.md, as Markdown.

It reads what `extproc simulate matrix FOLDER` left: `python -m tests.benchmarks.rules_table FOLDER`. A
figure divides the time of `prefix_cache` by the shortest of any other rule, chosen anew for each seed and
column: the geometric mean of the seeds, and in brackets the largest.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Final

from extproc.bench.measure.words import markdown_table
from extproc.simulator.fleet.matrix import Row, read_done_rows

RULE: Final = "prefix_cache"
FIGURES: Final = ("ttft_mean_ms", "ttft_p99_ms", "e2e_mean_ms")
HEADS: Final = (
    *("workload, load, seeds", "`prefix_cache`, TTFT mean / p99, s"),
    *("TTFT mean", "TTFT p99", "end to end", "next best, by TTFT mean", "`llmd_sticky`"),
)
Runs = Mapping[str, Mapping[object, Row]]
"""By arm and by seed and draw."""


def figures_of(rows: Mapping[object, Row], figure: str) -> list[float]:
    return [float(str(row[figure])) for _, row in sorted(rows.items(), key=str)]


def compare(name: str, runs: Runs) -> list[str]:
    ours, others = runs[RULE], {arm: rows for arm, rows in runs.items() if arm != RULE}
    cells = []
    for figure in FIGURES:
        best = map(min, zip(*(figures_of(rows, figure) for rows in others.values()), strict=True))
        ratios = [one / least for one, least in zip(figures_of(ours, figure), best, strict=True)]
        cells.append(f"{geometric_mean(ratios):.2f} ({max(ratios):.2f})")
    means = {arm: geometric_mean(figures_of(rows, FIGURES[0])) for arm, rows in others.items()}
    mean_s, p99_s = (geometric_mean(figures_of(ours, figure)) / 1000 for figure in FIGURES[:2])
    sticky = means.get("llmd_sticky", 0.0) / 1000 / mean_s
    next_best = min(means, key=means.__getitem__)
    return [
        f"{name}, {len(ours)}",
        f"{mean_s:.3f} / {p99_s:.3g}",
        *cells,
        f"`{next_best}`",
        f"{sticky:.1f}",
    ]


def build_rows(rows: Sequence[Row]) -> list[list[str]]:
    """One of a table for each workload and load; seeds that some rule lacks are left out."""
    found: dict[str, dict[str, dict[object, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        name = f"`{row['workload']}` {row['load']}"
        found[name][str(row["arm"])][row["seed"], row["ties"]] = row
    table = []
    for name, runs in found.items():
        common = set.intersection(*(set(one) for one in runs.values()))
        whole = {arm: {seed: one[seed] for seed in common} for arm, one in runs.items()}
        table.append(compare(name, whole))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    rows = [*read_done_rows(parser.parse_args().folder).values()]
    print(markdown_table(HEADS, build_rows(rows)))


if __name__ == "__main__":
    main()
