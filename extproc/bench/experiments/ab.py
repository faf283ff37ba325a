"""The order of a comparison: every arm over the same schedule, again with another seed."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from extproc.bench.experiments.arms import open_lab
from extproc.bench.experiments.run import Interrupted, Run
from extproc.bench.load.registry import open_registry
from extproc.bench.record import RunResult
from extproc.bench.report import report
from extproc.bench.report.outputs import write_reports
from extproc.bench.report.report import Report
from extproc.bench.spec.experiment_sections import Ab
from extproc.bench.spec.section import Component
from extproc.bench.spec.tree import Spec
from extproc.bench.status_server import StatusServer

# Far from the seeds of measured runs: priming must not show the caches the prompts that are measured.
_PRIME_SEED = 1_000_000


class Prepares(Protocol):
    async def prepare(self, arm: Component) -> None: ...

    async def confirm(self, arm: Component) -> None: ...


@dataclass(frozen=True, slots=True)
class Trial:
    """One arm measured once. Trials of one `repeat` have one seed and thus one schedule."""

    arm: str
    repeat: int
    report: Report


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
    reports = open_registry(spec).reports

    def keep(trial: Trial, result: RunResult) -> None:
        if output is not None:
            folder = output / f"{trial.arm}-{trial.repeat + 1}"
            write_reports(result, trial.report, folder, reports)

    async with open_lab(spec, board, stop) as lab:
        return await run_trials(spec, run, lab, keep)


def count_runs(ab: Ab) -> int:
    """How many runs a comparison makes, priming included."""
    return len(ab.arms) * ab.repeats * (2 if ab.prime else 1)


async def run_trials(
    spec: Spec,
    run: Run,
    lab: Prepares,
    keep: Callable[[Trial, RunResult], None] = lambda _trial, _result: None,
) -> list[Trial]:
    """Measures every arm in every repeat; `keep` sees each trial as it ends. Raises as `lab` and `run` do.

    A run that is interrupted ends them all; it is kept, but is no trial.
    """
    trials: list[Trial] = []
    with suppress(Interrupted):
        for repeat in range(spec.ab.repeats):
            seeded = spec.model_copy(update={"seed": spec.seed + repeat})
            for arm in rotate(spec.ab.arms, repeat):
                await lab.prepare(arm)
                title = f"{label(arm)}, repeat {repeat + 1} of {spec.ab.repeats}"
                if spec.ab.prime:
                    await run(prime(seeded), f"{title}: priming")
                result = await run(seeded, title)
                trial = Trial(label(arm), repeat, report.build(result))
                keep(trial, result)
                if result.info.interrupted_s is not None:
                    return trials
                await lab.confirm(arm)
                trials.append(trial)
    return trials


def rotate(arms: Sequence[Component], repeat: int) -> Sequence[Component]:
    """Each repeat begins with another arm, so that no arm always runs on the warmest machine."""
    first = repeat % len(arms)
    return [*arms[first:], *arms[:first]]


def prime(spec: Spec) -> Spec:
    """The same kind of load with other prompts, for `prime` seconds."""
    changes = {"duration": spec.ab.prime, "total_prompts": None, "warm_up": 0.0, "cool_down": 0.0}
    return with_traffic(spec, changes).model_copy(update={"seed": spec.seed + _PRIME_SEED})


def with_traffic(spec: Spec, changes: Mapping[str, object]) -> Spec:
    """The spec with fields of its traffic shape replaced."""
    traffic = spec.traffic.model_copy(update=changes)
    performance = spec.performance.model_copy(update={"traffic_shape": traffic})
    return spec.model_copy(update={"performance": performance})
