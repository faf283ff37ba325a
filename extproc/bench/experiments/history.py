"""Runs of the same kind over time, and whether the last one is worse than those before it. Pure."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import xxhash
from msgspec import json

from extproc.bench.report.figures import FIGURES, read_figures
from extproc.bench.report.report import Report

# What a regression is looked for in.
WATCHED = (
    "req_per_s",
    "total_tok_per_s",
    "output_tok_per_s",
    "ttft_median_ms",
    "ttft_p99_ms",
    "ttft_sent_median_ms",
    "tpot_median_ms",
    "itl_mean_ms",
    "e2e_median_ms",
    "hit_rate",
    "goodput",
    "total_tok_per_dollar",
)
# 1.4826 median deviations are one standard deviation of a normal sample; three of them are no chance.
_DEVIATIONS = 3 * 1.4826
# With fewer runs their spread says nothing.
_FEW = 3

METHOD = (
    "the last valid run against the median of up to {runs} valid ones before it; worse by more than "
    "{tolerance:.0%} of that median and than three (robust) standard deviations of them"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One run of a catalogue. Runs of equal `kind` may be compared: of a name, model, load, accelerator."""

    source: str
    kind: str
    name: str
    model: str
    at: str
    is_valid: bool
    verdict: str
    version: str
    labels: dict[str, str]
    stack: dict[str, str]
    figures: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Drift:
    """A figure of the last run beside the median of those before, and the difference that is `allowed`."""

    figure: str
    value: float
    median: float
    allowed: float
    is_regression: bool

    @property
    def change(self) -> float | None:
        return self.value / self.median - 1 if self.median else None


@dataclass(frozen=True, slots=True)
class Line:
    """The runs of one kind in order of time, and how the last valid one stands to earlier ones."""

    entries: tuple[Entry, ...]
    last: Entry | None
    drifts: tuple[Drift, ...]

    @property
    def regressions(self) -> tuple[Drift, ...]:
        return tuple(drift for drift in self.drifts if drift.is_regression)


def enter_report(report: Report, source: str) -> Entry:
    """A report's place in a history; the engine's version is not part of its kind: versions are compared."""
    stack = {name: str(value) for name, value in report.stack.items()}
    kept = {name: value for name, value in stack.items() if name in {"accelerator", "count", "engine"}}
    load = report.spec.get("performance"), report.spec.get("target", {}).get("api")
    return Entry(
        source=source,
        kind=_name_kind(report.name, report.model, kept, load, report.labels),
        name=report.name,
        model=report.model,
        at=report.started_at,
        is_valid=report.verdict.is_valid,
        verdict=str(report.verdict),
        version=stack.get("version", ""),
        labels=report.labels,
        stack=stack,
        figures=read_figures(report),
    )


def _name_kind(*facts: object) -> str:
    return xxhash.xxh3_64_hexdigest(json.encode(facts, order="sorted"))


def trace_lines(entries: Iterable[Entry], *, tolerance: float, runs: int) -> list[Line]:
    """Sorts runs by kind and time and judges the last valid one of each kind."""
    kinds: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        kinds[entry.kind].append(entry)
    lines = [_trace(sorted(kind, key=lambda entry: entry.at), tolerance, runs) for kind in kinds.values()]
    return sorted(lines, key=lambda line: (line.entries[0].name, line.entries[0].model, line.entries[0].at))


def _trace(entries: Sequence[Entry], tolerance: float, runs: int) -> Line:
    valid = [entry for entry in entries if entry.is_valid]
    if not valid:
        return Line(tuple(entries), None, ())
    *before, last = valid
    return Line(tuple(entries), last, tuple(_compare(last, before[-runs:], tolerance)))


def _compare(last: Entry, before: Sequence[Entry], tolerance: float) -> Iterator[Drift]:
    for name in WATCHED:
        value = last.figures.get(name)
        known = [figure for entry in before if (figure := entry.figures.get(name)) is not None]
        if value is None or not known:
            continue
        median = statistics.median(known)
        spread = statistics.median(abs(each - median) for each in known) if len(known) >= _FEW else 0.0
        allowed = max(tolerance * abs(median), _DEVIATIONS * spread)
        worse = median - value if FIGURES[name].is_better_high else value - median
        yield Drift(name, value, median, allowed, worse > allowed)
