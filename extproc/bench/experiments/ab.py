"""A comparison: every arm over the same schedule, again with another seed; its figures, table and page."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from extproc.bench.experiments.arms import open_lab
from extproc.bench.experiments.compare import (
    Arm,
    Trial,
    comparable_notice,
    compare_trials,
    find_shared_endpoints,
    list_headlines,
    list_known,
    list_means,
    show_change,
    without_certainty,
)
from extproc.bench.experiments.replicas import LabError
from extproc.bench.experiments.run import Interrupted, Run
from extproc.bench.measure.stats import Interval
from extproc.bench.measure.words import Table, markdown_table
from extproc.bench.record import RunResult
from extproc.bench.report import report
from extproc.bench.report.headline import (
    FIGURES,
    SHARES,
    name_part,
    show,
)
from extproc.bench.report.outputs import write_reports
from extproc.bench.report.report import Report
from extproc.bench.spec.section import Component
from extproc.bench.spec.tree import Ab, Spec
from extproc.bench.status_server import StatusServer
from extproc.errors import SettingsError
from extproc.pages import page
from extproc.pages.plots import Bar, bars

# Far from the seeds of measured runs: priming must not show the caches the prompts that are
# measured.
_WARM_UP_SEED = 1_000_000


class ArmControl(Protocol):
    """Puts an arm in force before a run, and sees after it that it still was; raises `LabError`."""

    async def prepare(self, arm: Component) -> None: ...

    async def confirm(self, arm: Component) -> None: ...


@dataclass(frozen=True, slots=True)
class Task:
    """One run of an experiment: the arm, its repeat from 0 on, and the spec with its seed."""

    arm: Component
    repeat: int
    spec: Spec
    title: str


AnyTask = TypeVar("AnyTask", bound=Task)


def label(arm: Component) -> str:
    """The arm's name, and its settings if it has some: `prefix_hash(load_factor=2)`."""
    settings = ", ".join(f"{name}={value}" for name, value in arm.options.items())
    return f"{arm.name}({settings})" if settings else arm.name


async def run_ab(
    spec: Spec,
    run: Run,
    output: Path | None,
    *,
    board: StatusServer | None = None,
    stop: asyncio.Event | None = None,
) -> list[Trial]:
    """Runs a comparison against the spec's router; every run's reports go into a folder of `output`.

    The router is switched as the spec says, else by who reads `board`.
    """

    def keep(trial: Trial, result: RunResult) -> None:
        if output is not None:
            name = re.sub(r"[^\w.()=,-]+", "-", trial.arm)
            folder = output / f"{name}-{trial.repeat + 1}"
            write_reports(result, trial.report, folder)

    async with open_lab(spec, board, stop) as lab:
        return await run_trials(spec, run, lab, keep)


def count_runs(ab: Ab) -> int:
    """How many runs a comparison makes, priming included."""
    return len(ab.arms) * ab.repeats * (2 if ab.prime else 1)


async def run_trials(
    spec: Spec,
    run: Run,
    lab: ArmControl,
    keep: Callable[[Trial, RunResult], None] = lambda _, _1: None,
) -> list[Trial]:
    """Measures every arm in every repeat; `keep` sees each trial as it ends. Raises as `lab` and `run` do.

    A run that is interrupted is kept, but is no trial.
    """
    tasks = [
        Task(
            arm,
            repeat,
            spec.model_copy(update={"seed": spec.seed + repeat}),
            f"{label(arm)}, repeat {repeat + 1} of {spec.ab.repeats}",
        )
        for repeat in range(spec.ab.repeats)
        for arm in rotate(spec.ab.arms, repeat)
    ]
    trials = []
    async for task, result, said in run_tasks(tasks, run, lab):
        trial = Trial(label(task.arm), task.repeat, said)
        keep(trial, result)
        if result.info.interrupted_s is None:
            trials.append(trial)
    return trials


async def run_tasks(
    tasks: Iterable[AnyTask], run: Run, lab: ArmControl
) -> AsyncIterator[tuple[AnyTask, RunResult, Report]]:
    """Does one run after the other; one that is interrupted is the last."""
    with suppress(Interrupted):
        for task in tasks:
            result = await measure_arm(task.spec, task.arm, task.title, run, lab)
            yield task, result, replace(report.build(result), arm=label(task.arm))
            if result.info.interrupted_s is not None:
                return


