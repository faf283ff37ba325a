"""What to do about a Benchmark, from its spec and the Jobs that exist. Pure.

It has no memory: called again after a crash, anywhere between two actions, it returns what is left
to do. Names make that so: a run's name follows from the spec's digest (and from when it was due),
and the names of its objects follow from the run's, so that creating one twice is creating it once.
A run that has ended is in the status before its Jobs may go; a run that is in the status is never
begun again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from extproc.bench.experiments.run import split_over_machines
from extproc.bench.experiments.sweep import list_tasks
from extproc.errors import SettingsError
from extproc.operator.objects import MAIN, PARTS, Object, Run, list_objects, merge_job
from extproc.operator.resource import Benchmark
from extproc.operator.router import find_fault, give_back, settle_router
from extproc.operator.runs import end_runs, find_run, list_history
from extproc.operator.state import (
    Action,
    Create,
    Delete,
    Observation,
    Replace,
    Seen,
    WriteStatus,
)
from extproc.operator.status import build_status, refuse_status


def decide(seen: Seen, now: datetime, *, image: str) -> list[Action]:
    """Returns what is to be done about a Benchmark as it was found."""
    if seen.body is None or seen.is_gone:
        return [Replace(give_back(each)) for each in seen.observed.switched]
    if seen.benchmark is None:
        return refuse_spec(seen.body, seen.refused, seen.observed, now)
    observed = replace(seen.observed, faults=find_spec_faults(seen.benchmark))
    return reconcile(seen.benchmark, observed, now, image=image)


def find_spec_faults(benchmark: Benchmark) -> tuple[str, ...]:
    """Why a spec cannot be run, as far as that shows without its dataset: its Pods find out the rest."""
    try:
        if benchmark.operation.mode == "sweep":
            list_tasks(benchmark.spec)
        split_over_machines(benchmark.spec, benchmark.operation.workers)
    except SettingsError as error:
        return (str(error),)
    return ()


def reconcile(
    benchmark: Benchmark, observed: Observation, now: datetime, *, image: str
) -> list[Action]:
    """Returns what is to be done now, in this order; an empty list where nothing is.

    A status that somebody has edited beyond reading is written anew: the Jobs say which runs ended.
    """
    try:
        return _reconcile(benchmark, observed, now, image)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        if not benchmark.status:
            raise
        return _reconcile(replace(benchmark, status={}), observed, now, image)


def _reconcile(
    benchmark: Benchmark, observed: Observation, now: datetime, image: str
) -> list[Action]:
    if fault := find_fault(benchmark, observed.router):
        observed = replace(observed, faults=(*observed.faults, fault))
    runs = sorted(
        [*end_runs(benchmark, observed, now), *list_history(benchmark)],
        key=lambda entry: str(entry["finishedAt"]),
        reverse=True,
    )
    history = runs[: benchmark.operation.history_limit]
    run = find_run(benchmark, observed, runs, now)
    status = build_status(benchmark, observed, run, history, now)
    notice = observed.notices.get(run.name) if run is not None else None
    wanted = None if notice is None else notice.wanted
    return [
        # A router belongs to a run before it begins, and to nobody else.
        *(Replace(body) for body in settle_router(run, observed.router, observed.switched, wanted)),
        # A run first, then the status: a due time that the status has is not run again.
        *(Create(body) for body in _begin(observed, run, image, now)),
        # The status before the deletions: it has the results of runs whose Jobs go.
        *([WriteStatus(status)] if status != benchmark.status else []),
        *_list_needless(observed, run, runs, history),
    ]


def _begin(observed: Observation, run: Run | None, image: str, now: datetime) -> Iterator[Object]:
    """The objects that a run still lacks; nothing while there are Pods of another run."""
    if run is None:
        return
    others = [job for job in observed.jobs if job.run != run.name and not job.is_over]
    own = {job.part: job for job in observed.jobs if job.run == run.name}
    if others or MAIN in own or any(job.is_deleting for job in observed.jobs):
        return
    if PARTS not in own:
        yield from list_objects(run, image, now)
    elif own[PARTS].is_over:
        # However the parts ended: the merge finds missing ones by their journals.
        yield merge_job(run, image)


def _list_needless(
    observed: Observation, run: Run | None, runs: Sequence[Object], history: Sequence[Object]
) -> list[Delete]:
    """Jobs of runs that must stop, parts whose run has ended, and runs that the history has dropped."""
    name = None if run is None else run.name
    ended, listed = {entry["run"] for entry in runs}, {entry["run"] for entry in history}
    return [
        Delete(job.name, job.uid)
        for job in observed.jobs
        if not job.is_deleting
        and (
            (not job.is_over and job.run != name)
            or (job.part == PARTS and job.run in ended)
            or (job.is_over and job.run in ended - listed)
        )
    ]


def refuse_spec(
    body: Mapping[str, Any], message: str, observed: Observation, now: datetime
) -> list[Action]:
    """What to do about a Benchmark that cannot be read: its status says why, and its runs stop."""
    before = body.get("status") or {}
    status = refuse_status(before, body["metadata"].get("generation", 1), message, now)
    return [
        *map(Replace, settle_router(None, None, observed.switched, None)),
        *([WriteStatus(status)] if status != before else []),
        *_list_needless(observed, None, [], []),
    ]
