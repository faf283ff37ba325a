"""What a comparison says: figures per arm with their confidence, and against the baseline. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from extproc.bench.experiments.ab import Trial
from extproc.bench.experiments.compare import find_faults, find_remarks
from extproc.bench.measure.stats import Interval, mean_interval
from extproc.bench.report.figures import FIGURES, read_figures
from extproc.bench.report.report import Report
from extproc.bench.spec.experiment_sections import Ab
from extproc.errors import SettingsError

AB_SCHEMA = "extproc-bench-ab/1"


@dataclass(frozen=True, slots=True)
class Arm:
    """An arm's figures over its repeats. `changes` are shares of the baseline's figure, paired by repeat."""

    label: str
    figures: dict[str, Interval]
    changes: dict[str, Interval]


@dataclass(frozen=True, slots=True)
class AbReport:
    """A comparison. With `faults` it answers nothing; `remarks` say how to read what it answers."""

    schema: str
    name: str
    model: str
    baseline: str
    confidence: float
    arms: tuple[Arm, ...]
    faults: tuple[str, ...]
    remarks: tuple[str, ...]
    trials: tuple[Trial, ...]

    @property
    def is_valid(self) -> bool:
        return not self.faults


def summarise_trials(trials: Sequence[Trial], ab: Ab) -> AbReport:
    """Builds the report of one or more trials per arm; the baseline is `ab.baseline`, else the first arm.

    Raises `SettingsError` if the baseline is none of the arms, or if there is no trial.
    """
    if not trials:
        raise SettingsError("interrupted before the first run was done")
    labels = list(dict.fromkeys(trial.arm for trial in sorted(trials, key=lambda trial: trial.repeat)))
    baseline = labels[0] if ab.baseline is None else ab.baseline
    if baseline not in labels:
        raise SettingsError(f"ab.baseline: {baseline!r} is none of the arms {', '.join(labels)}")
    by_arm = {label: _by_repeat(trials, label) for label in labels}
    repeats = [_of_repeat(trials, repeat) for repeat in sorted({trial.repeat for trial in trials})]
    return AbReport(
        schema=AB_SCHEMA,
        name=trials[0].report.name,
        model=trials[0].report.model,
        baseline=baseline,
        confidence=ab.confidence,
        arms=tuple(_arm(label, by_arm[label], by_arm[baseline], ab.confidence) for label in labels),
        faults=(
            *_find_missing(len(trials), ab),
            *(fault for runs in repeats for fault in find_faults(runs, ab.tolerance)),
        ),
        remarks=tuple(remark for runs in repeats for remark in find_remarks(runs, ab.tolerance)),
        trials=tuple(trials),
    )


def _find_missing(done: int, ab: Ab) -> Iterator[str]:
    wanted = len(ab.arms) * ab.repeats
    if done < wanted:
        yield f"partial: interrupted after {done} of {wanted} runs"


_ByRepeat = Mapping[int, Mapping[str, float | None]]


def _by_repeat(trials: Sequence[Trial], label: str) -> _ByRepeat:
    return {trial.repeat: read_figures(trial.report) for trial in trials if trial.arm == label}


def _of_repeat(trials: Sequence[Trial], repeat: int) -> list[tuple[str, Report]]:
    return [
        (f"{trial.arm} (repeat {repeat + 1})", trial.report) for trial in trials if trial.repeat == repeat
    ]


def _arm(label: str, own: _ByRepeat, base: _ByRepeat, confidence: float) -> Arm:
    figures, changes = {}, {}
    for name in FIGURES:
        values = [value for repeat in own if (value := own[repeat][name]) is not None]
        if interval := mean_interval(values, confidence):
            figures[name] = interval
        pairs = [(own[repeat][name], base[repeat][name]) for repeat in own if repeat in base]
        shares = [value / other - 1 for value, other in pairs if value is not None and other]
        if change := mean_interval(shares, confidence):
            changes[name] = change
    return Arm(label, figures, changes)
