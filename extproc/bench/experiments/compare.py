"""Two sides, a run each or several, and whether they may be compared at all. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from extproc.bench.measure.stats import Interval, mean_interval
from extproc.bench.measure.words import DASH, markdown_table
from extproc.bench.report.figures import FIGURES, read_figures
from extproc.bench.report.headline import name_part, show
from extproc.bench.report.report import Report

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class FigureChange:
    """A figure of two sides: means, `ratio` b / a (`None` where one lacks it or a is 0), and the change.

    `change` is (b - a) / a, paired by repeat; with one run of each it has no interval.
    """

    name: str
    a: float | None
    b: float | None
    ratio: float | None
    change: Interval | None
    is_better_high: bool

    @property
    def is_better(self) -> bool | None:
        """Whether b is better than a; `None` where the interval does not tell."""
        if self.change is None or not self.change.excludes_zero:
            return None
        return (self.change.mean > 0) == self.is_better_high


@dataclass(frozen=True, slots=True)
class Comparison:
    """`faults` say why the two don't answer one question; latencies then mean nothing side by side."""

    part: str
    changes: tuple[FigureChange, ...]
    faults: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def is_fair(self) -> bool:
        return not self.faults


def compare(
    a: Sequence[Report], b: Sequence[Report], *, tolerance: float = 0.03, confidence: float = CONFIDENCE
) -> Comparison:
    """Compares two sides, repeats paired in the order of their seeds.

    `tolerance` is how far the loads of a pair may differ, as a share.
    """
    a, b = (sorted(side, key=lambda run: (run.seed, run.started_at)) for side in (a, b))
    pairs = list(zip(a, b, strict=False))
    figures = [(read_figures(one), read_figures(other)) for one, other in pairs]
    changes = (_change(name, [(x[name], y[name]) for x, y in figures], confidence) for name in FIGURES)
    return Comparison(
        name_part(a[0]),
        tuple(changes),
        (*_find_odd_repeats(a, b), *_find_pair_faults(pairs, tolerance)),
        tuple(_find_all_remarks(pairs, tolerance)),
    )


def _change(name: str, pairs: Sequence[tuple[float | None, float | None]], confidence: float) -> FigureChange:
    known = [(x, y) for x, y in pairs if x is not None and y is not None]
    a, b = (_mean([pair[side] for pair in pairs]) for side in (0, 1))
    ratio = None if a is None or b is None or a == 0 else b / a
    change = mean_interval([y / x - 1 for x, y in known if x], confidence)
    return FigureChange(name, a, b, ratio, change, FIGURES[name].is_better_high)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _find_odd_repeats(a: Sequence[Report], b: Sequence[Report]) -> Iterator[str]:
    ours, theirs = ([run.seed for run in side] for side in (a, b))
    if ours != theirs:
        yield f"A has the seeds {_list(ours)}, B {_list(theirs)}: repeats are compared seed by seed"


def _list(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


def _find_pair_faults(pairs: Sequence[tuple[Report, Report]], tolerance: float) -> Iterator[str]:
    for a, b in pairs:
        repeat = f" (seed {a.seed})" if len(pairs) > 1 else ""
        yield from find_unfairness([(f"A{repeat}", a), (f"B{repeat}", b)], tolerance)


def _find_all_remarks(pairs: Sequence[tuple[Report, Report]], tolerance: float) -> Iterator[str]:
    if len(pairs) < 2:
        yield (
            "one run of each: nothing tells a difference from noise, so that none is called better or worse; "
            "give folders with the reports of several seeds"
        )
    for a, b in pairs:
        yield from find_remarks([("A", a), ("B", b)], tolerance)


def find_unfairness(runs: Sequence[tuple[str, Report]], tolerance: float) -> Iterator[str]:
    """Says why runs are not comparable: one is not valid, another schedule or model, unequal load."""
    for label, run in runs:
        if not run.verdict.is_valid:
            yield f"{label} is {run.verdict.text}: {'; '.join(run.verdict.reasons)}"
    (first_label, first), *others = runs
    for label, run in others:
        if run.schedule != first.schedule:
            yield f"{label} followed another schedule than {first_label}"
        if run.model != first.model:
            yield f"{label} asked for model {run.model}, {first_label} for {first.model}"
        if run.is_queued != first.is_queued:
            yield f"{label} is measured by {name_part(run)}; {first_label} by {name_part(first)}"
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
    """What is compared, and a row per figure that at least one of the sides has."""
    known = [change for change in comparison.changes if (change.a, change.b) != (None, None)]
    header = ("", "A", "B", "B / A", f"change, {CONFIDENCE:.0%} interval", "")
    return f"{comparison.part}\n\n{markdown_table(header, [_list_change(change) for change in known])}"


def _list_change(change: FigureChange) -> Sequence[str]:
    better = {None: "", True: "better", False: "worse"}[change.is_better]
    ratio = DASH if change.ratio is None else f"{change.ratio:.3f}"
    shown = (show(change.name, value) for value in (change.a, change.b))
    return FIGURES[change.name].heading, *shown, ratio, show_change(change.change), better


def show_change(interval: Interval | None) -> str:
    """A change in percent with its interval; a star where the interval excludes no change."""
    if interval is None:
        return DASH
    if interval.low is None or interval.high is None:
        return f"{interval.mean:+.1%}"
    star = "*" if interval.excludes_zero else ""
    return f"{interval.mean:+.1%} [{interval.low:+.1%}, {interval.high:+.1%}]{star}"
