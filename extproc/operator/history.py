"""The runs that a Benchmark's status remembers, as a history like that of reports in a folder. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from extproc.bench.experiments.history import Entry, Line, trace_lines

TOLERANCE: Final = 0.05
COMPARED: Final = 5


def trace_history(name: str, model: str, runs: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Lines up runs by what was asked, and holds the last valid one of each against those before it."""
    entries = [
        Entry(
            source=run["run"],
            kind=run.get("digest", ""),
            name=name,
            model=model,
            at=run["finishedAt"],
            is_valid=run["phase"] == "Valid",
            verdict=run["verdict"],
            version="",
            labels={},
            stack={},
            figures=run.get("figures", {}),
        )
        for run in runs
    ]
    return trace_lines(entries, tolerance=TOLERANCE, runs=COMPARED)
