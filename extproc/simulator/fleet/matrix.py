"""A matrix: every combination of arms, workloads, loads, sizes and seeds, on all cores, resumable.

Each cell's figures are one line of a file in the matrix's folder, written when it is done: what is there
is not run again.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from time import process_time
from typing import Final

import orjson

from extproc.simulator.fleet.bus import Fault
from extproc.simulator.fleet.cell import Cell
from extproc.simulator.fleet.gateway import Spread
from extproc.simulator.fleet.report import lay_out
from extproc.simulator.fleet.report_page import figure_cells
from extproc.simulator.fleet.rows import SHARING, Row, by_arm, row_of, split, title_of

CELLS: Final = "cells.jsonl"

_GROUP: Final = ("workload", "load", "scenario", "endpoints", "gateways", "spread", "profiles", *SHARING)
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
    share_delays_ms: Sequence[float | None] = (None,)
    share_losses: Sequence[float] = (0.0,)
    share_faults: Sequence[Fault] = (Fault.NONE,)
    scenarios: Sequence[str] = ("plain",)
    profiles: Sequence[str]
    seeds: Sequence[int] = (11, 12, 13)
    warmup_s: float | None = None
    measured_s: float | None = None

    def cells(self) -> Iterator[Cell]:
        """Yields all of them; arms and seeds of one case together."""
        sharings = product(self.share_delays_ms, self.share_losses, self.share_faults)
        axes = product(
            *(self.workloads, self.scenarios, self.loads, self.endpoints, self.gateways, self.spreads),
            *([*sharings], self.profiles, self.seeds, self.arms),
        )
        for workload, scenario, load, endpoints, gateways, spread, sharing, profile, seed, arm in axes:
            delay_ms, loss, fault = sharing
            yield Cell(
                arm=arm,
                workload=workload,
                load=load,
                endpoints=endpoints,
                profiles=(profile,),
                gateways=gateways,
                spread=spread,
                scenario=scenario,
                share_delay_ms=delay_ms,
                share_loss=loss,
                share_fault=fault,
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
    cells: Sequence[Cell], folder: Path, workers: int, told: Callable[[float, Row], None], version: str
) -> list[Row]:
    """Runs what `folder` has not; returns the rows of all cells, in their order.

    `told` hears of each that is done: which share of the work is, by requests, and which one.
    """
    done = read_rows(folder)
    missing = [cell for cell in cells if cell.digest not in done]
    work, worked = sum(cell.requests_about for cell in missing), 0
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / CELLS).open("ab") as file, ProcessPoolExecutor(workers, initializer=gc.disable) as pool:
        # What was cut off must not swallow the next line.
        file.write(b"\n")
        futures = {pool.submit(run_cell, cell, version): cell for cell in missing}
        for future in as_completed(futures):
            row = future.result()
            file.write(orjson.dumps(row) + b"\n")
            file.flush()
            done[str(row["digest"])] = row
            worked += futures[future].requests_about
            told(worked / work, row)
    return [done[cell.digest] for cell in cells]


def run_cell(cell: Cell, version: str) -> Row:
    """Returns a cell and its figures; takes as long as it takes, in this process."""
    begins = process_time()
    summary = cell.run()
    # A run drops nothing before its end, so that looking for garbage in it finds none and costs a tenth.
    gc.collect()
    return {**row_of(cell, summary, version), "cpu_s": round(process_time() - begins, 2)}


def render_rows(rows: Iterable[Row]) -> str:
    """One table for each case: medians over the seeds, of the TTFT also the range; milliseconds.

    `warned` counts the seeds that were not offered, or did not serve, what was asked for.
    """
    return "\n".join(f"{title_of(case)}\n{_table(group)}" for case, group in split(rows, _GROUP).items())


def _table(rows: Iterable[Row]) -> str:
    return lay_out([_HEAD, *((arm, *figure_cells(runs)) for arm, runs in by_arm(rows).items())])
