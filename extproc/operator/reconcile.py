"""What is to be done about a Benchmark, from what it asks and what there is. Pure.

It keeps nothing: whoever asks again after a crash, anywhere between two actions, gets what is left to do.
Names make that so: a run's name follows from what is asked (and from when it was due), and everything it is
made of has a name that follows from the run's, so that making it twice is making it once. A run that has
ended is in the status before its Jobs may go; a run that is in the status is never begun again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from extproc.operator.objects import MAIN, PARTS, Object, Run, list_objects, merge_job
from extproc.operator.resource import Benchmark
from extproc.operator.router import find_fault, settle_router
from extproc.operator.runs import end_runs, find_run, list_history
from extproc.operator.state import Action, Create, Delete, Observation, Replace, WriteStatus
from extproc.operator.status import build_status, refuse_status


def reconcile(benchmark: Benchmark, observed: Observation, now: datetime, *, image: str) -> list[Action]:
    """Returns what is to be done now, in this order; nothing where all is as it should be.

    A status that somebody has edited beyond reading is written anew: what ended is known by its Jobs.
    """
    try:
        return _reconcile(benchmark, observed, now, image)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        if not benchmark.status:
            raise
        return _reconcile(replace(benchmark, status={}), observed, now, image)


def _reconcile(benchmark: Benchmark, observed: Observation, now: datetime, image: str) -> list[Action]:
    if fault := find_fault(benchmark, observed.router):
        observed = replace(observed, faults=(*observed.faults, fault))
    runs = sorted(
        [*end_runs(benchmark, observed, now), *list_history(benchmark)],
        key=lambda entry: str(entry["finishedAt"]),
        reverse=True,
    )
    history = runs[: benchmark.operation.history_limit]
    asked = find_run(benchmark, observed, runs, now)
    status = build_status(benchmark, observed, asked, history, now)
    notice = observed.notices.get(asked.name) if asked is not None else None
    wanted = None if notice is None else notice.wanted
    return [
        # A router belongs to a run before it begins, and to nobody else.
        *(Replace(body) for body in settle_router(asked, observed.router, observed.held, wanted)),
        # A run first, then the status: a time that is noted as gone by is not gone back to.
        *(Create(body) for body in _begin(observed, asked, image, now)),
        # What the status says of a run that ended must not be lost with its Jobs.
        *([WriteStatus(status)] if status != benchmark.status else []),
        *_list_needless(observed, asked, runs, history),
    ]


def _begin(observed: Observation, asked: Run | None, image: str, now: datetime) -> Iterator[Object]:
    """What a run lacks that is to go on; nothing while there are Pods of another one."""
    if asked is None:
        return
    others = [job for job in observed.jobs if job.run != asked.name and not job.is_over]
    own = {job.part: job for job in observed.jobs if job.run == asked.name}
    if others or MAIN in own or any(job.is_deleting for job in observed.jobs):
        return
    if PARTS not in own:
        yield from list_objects(asked, image, now)
    elif own[PARTS].is_over:
        # However the parts ended: their journals say what is missing.
        yield merge_job(asked, image)


def _list_needless(
    observed: Observation, asked: Run | None, runs: Sequence[Object], history: Sequence[Object]
) -> list[Delete]:
    """Jobs of runs that may not go on, parts whose run has ended, and runs that nobody remembers."""
    name = None if asked is None else asked.name
    ended, known = {entry["run"] for entry in runs}, {entry["run"] for entry in history}
    return [
        Delete(job.name, job.uid)
        for job in observed.jobs
        if not job.is_deleting
        and (
            (not job.is_over and job.run != name)
            or (job.part == PARTS and job.run in ended)
            or (job.is_over and job.run in ended - known)
        )
    ]


def refuse_spec(body: Mapping[str, Any], message: str, observed: Observation, now: datetime) -> list[Action]:
    """What is to be done about a Benchmark that cannot be read: it says why, and nothing of it goes on."""
    before = body.get("status") or {}
    status = refuse_status(before, body["metadata"].get("generation", 1), message, now)
    return [
        *map(Replace, settle_router(None, None, observed.held, None)),
        *([WriteStatus(status)] if status != before else []),
        *_list_needless(observed, None, [], []),
    ]
