"""The runs of a Benchmark: which one is to go on or to begin, and what became of those that ended. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from cronsim import CronSim

from extproc.bench.report.brief import Brief, decode_brief
from extproc.operator.objects import MAIN, PARTS, Object, Run
from extproc.operator.resource import Benchmark, read_time, write_time
from extproc.operator.router import is_elsewhere
from extproc.operator.state import JobState, LastWords, Observation, PodStart

# A schedule that was missed for longer is not gone through minute by minute: its last time is what
# counts.
_LOOK_BACK: Final = timedelta(days=8)
# The kubelet's words for what no time mends: a Secret or key that is not there, no name of an
# image.
_LASTING_REASONS: Final = frozenset(
    {"CreateContainerConfigError", "InvalidImageName", "ErrImageNeverPull"}
)
_HEALS_WITHIN: Final = timedelta(seconds=60)
# Of a run's name, after the Benchmark's.
_DIGEST: Final = 8


def find_run(
    benchmark: Benchmark, observed: Observation, history: Sequence[Object], now: datetime
) -> Run | None:
    """The run that is to go on or to begin; `None` if nothing is due, or nothing may be begun."""
    if benchmark.operation.suspend or observed.faults:
        return None
    stem = benchmark.stem
    ended = {entry["run"] for entry in history}
    for job in observed.jobs:
        goes_on = job.run not in ended and not job.is_deleting
        # Parts that are over are still to be merged.
        if goes_on and job.run.startswith(stem) and (job.part == PARTS or not job.is_over):
            return Run(benchmark, job.run, job.due)
    if is_elsewhere(benchmark, observed.router):
        return None
    if benchmark.operation.schedule is None:
        return None if stem in ended else Run(benchmark, stem)
    due = find_due(benchmark.operation.schedule, last_due(benchmark, now), now)
    if due is None:
        return None
    name = f"{stem}-{int(due.timestamp()) // 60}"
    return None if name in ended else Run(benchmark, name, due)


def last_due(benchmark: Benchmark, now: datetime) -> datetime:
    """From when on a schedule counts: its last run, else since when there is a Benchmark.

    What a clock that was ahead has written is not waited for.
    """
    last = benchmark.status.get("lastScheduledAt")
    return min(read_time(last) if last else benchmark.created, now)


def find_due(schedule: str, after: datetime, now: datetime) -> datetime | None:
    """The last time in `(after, now]`, `None` if there is none; times before a week ago are forgotten."""
    times = CronSim(schedule, max(after, now - _LOOK_BACK))
    due = None
    for at in times:
        if at > now:
            break
        due = at
    return due


def find_next(schedule: str, now: datetime) -> datetime:
    return next(CronSim(schedule, now))


def end_runs(benchmark: Benchmark, observed: Observation, now: datetime) -> Iterator[Object]:
    """Yields the history's entries of runs that have ended and are not in it yet."""
    recorded = {entry["run"] for entry in list_history(benchmark)}
    for job in observed.jobs:
        if job.run in recorded:
            continue
        started = [
            each.started
            for each in observed.jobs
            if each.run == job.run and each.started is not None
        ]
        whole = replace(job, started=min(started, default=None))
        start = observed.starts.get(job.run)
        if job.is_over and job.part == MAIN:
            yield _enter(whole, observed.last_words.get(job.run), benchmark, now)
        elif not job.is_over and start is not None and _never_heals(start, now):
            yield _enter(whole, LastWords(1, describe_start(start)), benchmark, now)


def _never_heals(start: PodStart, now: datetime) -> bool:
    """Whether only a changed spec helps; a Secret that is applied a little later may still come."""
    is_late = start.since is not None and now - start.since > _HEALS_WITHIN
    return start.reason in _LASTING_REASONS and is_late


def describe_start(start: PodStart) -> str:
    return ": ".join(part for part in (start.reason, start.message) if part)


def _enter(job: JobState, words: LastWords | None, benchmark: Benchmark, now: datetime) -> Object:
    brief = None if words is None else decode_brief(words.text)
    phase, verdict, faults = _judge(job, words, brief)
    entry: Object = {
        "run": job.run,
        "digest": job.run.removeprefix(f"{benchmark.name}-")[:_DIGEST],
        "finishedAt": write_time(job.finished or now),
        "phase": phase,
        "verdict": verdict,
        "faults": list(faults),
    }
    if job.started is not None:
        entry["startedAt"] = write_time(job.started)
    if brief is not None:
        entry |= {"figures": dict(brief.figures), "remarks": list(brief.remarks)}
    return entry


def _judge(
    job: JobState, words: LastWords | None, brief: Brief | None
) -> tuple[str, str, Sequence[str]]:
    """Phase, verdict and faults: a run without a report of its own is no verdict, but a failure."""
    if brief is not None:
        return ("Valid" if brief.is_good else "Invalid"), brief.title, brief.faults
    if words is None:
        return "Failed", "failed", [job.failure or "its Pod is gone without a word"]
    words_of_pod = split_lines(words.text)[-5:] or [
        words.reason or f"exit status {words.exit_code}"
    ]
    return "Failed", "failed", words_of_pod


def list_history(benchmark: Benchmark) -> list[Object]:
    return list(benchmark.status.get("history", ()))


def split_lines(message: str) -> list[str]:
    return [line for line in message.splitlines() if line]
