"""Runs of the same kind over time: is the last one worse than those before it? Pure."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from extproc.bench.measure.words import DASH, percent
from extproc.bench.report.headline import FIGURES, show
from extproc.pages import page
from extproc.pages.plots import Bar, bars

# The figures in which regressions are looked for.
WATCHED = (
    *("req_per_s", "total_tok_per_s", "output_tok_per_s", "ttft_median_ms", "ttft_p99_ms"),
    *(
        "ttft_sent_median_ms",
        "tpot_median_ms",
        "itl_mean_ms",
        "e2e_median_ms",
        "hit_rate",
        "goodput",
    ),
    "total_tok_per_dollar",
)
# 1.4826 median deviations are one standard deviation of a normal sample; three of them are no
# chance.
_DEVIATIONS = 3 * 1.4826
# With fewer runs their spread says nothing.
_FEW_VALUES = 3

METHOD = (
    "the last valid run against the median of up to {runs} valid ones before it; worse by more than "
    "{tolerance:.0%} of that median and than three (robust) standard deviations of them"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One run; those of equal `kind` had the same load and may be compared. `at`: RFC 3339."""

    source: str
    kind: str
    name: str
    model: str
    at: str
    is_valid: bool
    verdict: str
    figures: Mapping[str, float | None]


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


def trace_lines(entries: Iterable[Entry], *, tolerance: float, runs: int) -> list[Line]:
    """Sorts runs by kind and time and judges the last valid one of each kind."""
    kinds: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        kinds[entry.kind].append(entry)
    lines = [
        _trace(sorted(kind, key=lambda entry: entry.at), tolerance, runs) for kind in kinds.values()
    ]
    return sorted(
        lines, key=lambda line: (line.entries[0].name, line.entries[0].model, line.entries[0].at)
    )


def _trace(entries: Sequence[Entry], tolerance: float, runs: int) -> Line:
    valid = [entry for entry in entries if entry.is_valid]
    if not valid:
        return Line(tuple(entries), None, ())
    *before, last = valid
    return Line(tuple(entries), last, tuple(_compare(last, before[-runs:], tolerance)))


def _compare(last: Entry, before: Sequence[Entry], tolerance: float) -> Iterator[Drift]:
    for name in WATCHED:
        value = last.figures.get(name)
        values = [figure for entry in before if (figure := entry.figures.get(name)) is not None]
        if value is None or not values:
            continue
        median = statistics.median(values)
        spread = (
            statistics.median(abs(each - median) for each in values)
            if len(values) >= _FEW_VALUES
            else 0.0
        )
        allowed = max(tolerance * abs(median), _DEVIATIONS * spread)
        worse = median - value if FIGURES[name].is_better_high else value - median
        yield Drift(name, value, median, allowed, worse > allowed)


_HEADER = ("figure", "last", "median before", "change", "may differ by", "")


def list_regressions(history: Sequence[Line]) -> list[str]:
    """A sentence for each figure that got worse."""
    return [
        f"{line.entries[0].name}, {line.entries[0].model}: {FIGURES[drift.figure].heading} "
        f"{show(drift.figure, drift.value)}, before {show(drift.figure, drift.median)} "
        f"({_show_change(drift)})"
        for line in history
        for drift in line.regressions
    ]


def _drift_row(drift: Drift) -> tuple[str, ...]:
    return (
        FIGURES[drift.figure].heading,
        show(drift.figure, drift.value),
        show(drift.figure, drift.median),
        _show_change(drift),
        show(drift.figure, drift.allowed),
        "WORSE" if drift.is_regression else "",
    )


def _show_change(drift: Drift) -> str:
    return (
        DASH
        if drift.change is None
        else f"{'+' if drift.change >= 0 else ''}{percent(drift.change)}"
    )


def draw_line(line: Line) -> Iterator[str]:
    """How the last valid run of a kind stands to earlier ones, and each figure over time."""
    if line.drifts:
        yield page.table(
            "The last valid run", _HEADER, [_drift_row(drift) for drift in line.drifts]
        )
    yield page.cards(dict(_plot(line)))


def _plot(line: Line) -> Iterator[tuple[str, str]]:
    """Bars for each figure that two valid runs have: from zero, so that a small change looks small."""
    valid = [
        (number, entry) for number, entry in enumerate(line.entries, start=1) if entry.is_valid
    ]
    for name in WATCHED:
        points = [
            (n, value) for n, entry in valid if (value := entry.figures.get(name)) is not None
        ]
        if len(points) > 1:
            drawn = [Bar(str(number), value) for number, value in points]
            unit = "ms" if name.endswith("_ms") else FIGURES[name].heading
            yield f"{FIGURES[name].heading} by run", bars(drawn, y_label=unit)
