"""Every strategy over every load and dataset, repeated; what is done is measured, and not done again."""

import asyncio
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from pydantic import ValidationError

from extproc.bench.experiments.ab import Task, label, rotate, run_tasks
from extproc.bench.experiments.arms import open_lab
from extproc.bench.experiments.run import Run
from extproc.bench.experiments.sweep_rows import SweepRow, build_row
from extproc.bench.load.registry import find_part_faults
from extproc.bench.report.outputs import write_reports
from extproc.bench.report.report import Report
from extproc.bench.spec.presets import apply_preset
from extproc.bench.spec.section import Component, list_faults
from extproc.bench.spec.traffic import TrafficShape
from extproc.bench.spec.tree import Load, Spec
from extproc.bench.status_server import StatusServer
from extproc.errors import SettingsError

CELLS: Final = "cells.jsonl"


@dataclass(frozen=True, slots=True)
class SweepTask(Task):
    """One run of a sweep: its spec has the dataset, the load and the seed."""

    dataset: str
    load: Load

    @property
    def folder(self) -> str:
        """Where the run's reports go, within the sweep's folder."""
        rate = "" if self.load.req_rate is None else f"at-{self.load.req_rate:g}"
        words = (
            self.dataset,
            str(self.load.concurrency),
            rate,
            label(self.arm),
            str(self.repeat + 1),
        )
        return re.sub(r"[^\w.=-]+", "-", "-".join(filter(None, words))).strip("-")

    @property
    def digest(self) -> str:
        """The same for the same run: more arms, loads or repeats beside it change nothing of it."""
        spec = self.spec.model_dump_json(exclude={"name", "ab", "sweep", "saturate"})
        prepared = self.spec.ab.model_dump_json(include={"prime", "flush"})
        return hashlib.sha256(
            f"{spec} {prepared} {self.arm.model_dump_json()}".encode()
        ).hexdigest()[:16]


class MeasuredRun(msgspec.Struct):
    """A line of the sweep's folder: which run, and what came of it."""

    digest: str
    title: str
    report: Report


def list_tasks(spec: Spec) -> list[SweepTask]:
    """Every run of a sweep in the order it is done: a whole round of all, then the next repeat.

    Raises `SettingsError` for a load or a dataset that makes no traffic shape.
    """
    loads = spec.sweep.concurrency
    if not loads:
        raise SettingsError("sweep.concurrency: give the numbers of requests in flight to try")
    datasets = spec.sweep.datasets or {"": {}}
    shaped = [
        (name, load, _shape(spec, name, over, load))
        for name, over in datasets.items()
        for load in loads
    ]
    return [
        SweepTask(
            arm,
            repeat,
            shape.model_copy(update={"seed": spec.seed + repeat}),
            _name_run(name, load, arm, repeat),
            name,
            load,
        )
        for repeat in range(spec.ab.repeats)
        for name, load, shape in shaped
        for arm in rotate(spec.ab.arms, repeat)
    ]


def _name_run(dataset: str, load: Load, arm: Component, repeat: int) -> str:
    where = f"{dataset}, " if dataset else ""
    return f"{where}{load.concurrency} in flight, {label(arm)}, repeat {repeat + 1}"


def _shape(spec: Spec, name: str, over: Mapping[str, object], load: Load) -> Spec:
    own = spec.traffic.model_dump(exclude_unset=True, exclude={"preset", "vus", "max_concurrency"})
    try:
        # One spelling, so that what a dataset says replaces what the spec says. The preset is
        # applied.
        given = {name.replace("-", "_"): value for name, value in apply_preset(over).items()}
        laid = {**own, **{name: value for name, value in given.items() if name != "preset"}}
        shape = TrafficShape.model_validate(_set_load(laid, load))
    except ValidationError as error:
        raise SettingsError(f"sweep: {name or 'traffic-shape'}: {list_faults(error)}") from None
    except ValueError as error:
        raise SettingsError(f"sweep: {name}: {error}") from None
    if shape.concurrency is not None and shape.concurrency < spec.processes:
        raise SettingsError(
            f"sweep: {spec.processes} processes cannot share a concurrency of {shape.concurrency}"
        )
    performance = spec.performance.model_copy(update={"traffic_shape": shape})
    made = spec.model_copy(update={"performance": performance})
    if faults := [text for _, text in find_part_faults(made)]:
        raise SettingsError("\n".join(f"sweep: {name}: {fault}" for fault in faults))
    return made


