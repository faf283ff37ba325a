"""Rows: a run as one flat record, what was asked and what came of it; tables and pages are made of them."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import orjson

from extproc.simulator.fleet.cell import Cell
from extproc.simulator.fleet.report import flatten
from extproc.simulator.fleet.summary import Summary

Row = Mapping[str, object]
"""What a cell was, and its figures."""

Case = tuple[tuple[str, str], ...]
"""What runs have in common that may be compared: names and values."""

SHARING: Final = ("share_delay_ms", "share_loss", "share_fault")
PANEL: Final = ("workload", "scenario", "endpoints", "gateways", "spread", "profiles", *SHARING)
LOADS: Final = ("load", "rate", "users", "trace_speed")


def row_of(cell: Cell, summary: Summary, version: str) -> Row:
    asked = orjson.loads(orjson.dumps(cell))
    figures = orjson.loads(orjson.dumps(flatten(summary)))
    return {
        **asked,
        **{name: figures[name] for name in figures if name not in asked and name != "strategy"},
        "arm": cell.label,
        "faults": summary.warnings,
        "digest": cell.digest,
        "version": version,
    }


def split(rows: Iterable[Row], names: Sequence[str]) -> dict[Case, list[Row]]:
    """Groups rows by the values that they have under these names, in the order of their first row."""
    groups: dict[Case, list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple((name, word(row.get(name))) for name in names)].append(row)
    return dict(groups)


def by_arm(rows: Iterable[Row]) -> dict[str, list[Row]]:
    arms: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        arms[str(row["arm"])].append(row)
    return dict(arms)


def load_name(row: Row) -> str:
    """Which of `LOADS` says how much this run was asked: a share, a rate, users, or a trace's speed."""
    if row.get("trace"):
        return "trace_speed"
    return next((name for name in LOADS if row.get(name) is not None), "load")


def number_of(row: Row, name: str) -> float | None:
    """JSON has no NaN: what was not measured is null."""
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else None


def values(rows: Iterable[Row], name: str) -> list[float]:
    return [value for row in rows if (value := number_of(row, name)) is not None]


def word(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def title_of(case: Case) -> str:
    return ", ".join(f"{name} {value}" for name, value in case)
