"""Timing and reporting for the benchmarks: min, median, max, and a ratio to a reference of the same run."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import msgspec
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Row:
    """One measured thing: a sample per round."""

    name: str
    samples: Sequence[float]
    unit: str

    @property
    def median(self) -> float:
        return median(self.samples)


def time_us(
    once: Callable[[], object],
    calls: int = 500,
    rounds: int = 15,
    clock_ns: Callable[[], int] = perf_counter_ns,
) -> list[float]:
    """Microseconds per call, one sample per round of `calls`, after a round that does not count."""
    samples = []
    for _ in range(rounds + 1):
        start_ns = clock_ns()
        for _ in range(calls):
            once()
        samples.append((clock_ns() - start_ns) / calls / 1_000)
    return samples[1:]


def report(title: str, rows: Sequence[Row], *, reference: str) -> None:
    """Prints a table and, with `--json PATH`, writes the same figures."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    path = parser.parse_known_args()[0].json
    base = next(row for row in rows if row.name == reference).median
    table = Table(title=title)
    for heading in ("", "min", "median", "max", "unit", "ratio"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        figures = [f"{value:,.2f}" for value in (min(row.samples), row.median, max(row.samples))]
        table.add_row(row.name, *figures, row.unit, f"{row.median / base:.2f}")
    Console(width=110).print(table)
    if path is not None:
        path.write_bytes(
            msgspec.json.encode({"title": title, "rows": [asdict(row) for row in rows]})
        )
