"""What each term of the default rule's cost is worth: the table of docs/why/cost-terms.md, as Markdown.

Each row takes one term out; each cell divides its time to the first token by that of the whole rule, over the
same arrivals and draws of ties: geometric means of the mean / the 99th percentile. Runs are kept in
`--folder`, and what is there is not run again. About an hour on two cores.
"""

import argparse
import json
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from typing import Final

from extproc.bench.measure.words import markdown_table
from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.matrix import Row, run_matrix

RULE: Final = "prefix_cache"
TERMS: Final[Mapping[str, str]] = {
    "`1 + n/10` (1)": "hold_up=0",
    "`evicted`": "evicted=0",
    "the age in `evicted`": "evicted_s=1000000",
    "`A` of shared parts (1)": "shared=0",
    "`backlog`": "backlog=0",
    "the .8 by which it drains (1)": "drain=1",
    "the quarter of a step in `w`": "step=0",
    "the twentieth of a prefill in `w`": "prefill=0",
    "`memory`": "memory=0",
    "half of `memory`": "memory=0.5",
    "twice `memory`": "memory=2",
}
SEEDS: Final = {"agents": range(1, 5), "fewshot": range(1, 7), "docqa": range(1, 5)}
LOADS: Final = {
    "zipf": 1.1,
    "tot": 1.2,
    "swe": 0.9,
    "agents": 0.75,
    "tenants": 0.75,
    "longout": 0.85,
    "fewshot": 0.8,
    "docqa": 0.8,
}
_LOSS: Final = 1.05


def cells_of(workload: str, ties: Sequence[int]) -> list[MatrixCell]:
    """The whole rule's runs of a workload."""
    first = MatrixCell(arm=RULE, workload=workload, load=LOADS[workload])
    seeds = SEEDS.get(workload, range(11, 14))
    return [replace(first, seed=seed, ties=draw) for seed in seeds for draw in ties]


def divide(rows: Sequence[Row], whole: Sequence[Row], figure: str) -> float:
    pairs = zip(rows, whole, strict=True)
    return geometric_mean([float(str(row[figure])) / float(str(one[figure])) for row, one in pairs])


def show(rows: Sequence[Row], whole: Sequence[Row]) -> str:
    """The mean's and the 99th percentile's ratio; a loss of a twentieth and more is bold."""
    ratios = [divide(rows, whole, f"ttft_{figure}_ms") for figure in ("mean", "p99")]
    texts = [f"**{ratio:.2f}**" if ratio >= _LOSS else f"{ratio:.2f}" for ratio in ratios]
    return " / ".join(texts).replace("** / **", " / ")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=Path("build/bench/terms.json"))
    parser.add_argument("--folder", type=Path, default=Path("build/bench/terms"))
    parser.add_argument("--ties", type=int, default=2, help="draws of ties for each seed")
    parser.add_argument("--workload", nargs="*", default=[*LOADS], choices=[*LOADS])
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    whole = [cell for name in options.workload for cell in cells_of(name, range(options.ties))]
    arms = [RULE, *(f"{RULE}:{change}" for change in TERMS.values())]
    cells = [replace(cell, arm=arm) for cell in whole for arm in arms]

    def progress(share: float, row: Row) -> None:
        print(
            f"{share:4.0%} {row['workload']} {row['seed']} {row['arm']}",
            file=sys.stderr,
            flush=True,
        )

    found: dict[tuple[object, object], list[Row]] = defaultdict(list)
    for row in run_matrix(cells, options.folder, options.workers, progress, "terms"):
        found[row["workload"], row["arm"]].append(row)
    table = [
        [
            term,
            *(
                show(found[name, f"{RULE}:{change}"], found[name, RULE])
                for name in options.workload
            ),
        ]
        for term, change in TERMS.items()
    ]
    heads = ["without", *(f"`{name}` {LOADS[name]}" for name in options.workload)]
    print(markdown_table(heads, table))
    options.json.write_text(
        json.dumps({"heads": heads, "rows": table}, indent=2, ensure_ascii=False)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
