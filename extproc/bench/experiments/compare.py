"""Two sides, a run each or several, and whether they may be compared at all. Pure."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import sqrt

from extproc.bench.measure.stats import Interval, mean_interval, ratio_interval
from extproc.bench.measure.words import DASH, markdown_table
from extproc.bench.report.headline import (
    FIGURES,
    SHARES,
    name_part,
    pick_headlines,
    read_figures,
    show,
)
from extproc.bench.report.report import Report
from extproc.pages import page

CONFIDENCE = 0.95
# What changes by less than this is not worth a word in a sentence.
_SAME = 0.02


@dataclass(frozen=True, slots=True)
class FigureChange:
    """A figure of two sides: means, and the change as of `find_change`; of few runs without an interval."""

    name: str
    a: float | None
    b: float | None
    change: Interval | None
    is_better_high: bool

    @property
    def is_better(self) -> bool | None:
        """Whether b is better than a; `None` where the interval has both."""
        if self.change is None or not self.change.excludes_zero:
            return None
        return (self.change.mean > 0) == self.is_better_high


@dataclass(frozen=True, slots=True)
class Comparison:
    """`faults` say why the two don't answer one question; latencies then mean nothing side by side.

    `names` are those of the two sides, `sentence` says in one how the second differs, if it may be
    said.
    """

    names: tuple[str, str]
    part: str
    changes: tuple[FigureChange, ...]
    faults: tuple[str, ...]
    remarks: tuple[str, ...]
    sentence: str | None


def compare(
    a: Sequence[Report],
    b: Sequence[Report],
    *,
    names: tuple[str, str] = ("A", "B"),
    tolerance: float = 0.03,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Compares two sides, repeats paired in the order of their seeds.

    `tolerance` is how far the loads of a pair may differ, as a share.
    """
    a, b = (sorted(side, key=lambda run: (run.seed, run.started_at)) for side in (a, b))
    pairs = list(zip(a, b, strict=False))
    figures = [(read_figures(one), read_figures(other)) for one, other in pairs]
    changes = [
        _change(name, [(x[name], y[name]) for x, y in figures], confidence) for name in FIGURES
    ]
    faults: list[str] = []
    remarks: list[str] = []
    seeds = [", ".join(str(run.seed) for run in side) for side in (a, b)]
    if seeds[0] != seeds[1]:
        said = f"{names[0]} has the seeds {seeds[0]}, {names[1]} {seeds[1]}"
        faults.append(f"{said}: repeats are compared seed by seed")
    for name, side in zip(names, (a, b), strict=True):
        if len(arms := sorted({run.arm for run in side})) > 1:
            faults.append(f"{name} has runs of {' and '.join(arms)}: give the reports of one arm")
    if len(pairs) < 2:
        remarks.append(
            "one run of each: a difference may be noise, so that none is called better or worse; "
            "give folders with the reports of several seeds"
        )
    for one, other in pairs:
        repeat = f" (seed {one.seed})" if len(pairs) > 1 else ""
        faults += find_unfairness([(names[0] + repeat, one), (names[1] + repeat, other)], tolerance)
        remarks += find_remarks([(names[0], one), (names[1], other)], tolerance)
    by_name = {change.name: change.change for change in changes if change.change}
    sentence = (
        None if faults else describe_difference(names[1], names[0], by_name, confidence, a[0], b[0])
    )
    return Comparison(
        names, name_part(a[0]), tuple(changes), tuple(faults), tuple(remarks), sentence
    )


def _change(
    name: str, pairs: Sequence[tuple[float | None, float | None]], confidence: float
) -> FigureChange:
    both = [(x, y) for x, y in pairs if x is not None and y is not None]
    sides = [[pair[side] for pair in pairs if pair[side] is not None] for side in (0, 1)]
    a, b = (sum(filter(None, side)) / len(side) if side else None for side in sides)
    return FigureChange(
        name, a, b, find_change(name, both, confidence), FIGURES[name].is_better_high
    )


def find_change(
    name: str, pairs: Iterable[tuple[float, float]], confidence: float
) -> Interval | None:
    """Returns how a figure goes from each pair's first value to its second.

    Of a share it is the mean difference; of anything else a geometric mean of ratios, less 1: by
    logarithms, so that no latency falls by more than 100 %. `None` without a pair.
    """
    if name in SHARES:
        return mean_interval([after - before for before, after in pairs], confidence)
    ratio = ratio_interval([(after, before) for before, after in pairs], confidence)
    if ratio is None:
        return None
    low, high = (None if end is None else end - 1 for end in (ratio.low, ratio.high))
    return Interval(ratio.mean - 1, low, high, ratio.count)


def find_level(name: str, values: Sequence[float], confidence: float) -> Interval | None:
    """Returns what a figure is over its repeats: a share's mean within 0 and 1, another's geometric mean.

    Where a value is 0 there is none, and it is the plain mean.
    """
    if name not in SHARES and all(value > 0 for value in values):
        return ratio_interval([(value, 1.0) for value in values], confidence)
    found = mean_interval(values, confidence)
    if found is None or found.low is None or found.high is None:
        return found
    high = min(1.0, found.high) if name in SHARES else found.high
    return Interval(found.mean, max(0.0, found.low), high, found.count)