def _set_load(fields: dict[str, object], load: Load) -> dict[str, object]:
    rate = load.req_rate or fields.get("req_rate")
    if rate is not None:
        return {**fields, "req_rate": rate, "max_concurrency": load.concurrency}
    # A closed loop has no arrivals to describe.
    return {
        **{name: fields[name] for name in fields if name != "arrivals"},
        "vus": load.concurrency,
    }


def read_measured(folder: Path) -> dict[str, MeasuredRun]:
    """The runs that a folder has, by digest; a line that was cut off is none, nor one of another version."""
    path, measured = folder / CELLS, {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        with suppress(msgspec.DecodeError):
            one = msgspec.json.decode(line, type=MeasuredRun)
            measured[one.digest] = one
    return measured


def find_missing(
    tasks: Sequence[SweepTask], folder: Path, *, again: bool = False
) -> list[SweepTask]:
    """The runs that are still to be done; `again`: those, too, that are not valid."""
    measured = read_measured(folder)
    if again:
        measured = {digest: one for digest, one in measured.items() if one.report.verdict.is_valid}
    return [task for task in tasks if task.digest not in measured]


async def run_sweep(
    spec: Spec,
    tasks: Sequence[SweepTask],
    run: Run,
    folder: Path,
    on_measured: Callable[[SweepTask, Report], None],
    *,
    board: StatusServer | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Does `tasks` against the spec's router; every run's reports and its line go into `folder`.

    A run that is interrupted is not measured. The router is switched as the spec says, else by who
    reads `board`.
    """
    if not tasks:
        return
    async with open_lab(spec, board, stop) as lab:
        async for task, result, said in run_tasks(tasks, run, lab):
            if result.info.interrupted_s is None:
                write_reports(result, said, folder / task.folder)
                append_measured(folder / CELLS, MeasuredRun(task.digest, task.title, said))
                on_measured(task, said)


def append_measured(path: Path, measured: MeasuredRun) -> None:
    # A line that was cut off must not swallow the next one.
    with path.open("ab") as file:
        file.write(b"\n" * bool(file.tell()) + msgspec.json.encode(measured))


def build_rows(tasks: Sequence[SweepTask], folder: Path) -> list[SweepRow]:
    """The rows of all runs that `folder` has, in the order of `tasks`."""
    measured, rows = read_measured(folder), []
    for task in tasks:
        if one := measured.get(task.digest):
            load = task.load.model_copy(update={"req_rate": task.spec.traffic.req_rate})
            rows.append(build_row(one.report, task.dataset, label(task.arm), task.repeat + 1, load))
    return rows


def find_sweep_faults(tasks: Sequence[SweepTask], folder: Path) -> Iterator[str]:
    """Says what keeps a sweep from being one: runs that are missing, schedules that differ."""
    measured = read_measured(folder)
    missing = sum(task.digest not in measured for task in tasks)
    if missing:
        yield f"partial: {missing} of {len(tasks)} runs are missing; the same command goes on"
    schedules: dict[tuple[str, Load, int], set[str]] = {}
    for task in tasks:
        if one := measured.get(task.digest):
            schedules.setdefault((task.dataset, task.load, task.repeat), set()).add(
                one.report.schedule
            )
    for (dataset, load, repeat), digests in schedules.items():
        if len(digests) > 1:
            name = f"{dataset}, " if dataset else ""
            yield f"{name}{load.concurrency} in flight, repeat {repeat + 1}: the arms' schedules differ"