async def measure_arm(
    spec: Spec, arm: Component, title: str, run: Run, lab: ArmControl
) -> RunResult:
    """Measures an arm that is in force from begin to end; raises as `lab` and `run` do.

    A replica may have the arm in force of a run that has just ended, and read what was written
    since only a minute later: what was measured meanwhile is measured again, once.
    """
    if spec.ab.urls:
        spec = spec.model_copy(update={"endpoint": arm.name, "port": None})
    if not spec.flushed:
        salted = spec.traffic.dataset.model_copy(update={"salt": secrets.token_hex(8)})
        spec = with_traffic(spec, {"dataset": salted})
    for may_retry in (True, False):
        await lab.prepare(arm)
        if spec.ab.prime:
            await run(warm_up(spec), f"{title}: priming")
        result = await run(spec, title)
        try:
            if result.info.interrupted_s is None:
                await lab.confirm(arm)
            break
        except LabError:
            if not may_retry:
                raise
    return result


# Which arm goes first. A machine is another one after an hour of load, and a fixed order gives the
# same place to the same arm in every repeat, which no interval shows. Rotating by one gives each arm
# each place, once in as many repeats as there are arms. The order is not drawn: a second run of the
# same spec must do the same.
#
# Within a repeat all arms have one seed, so one schedule and the same prompts: pairs differ in the
# arm alone. Before each arm every cache is emptied (`Lab.prepare`); otherwise the second arm would
# be sent what the first one has just cached. Where no cache is emptied (two gateways before one set
# of engines), each run has a salt before its prompts: the same lengths, the same sharing among
# themselves, and nothing of them in any cache. It is drawn, as the engines may remember yesterday's
# comparison, too; the run's report has it. With `prime` other prompts of the same kind go first,
# so that what is measured is a working cache and not an empty one; their seed is far from all
# measured ones.
def rotate(arms: Sequence[Component], repeat: int) -> Sequence[Component]:
    """Each repeat begins with another arm, so that no arm always runs on the warmest machine."""
    first = repeat % len(arms)
    return [*arms[first:], *arms[:first]]


def warm_up(spec: Spec) -> Spec:
    """The same kind of load with other prompts, for `ab.prime` seconds."""
    changes = {"duration": spec.ab.prime, "total_prompts": None, "warm_up": 0.0, "cool_down": 0.0}
    return with_traffic(spec, changes).model_copy(update={"seed": spec.seed + _WARM_UP_SEED})


def with_traffic(spec: Spec, changes: Mapping[str, object]) -> Spec:
    """The spec with fields of its traffic shape replaced."""
    traffic = spec.traffic.model_copy(update=changes)
    performance = spec.performance.model_copy(update={"traffic_shape": traffic})
    return spec.model_copy(update={"performance": performance})


AB_SCHEMA = "extproc-bench-ab/2"


@dataclass(frozen=True, slots=True)
class AbReport:
    """A comparison. With `faults` it answers nothing; `remarks` say how to read what it answers.

    `sentences` say what each arm but the baseline brings.
    """

    schema: str
    name: str
    model: str
    baseline: str
    confidence: float
    arms: tuple[Arm, ...]
    faults: tuple[str, ...]
    remarks: tuple[str, ...]
    sentences: tuple[str, ...]
    trials: tuple[Trial, ...]

    @property
    def is_valid(self) -> bool:
        return not self.faults

    @property
    def is_client_limited_only(self) -> bool:
        """Whether no fault is of another kind than that the client was a run's limit."""
        # Each such run is one fault, so that one more is of another kind.
        return len(self.faults) == sum(
            one.report.verdict.is_client_limited_only for one in self.trials
        )