def describe_difference(
    name: str, baseline: str, changes: dict[str, Interval], confidence: float, *runs: Report
) -> str | None:
    """Says in one sentence what somebody gets who takes `name` instead of `baseline`; `runs`: one of each."""
    ttft, tokens = changes.get("ttft_mean_ms"), changes.get("total_tok_per_s")
    if ttft is None:
        return None
    if abs(ttft.mean) < _SAME:
        what = f"{name} sends the first token as soon as {baseline}"
    else:
        way = "sooner" if ttft.mean < 0 else "later"
        what = f"{name} sends the first token {abs(ttft.mean):.0%} {way} than {baseline}".replace(
            "%", " %"
        )
    what += _describe_certainty(ttft, f"{100 * confidence:g} %")
    if tokens is not None and abs(tokens.mean) >= _SAME:
        what += f", with {1 + tokens.mean:.2f} times the tokens per second"
    served = [{row.label for row in run.groups.endpoints} for run in runs]
    if served[0] == served[-1] and served[0] - {"unknown"}:
        what += f", on the same {len(served[0])} endpoint{'s' if len(served[0]) > 1 else ''}"
    return f"{what}, {ttft.count} repeat{'s' if ttft.count > 1 else ''}."


def _describe_certainty(change: Interval, level: str) -> str:
    """The interval of a change, in words that nobody takes for more than it says."""
    if change.low is None or change.high is None:
        return " (not certain yet: too few repeats for an interval)"
    ends = sorted((abs(change.low), abs(change.high)))
    if change.excludes_zero:
        return f" ({level}: {100 * ends[0]:.0f} to {100 * ends[1]:.0f} %)"
    return f" (not certain: {level} lies between {100 * change.low:+.0f} and {100 * change.high:+.0f} %)"


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


def _find_noise(run: Report, rate: float) -> float:
    """One request more or less is counting, not load: a count of n is off by the root of n."""
    span_s = run.measured.window.end_s - run.measured.window.start_s
    return sqrt(rate / span_s) if span_s > 0 else 0.0


def _find_unequal_load(runs: Sequence[tuple[str, Report]], tolerance: float) -> Iterator[str]:
    rates = {label: run.measured.throughput.started_rps for label, run in runs}
    low, high = (
        min(rates, key=lambda label: rates[label]),
        max(rates, key=lambda label: rates[label]),
    )
    noise = _find_noise(runs[0][1], rates[high])
    if rates[high] - rates[low] > max(rates[low] * tolerance, noise):
        yield (
            f"unequal load: {rates[high]:.2f} req/s were sent to {high}, {rates[low]:.2f} to {low}; "
            f"more than {tolerance:.0%} apart"
        )


def find_remarks(runs: Sequence[tuple[str, Report]], tolerance: float) -> Iterator[str]:
    """Says which runs served less than they were sent: their latencies grow with the length of the run."""
    for label, run in runs:
        flow = run.measured.throughput
        allowed = max(flow.started_rps * tolerance, _find_noise(run, flow.started_rps))
        if flow.requests_rps < flow.started_rps - allowed:
            served = f"{flow.requests_rps:.2f} of {flow.started_rps:.2f} req/s sent"
            yield f"{label} served {served}: past its capacity, or measured without enough warm-up"


def comparison_markdown(comparison: Comparison) -> str:
    """What is compared, and a row per headline figure."""
    texts = [comparison.sentence, comparison.part, markdown_table(*_list_headlines(comparison))]
    return "\n\n".join(filter(None, texts))


_Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def _list_headlines(comparison: Comparison) -> _Table:
    sides = [{each.name: getattr(each, side) for each in comparison.changes} for side in ("a", "b")]
    return _list_figures(comparison, pick_headlines(*sides))


def _list_figures(comparison: Comparison, names: Collection[str]) -> _Table:
    """A row per figure that at least one of the sides has."""
    rows = []
    better = {None: "", True: " better", False: " worse"}
    for change in comparison.changes:
        if change.name in names and (change.a, change.b) != (None, None):
            shown = (show(change.name, value) for value in (change.a, change.b))
            told = f"{show_change(change.name, change.change)}{better[change.is_better]}"
            rows.append((FIGURES[change.name].heading, *shown, told))
    return ("", *comparison.names, f"change, {CONFIDENCE:.0%} interval"), rows


def comparison_html(comparison: Comparison) -> str:
    a, b = comparison.names
    title = "not comparable" if comparison.faults else "comparable"
    parts = [
        page.notice(
            title,
            comparison.faults or [*filter(None, [comparison.sentence])],
            is_good=not comparison.faults,
        ),
        page.remarks((comparison.part, *dict.fromkeys(comparison.remarks))),
        page.table("Figures", *_list_headlines(comparison)),
        '<details class="card"><summary>All figures</summary>',
        page.table("", *_list_figures(comparison, FIGURES)),
        "</details>",
    ]
    return page.html_page(f"{a} and {b}", "two sides of one load", parts)


def show_change(name: str, interval: Interval | None) -> str:
    """A change in percent, of a share in points, with its interval; a star where that excludes no change."""
    if interval is None:
        return DASH
    unit = " points" if name in SHARES else "%"
    mean = f"{100 * interval.mean:+.1f}{unit}"
    if interval.low is None or interval.high is None:
        return f"{mean} (2 repeats: too few)" if interval.count == 2 else mean
    star = "*" if interval.excludes_zero else ""
    return f"{mean} [{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]{star}"
