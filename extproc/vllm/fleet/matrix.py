"""A matrix: every combination of arms, workloads, loads, sizes and seeds, on all cores, resumable.

Each cell's figures are one line of a file in the matrix's folder, written when it is done: what is there
is not run again.
"""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from time import process_time
from typing import Final

import orjson

from extproc.vllm.fleet.cell import Cell
from extproc.vllm.fleet.gateway import Spread
from extproc.vllm.fleet.report import flatten, lay_out

CELLS: Final = "cells.jsonl"

Row = Mapping[str, object]
"""What a cell was, and its figures."""

_GROUP: Final = ("workload", "load", "scenario", "endpoints", "gateways", "spread", "profiles")
_HEAD: Final = ("arm", "seeds", "TTFT mean", "range", "p99", "hit rate", "of shared", "tok/s", "warned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """The axes. Everything of a cell that is no axis is the workload's own, or the default."""

    arms: Sequence[str]
    workloads: Sequence[str]
    loads: Sequence[float] = (0.4, 0.75)
    endpoints: Sequence[int] = (8,)
    gateways: Sequence[int] = (1,)
    spreads: Sequence[Spread] = (Spread.RANDOM,)
    scenarios: Sequence[str] = ("plain",)
    profiles: Sequence[str]
    seeds: Sequence[int] = (11, 12, 13)
    warmup_s: float | None = None
    measured_s: float | None = None

    def cells(self) -> Iterator[Cell]:
        """Yields all of them; arms and seeds of one case together."""
        axes = product(
            *(self.workloads, self.scenarios, self.loads, self.endpoints, self.gateways, self.spreads),
            *(self.profiles, self.seeds, self.arms),
        )
        for workload, scenario, load, endpoints, gateways, spread, profile, seed, arm in axes:
            yield Cell(
                arm=arm,
                workload=workload,
                load=load,
                endpoints=endpoints,
                profiles=(profile,),
                gateways=gateways,
                spread=spread,
                scenario=scenario,
                warmup_s=self.warmup_s,
                measured_s=self.measured_s,
                seed=seed,
            )


def read_rows(folder: Path) -> dict[str, Row]:
    """Returns the rows that are done, by their cells' digests; a line that was cut off is not."""
    path, rows = folder / CELLS, {}
    lines = path.read_bytes().splitlines() if path.exists() else ()
    for line in lines:
        try:
            row = orjson.loads(line)
        except ValueError:
            continue
        rows[row["digest"]] = row
    return rows


def run_matrix(
    cells: Sequence[Cell], folder: Path, workers: int, told: Callable[[int, int, Row], None], version: str
) -> list[Row]:
    """Runs what `folder` has not; returns the rows of all cells, in their order.

    `told` hears of each that is done: how many are, of how many, and which.
    """
    done = read_rows(folder)
    missing = [cell for cell in cells if cell.digest not in done]
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / CELLS).open("ab") as file, ProcessPoolExecutor(workers, initializer=gc.disable) as pool:
        # What was cut off must not swallow the next line.
        file.write(b"\n")
        futures = [pool.submit(run_cell, cell, version) for cell in missing]
        for count, future in enumerate(as_completed(futures), 1):
            row = future.result()
            file.write(orjson.dumps(row) + b"\n")
            file.flush()
            done[str(row["digest"])] = row
            told(count, len(missing), row)
    return [done[cell.digest] for cell in cells]


def run_cell(cell: Cell, version: str) -> Row:
    """Returns a cell and its figures; takes as long as it takes, in this process."""
    begins = process_time()
    summary = cell.run()
    # A run drops nothing before its end, so that looking for garbage in it finds none and costs a tenth.
    gc.collect()
    asked = orjson.loads(orjson.dumps(cell))
    figures = orjson.loads(orjson.dumps(flatten(summary)))
    return {
        **asked,
        **{name: figures[name] for name in figures if name not in asked and name != "strategy"},
        "faults": summary.warnings,
        "digest": cell.digest,
        "version": version,
        "cpu_s": round(process_time() - begins, 2),
    }


def render_rows(rows: Iterable[Row]) -> str:
    """One table for each case: medians over the seeds, of the TTFT also the range; milliseconds.

    `warned` counts the seeds that were not offered, or did not serve, what was asked for.
    """
    cases: dict[tuple[str, ...], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        case = tuple(_word(row[name]) for name in _GROUP)
        cases[case][str(row["arm"])].append(row)
    return "\n".join(_table(case, arms) for case, arms in cases.items())


def _word(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _table(case: tuple[str, ...], arms: Mapping[str, Sequence[Row]]) -> str:
    title = ", ".join(f"{name} {value}" for name, value in zip(_GROUP, case, strict=True))
    return f"{title}\n{lay_out([_HEAD, *(_line(arm, rows) for arm, rows in arms.items())])}"


def _line(arm: str, rows: Sequence[Row]) -> Sequence[str]:
    ttfts = _values(rows, "ttft_mean_ms")
    return (
        arm,
        str(len(rows)),
        f"{median(ttfts):.1f}" if ttfts else "-",
        f"{min(ttfts):.1f}-{max(ttfts):.1f}" if ttfts else "-",
        _median(rows, "ttft_p99_ms", 1),
        _median(rows, "hit_rate", 3),
        _median(rows, "shared_hit_rate", 3),
        _median(rows, "total_tok_per_s", 0),
        str(sum(bool(row["faults"]) for row in rows)),
    )


def _median(rows: Sequence[Row], name: str, digits: int) -> str:
    values = _values(rows, name)
    return f"{median(values):.{digits}f}" if values else "-"


def _values(rows: Sequence[Row], name: str) -> list[float]:
    """JSON has no NaN: what was not measured is null."""
    return [value for row in rows if isinstance(value := row[name], int | float)]