def summarise_trials(trials: Sequence[Trial], ab: Ab) -> AbReport:
    """Builds the report of one or more trials per arm; the baseline is `ab.baseline`, else the first arm.

    Raises `SettingsError` if the baseline is none of the arms, or if there is no trial.
    """
    if not trials:
        raise SettingsError("interrupted before the first run was done")
    labels = [trial.arm for trial in trials]
    baseline = labels[0] if ab.baseline is None else ab.baseline
    if baseline not in labels:
        raise SettingsError(f"ab.baseline: {baseline!r} is none of the arms {', '.join(labels)}")
    found = compare_trials(
        trials,
        baseline,
        name_run=lambda trial: f"{trial.arm} (repeat {trial.repeat + 1})",
        tolerance=ab.tolerance,
        confidence=ab.confidence,
    )
    faults, remarks = list(found.faults), list(found.remarks)
    wanted = len(ab.arms) * ab.repeats
    if len(trials) < wanted:
        faults.insert(0, f"partial: interrupted after {len(trials)} of {wanted} runs")
    first = trials[0].report
    if not (first.spec.get("scrape") if ab.flush is None else ab.flush):
        remarks.append(
            "no cache was emptied: each run had prompts of its own, by a salt in front of them"
        )
    if ab.urls and (shared := find_shared_endpoints([trial.report for trial in trials])):
        remarks.append(
            f"the servers send to the same endpoints, {', '.join(sorted(shared))}: what differs is the "
            "gateways, not the engines"
        )
    return AbReport(
        schema=AB_SCHEMA,
        name=first.name,
        model=first.model,
        baseline=baseline,
        confidence=ab.confidence,
        arms=without_certainty(found.arms) if faults else found.arms,
        faults=tuple(faults),
        remarks=tuple(remarks),
        sentences=() if faults else found.sentences,
        trials=tuple(trials),
    )


# The first four that there are get a chart.
_PLOTTED = (
    "total_tok_per_s",
    "hit_rate",
    "ttft_median_ms",
    "ttft_p99_ms",
    "e2e_median_ms",
    "itl_mean_ms",
)


def ab_markdown(report: AbReport) -> str:
    """What each arm brings, and the headline figures."""
    tables = (markdown_table(*each) for each in _list_headlines(report))
    return "\n\n".join([*report.sentences, name_part(report.trials[0].report), "\n".join(tables)])


def _list_headlines(report: AbReport) -> list[Table]:
    """Means; of more than two arms the changes in a table of their own."""
    names = list_headlines(report.arms)
    means = list_means(report.arms, names, report.confidence, show_change)
    return [means, _list_changes(report, names)] if len(report.arms) > 2 else [means]


def _list_levels(report: AbReport) -> Table:
    header = [f"mean, {report.confidence:.0%} interval", *(arm.label for arm in report.arms)]
    return header, [
        [FIGURES[name].heading, *(_show_level(name, arm.figures.get(name)) for arm in report.arms)]
        for name in list_known(report.arms)
    ]


def _list_changes(report: AbReport, names: Sequence[str]) -> Table:
    others = report.arms[1:]
    return [f"vs {report.baseline}", *(arm.label for arm in others)], [
        [FIGURES[name].heading, *(show_change(name, arm.changes.get(name)) for arm in others)]
        for name in names
    ]


def _show_level(name: str, level: Interval | None) -> str:
    if level is None:
        return show(name, None)
    return f"{show(name, level.mean)}{level.span(lambda end: show(name, end))}"


def ab_html(report: AbReport) -> str:
    subtitle = f"{report.model} · baseline {report.baseline} · {len(report.trials)} runs"
    return page.html_page(
        f"{report.name}: {', '.join(arm.label for arm in report.arms)}", subtitle, _parts(report)
    )


def _parts(report: AbReport) -> Iterator[str]:
    known = list_known(report.arms)
    yield comparable_notice(report.faults, report.sentences)
    yield page.remarks((name_part(report.trials[0].report), *report.remarks))
    if report.is_valid:
        plotted = [name for name in _PLOTTED if name in known][:4]
        yield page.cards({FIGURES[name].heading: _draw(report, name) for name in plotted})
    for title, table in zip(("Figures", "Changes"), _list_headlines(report), strict=False):
        yield page.table(title, *table)
    yield '<details class="card"><summary>All figures, and changes paired by repeat</summary>'
    yield page.table("", *_list_levels(report))
    if len(report.arms) > 1:
        yield page.table("", *_list_changes(report, known))
    yield "</details>"
    yield page.definitions(report.trials[0].report.definitions)


def _draw(report: AbReport, name: str) -> str:
    items = []
    for place, arm in enumerate(report.arms):
        if level := arm.figures.get(name):
            # Without a whisker: that of an arm alone is wider than that of the paired change, which counts.
            items.append(Bar(arm.label, (100 if name in SHARES else 1) * level.mean, place))
    unit = "%" if name in SHARES else "ms" if name.endswith("_ms") else "tokens/s"
    return bars(items, y_label=unit)
