"""A matrix: every combination of arms, workloads, loads, sizes and seeds, on all cores, resumable.

Each cell's figures are one line of a file in the matrix's folder, written when it is done: what is
there is not run again. A row is a cell and its figures, flat.
"""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path
from statistics import geometric_mean, median
from time import process_time
from typing import Any, BinaryIO, Final

import msgspec

from extproc.errors import SettingsError
from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.report import DEFINITIONS, flatten, lay_out

CELLS: Final = "cells.jsonl"
_CASE: Final = (
    *(
        "workload",
        "load",
        "rate",
        "users",
        "trace_speed",
        "scenario",
        "endpoints",
        "gateways",
        "profiles",
    ),
    *("share_delay_ms", "share_loss", "share_fault"),
)
_UNITS: Final = {
    "load": "of its capacity",
    "rate": "requests/s",
    "trace_speed": "times its own",
    "share_loss": "of the messages",
}
# What most matrices have in common goes without saying; without `profiles` they are the workload's.
_USUAL: Final = {
    "profiles": "",
    "scenario": "plain",
    "gateways": "1",
    "trace_speed": "1.0",
    "share_loss": "0.0",
    "share_fault": "none",
}
_HEAD: Final = (
    *("arm", "runs", "TTFT mean ms", "of the runs ms", "TTFT p99 ms", "E2E mean ms"),
    *("hit rate", "tok/s", "to best other", "worst seed", "runs warned"),
)
_DEFINITIONS: Final = f"""{DEFINITIONS}
Each figure is the median of the runs, one for each seed. of the runs: the lowest and the highest of their mean TTFTs.
to best other: an arm's mean TTFT divided by that of the best other arm of the same seed, without a unit, below 1 is
sooner; the geometric mean of the seeds. worst seed: the highest of these. runs warned: runs that were not offered, or
did not serve, the scheduled load.
"""
Row = Mapping[str, object]
"""What a cell was, and its figures."""


def cross(**axes: Sequence[Any]) -> Iterator[MatrixCell]:
    """Yields a cell for each combination of its fields' values; the last axis changes first."""
    for values in product(*axes.values()):
        yield MatrixCell(**dict(zip(axes, values, strict=True)))


def read_done_rows(folder: Path) -> dict[str, Row]:
    """Returns the rows that are done, by their cells' digests; a line that was cut off is not."""
    path, rows = folder / CELLS, {}
    lines = path.read_bytes().splitlines() if path.exists() else ()
    for line in lines:
        try:
            row = msgspec.json.decode(line)
        except ValueError:
            continue
        rows[row["digest"]] = row
    return rows


def run_matrix(
    cells: Sequence[MatrixCell],
    folder: Path,
    workers: int,
    progress: Callable[[float, Row], None],
    version: str,
) -> list[Row]:
    """Runs the cells that `folder` lacks; returns the rows of all cells, in their order.

    `progress` is called with the share of the work that is done, by requests, and the last row.
    """
    done = read_done_rows(folder)
    missing = [cell for cell in cells if cell.digest not in done]
    work, worked = sum(cell.requests_about for cell in missing), 0
    with (
        _open_cells(folder) as file,
        ProcessPoolExecutor(workers, initializer=gc.disable) as pool,
    ):
        # A line that was cut off must not swallow the next one.
        file.write(b"\n")
        futures = {pool.submit(run_cell, cell, version): cell for cell in missing}
        for future in as_completed(futures):
            row = future.result()
            file.write(msgspec.json.encode(row) + b"\n")
            file.flush()
            done[str(row["digest"])] = row
            worked += futures[future].requests_about
            progress(worked / work, row)
    return [done[cell.digest] for cell in cells]


def _open_cells(folder: Path) -> BinaryIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / CELLS).open("ab")
    except OSError as fault:
        raise SettingsError(f"{folder}: cannot be written to: {fault.strerror}") from None


def run_cell(cell: MatrixCell, version: str) -> Row:
    """Returns a cell and its figures; takes as long as it takes, in this process."""
    begins = process_time()
    summary = cell.run()
    figures = msgspec.json.decode(msgspec.json.encode(flatten(summary)))
    fields = msgspec.json.decode(msgspec.json.encode(cell))
    # A run drops nothing before its end, so that looking for garbage in it finds none and costs a
    # tenth.
    gc.collect()
    return {
        **fields,
        **{name: figures[name] for name in figures if name not in fields and name != "strategy"},
        "arm": cell.label,
        "faults": summary.warnings,
        "digest": cell.digest,
        "version": version,
        "cpu_s": round(process_time() - begins, 2),
    }


def render_rows(rows: Iterable[Row]) -> str:
    """One table for each case, then what their figures are."""
    cases: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        cases[_name_case(row)].append(row)
    tables = [f"{name}\n{_lay_out_case(group)}" for name, group in cases.items()]
    return "\n".join([*tables, _DEFINITIONS])


def values(rows: Iterable[Row], name: str) -> list[float]:
    """Returns the figures of this name that were measured: JSON has no NaN, so others are null."""
    return [float(value) for row in rows if isinstance(value := row.get(name), int | float)]


def _name_case(row: Row) -> str:
    named = ((name, _word(row.get(name))) for name in _CASE)
    return ", ".join(
        " ".join([name, word, *filter(None, [_UNITS.get(name)])])
        for name, word in named
        if word not in {"None", _USUAL.get(name)}
    )


def _word(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _lay_out_case(rows: Sequence[Row]) -> str:
    arms: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        arms[str(row["arm"])].append(row)
    lines = [(arm, *_figures(runs), *_rank(arm, arms), _warned(runs)) for arm, runs in arms.items()]
    return lay_out([_HEAD, *lines])


def _figures(rows: Sequence[Row]) -> Sequence[str]:
    ttfts = values(rows, "ttft_mean_ms")
    return (
        str(len(rows)),
        _median(rows, "ttft_mean_ms"),
        f"{min(ttfts):.1f}-{max(ttfts):.1f}" if ttfts else "-",
        _median(rows, "ttft_p99_ms"),
        _median(rows, "e2e_mean_ms"),
        _median(rows, "hit_rate", 3),
        _median(rows, "total_tok_per_s", 0),
    )


def _median(rows: Sequence[Row], name: str, digits: int = 1) -> str:
    found = values(rows, name)
    return f"{median(found):.{digits}f}" if found else "-"


def _rank(arm: str, arms: Mapping[str, Sequence[Row]]) -> tuple[str, str]:
    ratios = [*compare_to_best(arm, arms).values()]
    return (f"{geometric_mean(ratios):.3f}", f"{max(ratios):.3f}") if ratios else ("-", "-")


def compare_to_best(
    arm: str, arms: Mapping[str, Sequence[Row]], figure: str = "ttft_mean_ms"
) -> dict[object, float]:
    """Returns, by draw, the arm's figure as a share of the lowest of the other arms.

    A draw is a seed and a number of `ties`: arms are compared over the same arrivals.
    """
    lowest: dict[object, float] = {}
    for other, rows in arms.items():
        for row in rows:
            for value in values([row], figure):
                if other != arm and value > 0:
                    lowest[_draw(row)] = min(value, lowest.get(_draw(row), value))
    mine = {_draw(row): value for row in arms[arm] for value in values([row], figure)}
    return {
        draw: value / lowest[draw] for draw, value in mine.items() if value > 0 and draw in lowest
    }


def _draw(row: Row) -> tuple[object, object]:
    return row["seed"], row.get("ties", 0)


def _warned(rows: Iterable[Row]) -> str:
    return str(sum(bool(row["faults"]) for row in rows))
