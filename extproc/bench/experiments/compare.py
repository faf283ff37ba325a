"""Two sides, a run each or several, and whether they may be compared at all. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

from extproc.bench.measure.groups import UNKNOWN
from extproc.bench.measure.stats import Interval, mean_interval, ratio_interval
from extproc.bench.measure.words import DASH, Table, markdown_table
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
class Arm:
    """An arm's figures over its repeats, and its `changes` against the baseline, paired by repeat.

    A change is a share of the baseline's figure; of a figure that is a share itself, the
    difference.
    """

    label: str
    figures: dict[str, Interval]
    changes: dict[str, Interval]

    @property
    def means(self) -> dict[str, float]:
        return {name: level.mean for name, level in self.figures.items()}


def without_certainty(arms: Iterable[Arm]) -> tuple[Arm, ...]:
    """Arms that may not be compared: no change has an interval, so that none is called certain."""
    return tuple(
        replace(
            arm,
            changes={
                name: replace(change, low=None, high=None) for name, change in arm.changes.items()
            },
        )
        for arm in arms
    )


Repeats = Mapping[int, Mapping[str, float | None]]
"""The figures of an arm's runs, by repeat."""


def summarise_arm(label: str, own: Repeats, base: Repeats, confidence: float) -> Arm:
    """Sums up an arm's repeats, and compares each with the baseline's run of the same repeat."""
    figures, changes = {}, {}
    for name in FIGURES:
        values = [value for run in own.values() if (value := run[name]) is not None]
        if level := find_level(name, values, confidence):
            figures[name] = level
        pairs = [(base[repeat][name], own[repeat][name]) for repeat in own if repeat in base]
        both = [
            (before, after) for before, after in pairs if before is not None and after is not None
        ]
        if change := find_change(name, both, confidence):
            changes[name] = change
    return Arm(label, figures, changes)


@dataclass(frozen=True, slots=True)
class Trial:
    """One arm measured once. Trials of one `repeat` have one seed and thus one schedule."""

    arm: str
    repeat: int
    report: Report


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arms, the baseline first. `faults` say why they don't answer one question.

    Latencies then mean nothing side by side, and nor do the `sentences`, which say what each arm but
    the baseline brings. `remarks` say how to read the figures, `part` what they are of.
    """

    arms: tuple[Arm, ...]
    part: str
    confidence: float
    faults: tuple[str, ...]
    remarks: tuple[str, ...]
    sentences: tuple[str, ...]

    @property
    def is_valid(self) -> bool:
        return not self.faults


def compare_trials(
    trials: Sequence[Trial],
    baseline: str,
    *,
    name_run: Callable[[Trial], str],
    tolerance: float,
    confidence: float,
) -> Comparison:
    """Compares trials repeat by repeat; `tolerance` is how far loads may differ, as a share."""
    labels = list(dict.fromkeys(trial.arm for trial in sorted(trials, key=lambda one: one.repeat)))
    labels.sort(key=lambda label: label != baseline)
    figures = {
        label: {trial.repeat: read_figures(trial.report) for trial in trials if trial.arm == label}
        for label in labels
    }
    arms = [summarise_arm(label, figures[label], figures[baseline], confidence) for label in labels]
    faults: list[str] = []
    remarks: list[str] = []
    for repeat in sorted({trial.repeat for trial in trials}):
        runs = [(name_run(trial), trial.report) for trial in trials if trial.repeat == repeat]
        faults += find_unfairness(runs, tolerance)
        remarks += find_remarks(runs, tolerance)
    example = {trial.arm: trial.report for trial in reversed(trials)}
    sentences = (
        describe_difference(
            arm.label, baseline, arm.changes, confidence, example[baseline], example[arm.label]
        )
        for arm in arms[1:]
    )
    return Comparison(
        tuple(arms),
        name_part(trials[0].report),
        confidence,
        tuple(faults),
        tuple(remarks),
        tuple(filter(None, sentences)),
    )


def compare(
    a: Sequence[Report],
    b: Sequence[Report],
    *,
    names: tuple[str, str] = ("A", "B"),
    tolerance: float = 0.03,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Compares two sides, repeats paired in the order of their seeds."""
    sides = {
        name: sorted(side, key=lambda run: (run.seed, run.started_at))
        for name, side in zip(names, (a, b), strict=True)
    }
    faults: list[str] = []
    remarks: list[str] = []
    seeds = [", ".join(str(run.seed) for run in side) for side in sides.values()]
    if seeds[0] != seeds[1]:
        faults.append(
            f"{names[0]} has the seeds {seeds[0]}, {names[1]} {seeds[1]}: "
            "repeats are compared seed by seed"
        )
    for name, side in sides.items():
        if len(arms := sorted({run.arm for run in side})) > 1:
            faults.append(f"{name} has runs of {' and '.join(arms)}: give the reports of one arm")
    count = min(len(a), len(b))
    if count < 2:
        remarks.append(
            "one run of each: a difference may be noise, so that none is called better or worse; "
            "give folders with the reports of several seeds"
        )

    if not any(run.arm for run in (*a, *b)) and any(map(_has_same_prompts, *sides.values())):
        remarks.append(
            "both asked the same endpoints the same: unless caches were emptied in between, the later one "
            "found the prompts of the earlier one; `dataset: {salt: TEXT}` gives a run prompts of its own"
        )

    def name_run(trial: Trial) -> str:
        return f"{trial.arm} (seed {trial.report.seed})" if count > 1 else trial.arm

    trials = [
        Trial(name, repeat, run)
        for name, side in sides.items()
        for repeat, run in enumerate(side[:count])
    ]
    found = compare_trials(
        trials, names[0], name_run=name_run, tolerance=tolerance, confidence=confidence
    )
    faults += found.faults
    sure = without_certainty(found.arms) if faults else found.arms
    return replace(found, arms=sure, faults=tuple(faults), remarks=(*remarks, *found.remarks))


