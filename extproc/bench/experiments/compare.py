"""Two runs side by side, and whether they may be compared at all. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from extproc.bench.measure.words import DASH, fixed
from extproc.bench.report.figures import FIGURES, read_figures
from extproc.bench.report.markdown import markdown_table
from extproc.bench.report.report import Report


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of two runs; `ratio` is b / a, `None` where one lacks it or a is 0."""

    name: str
    a: float | None
    b: float | None
    ratio: float | None
    is_better_high: bool

    @property
    def is_better(self) -> bool | None:
        """Whether b is better than a; `None` if it is neither or unknown."""
        if self.ratio is None or self.ratio == 1:
            return None
        return (self.ratio > 1) == self.is_better_high


@dataclass(frozen=True, slots=True)
class Comparison:
    """`faults` say why the two don't answer one question; latencies then mean nothing side by side."""

    changes: tuple[Change, ...]
    faults: tuple[str, ...]

    @property
    def is_fair(self) -> bool:
        return not self.faults


def compare(a: Report, b: Report, *, tolerance: float = 0.03) -> Comparison:
    """Compares two runs; `tolerance` is how far their loads may differ, as a share."""
    before, after = read_figures(a), read_figures(b)
    changes = (_change(name, before[name], after[name]) for name in FIGURES)
    return Comparison(tuple(changes), tuple(find_faults([("A", a), ("B", b)], tolerance)))


def _change(name: str, a: float | None, b: float | None) -> Change:
    ratio = None if a is None or b is None or a == 0 else b / a
    return Change(name, a, b, ratio, FIGURES[name].is_better_high)


def find_faults(runs: Sequence[tuple[str, Report]], tolerance: float) -> Iterator[str]:
    """Says why runs are not comparable: a client that lagged, another schedule or model, unequal load."""
    for label, run in runs:
        if not run.verdict.is_valid:
            yield f"{label} is {run.verdict.text}: {'; '.join(run.verdict.reasons)}"
        if not run.measured.counts.completed:
            yield f"{label} completed no request where it was measured"
    (first_label, first), *others = runs
    for label, run in others:
        if run.schedule != first.schedule:
            yield f"{label} followed another schedule than {first_label}"
        if run.model != first.model:
            yield f"{label} asked for model {run.model}, {first_label} for {first.model}"
    yield from _find_unequal_load(runs, tolerance)


def _find_unequal_load(runs: Sequence[tuple[str, Report]], tolerance: float) -> Iterator[str]:
    rates = {label: run.measured.throughput.started_rps for label, run in runs}
    low, high = min(rates, key=lambda label: rates[label]), max(rates, key=lambda label: rates[label])
    if rates[high] > rates[low] * (1 + tolerance):
        yield (
            f"unequal load: {rates[high]:.2f} req/s were sent to {high}, {rates[low]:.2f} to {low}; "
            f"more than {tolerance:.0%} apart"
        )


def find_remarks(runs: Sequence[tuple[str, Report]], tolerance: float) -> Iterator[str]:
    """Says which runs served less than they were sent: their latencies grow with the length of the run."""
    for label, run in runs:
        flow = run.measured.throughput
        if flow.requests_rps < flow.started_rps * (1 - tolerance):
            served = f"{flow.requests_rps:.2f} of {flow.started_rps:.2f} req/s sent"
            yield f"{label} served {served}: past its capacity, or measured without enough warm-up"


def comparison_markdown(comparison: Comparison) -> str:
    """A row per figure that at least one of the runs has."""
    known = [change for change in comparison.changes if (change.a, change.b) != (None, None)]
    return markdown_table(("", "A", "B", "B / A", ""), [_list_change(change) for change in known])


def _list_change(change: Change) -> Sequence[str]:
    better = {None: "", True: "better", False: "worse"}[change.is_better]
    digits = 4 if change.name in {"hit_rate", "goodput"} else 2
    ratio = DASH if change.ratio is None else f"{change.ratio:.3f}"
    return FIGURES[change.name].heading, fixed(change.a, digits), fixed(change.b, digits), ratio, better