def is_better(name: str, change: Interval | None) -> bool | None:
    """Whether a figure's change is for the better; `None` where its interval has both."""
    if change is None or not change.excludes_zero:
        return None
    return (change.mean > 0) == FIGURES[name].is_better_high


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
    return None if ratio is None else ratio.map(lambda value: value - 1)


def find_level(name: str, values: Sequence[float], confidence: float) -> Interval | None:
    """Returns what a figure is over its repeats: a share's mean within 0 and 1, another's geometric mean.

    Where a value is 0 there is none, and it is the plain mean.
    """
    if name not in SHARES and all(value > 0 for value in values):
        return ratio_interval([(value, 1.0) for value in values], confidence)
    found, most = mean_interval(values, confidence), 1.0 if name in SHARES else inf
    return None if found is None else found.map(lambda value: min(max(0.0, value), most))


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
    if count := len(find_shared_endpoints(runs)):
        what += f", on the same {count} endpoint{'s' if count > 1 else ''}"
    return f"{what}, {ttft.count} repeat{'s' if ttft.count > 1 else ''}."


def find_shared_endpoints(runs: Iterable[Report]) -> set[str]:
    """The endpoints that answered in every run; none where runs differ, or nobody said which it was."""
    first, *others = [{row.label for row in run.groups.endpoints} - {UNKNOWN} for run in runs]
    return first if all(each == first for each in others) else set()


def _has_same_prompts(a: Report, b: Report) -> bool:
    """Whether two runs asked the same of the same endpoints, so that the later one found full caches."""
    loads = [
        run.spec.get("performance", {}).get("traffic-shape", {}).get("dataset") for run in (a, b)
    ]
    is_again = loads[0] == loads[1] and a.seed == b.seed and a.started_at != b.started_at
    return is_again and bool(find_shared_endpoints((a, b)))


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
        if flow.served_rps < flow.started_rps - allowed:
            served = f"{flow.served_rps:.2f} of {flow.started_rps:.2f} req/s sent"
            yield f"{label} served {served}: past its capacity, or measured without enough warm-up"


def list_means(
    arms: Sequence[Arm],
    names: Sequence[str],
    confidence: float,
    show_change: Callable[[str, Interval | None], str],
) -> Table:
    """A row per figure: every arm's mean; of two arms the change, too, as it fits on a terminal."""
    header = ["mean", *(arm.label for arm in arms)]
    rows = [
        [FIGURES[name].heading, *(show(name, arm.means.get(name)) for arm in arms)]
        for name in names
    ]
    if len(arms) == 2:
        header.append(f"change, {confidence:.0%} interval")
        for name, row in zip(names, rows, strict=True):
            row.append(show_change(name, arms[1].changes.get(name)))
    return header, rows


def list_headlines(arms: Sequence[Arm]) -> list[str]:
    """The figures that a comparison of arms shows first."""
    return pick_headlines(*(arm.means for arm in arms))


def list_known(arms: Sequence[Arm]) -> list[str]:
    """The figures that at least one arm has."""
    return [name for name in FIGURES if any(name in arm.figures for arm in arms)]


def comparison_markdown(comparison: Comparison) -> str:
    """What is compared, and a row per headline figure."""
    table = _list_sides(comparison, list_headlines(comparison.arms))
    sentences = comparison.sentences if comparison.is_valid else ()
    return "\n\n".join([*sentences, comparison.part, markdown_table(*table)])


def _list_sides(comparison: Comparison, names: Sequence[str]) -> Table:
    return list_means(comparison.arms, names, comparison.confidence, _judge_change)


def comparison_html(comparison: Comparison) -> str:
    a, b = (arm.label for arm in comparison.arms)
    parts = [
        comparable_notice(comparison.faults, comparison.sentences),
        page.remarks((comparison.part, *comparison.remarks)),
        page.table("Figures", *_list_sides(comparison, list_headlines(comparison.arms))),
        '<details class="card"><summary>All figures</summary>',
        page.table("", *_list_sides(comparison, list_known(comparison.arms))),
        "</details>",
    ]
    return page.html_page(f"{a} and {b}", "two sides of one load", parts)


def comparable_notice(faults: Sequence[str], sentences: Sequence[str]) -> str:
    """The head of a page: the faults, or else what the arms bring."""
    title = "not comparable" if faults else "comparable"
    return page.notice(title, faults or sentences, is_good=not faults)


def show_change(name: str, interval: Interval | None) -> str:
    """A change in percent, of a share in points, with its interval; a star where that excludes no change."""
    if interval is None:
        return DASH
    mean = f"{100 * interval.mean:+.1f}{' points' if name in SHARES else '%'}"
    if interval.count == 2:
        return f"{mean} (2 repeats: too few)"
    star = "*" if interval.excludes_zero else ""
    return f"{mean}{interval.span(lambda end: f'{100 * end:+.1f}')}{star}"


def _judge_change(name: str, interval: Interval | None) -> str:
    verdict = {None: "", True: " better", False: " worse"}[is_better(name, interval)]
    return f"{show_change(name, interval)}{verdict}"
