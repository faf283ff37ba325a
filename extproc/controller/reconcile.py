"""What is to be done about a Benchmark, from what it asks and what there is. Pure.

It keeps nothing: whoever asks again after a crash, anywhere between two actions, gets what is left to do.
Names make that so: a run's name follows from what is asked (and from when it was due), and everything it is
made of has a name that follows from the run's, so that making it twice is making it once. A run that has
ended is in the status before its Jobs may go; a run that is in the status is never begun again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from cronsim import CronSim

from extproc.bench.experiments.history import Entry, trace_lines
from extproc.bench.experiments.history_formats import list_regressions
from extproc.bench.report.brief import Brief, decode_brief
from extproc.bench.report.report import DEFINITIONS
from extproc.controller.objects import LEADER, WORKERS, Object, Run, list_objects
from extproc.controller.resource import Benchmark, read_time, write_time

_TOLERANCE: Final = 0.05
_COMPARED: Final = 5
_DEFINED: Final = ("start", "ttft", "tpot", "itl", "e2e", "goodput", "failed", "percentiles", "throughput")
# A status that changes every second is a write every second.
_PROGRESS_STEP: Final = 5
# A schedule that was missed for longer is not gone through minute by minute: its last time is what counts.
_LOOK_BACK: Final = timedelta(days=8)
# Of a run's name, after the Benchmark's.
_DIGEST: Final = 8


@dataclass(frozen=True, slots=True)
class JobState:
    """A Job of ours, as far as it matters. `failure` is why it failed, in the words of the Job controller."""

    name: str
    run: str
    part: str
    started: datetime | None = None
    finished: datetime | None = None
    failure: str | None = None
    due: datetime | None = None
    is_deleting: bool = False

    @property
    def is_over(self) -> bool:
        return self.finished is not None


@dataclass(frozen=True, slots=True)
class LastWords:
    """What the leader's Pod of a run ended with: its exit status, and its termination message."""

    exit_code: int
    text: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Planned:
    """What the plan says of the spec: why it cannot be run, what to expect, how long it will offer load."""

    faults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    span_s: float | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """What there is: the Benchmark's Jobs, what leaders' Pods said at their end by run, and the plan."""

    jobs: tuple[JobState, ...] = ()
    last_words: Mapping[str, LastWords] = field(default_factory=dict)
    planned: Planned = Planned()


@dataclass(frozen=True, slots=True)
class Create:
    """Makes an object; one that is there already is as good."""

    body: Object


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes a Job and its Pods, which get the time to say what they know; one that is gone is as good."""

    name: str


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replaces the status."""

    status: Object


Action = Create | Delete | WriteStatus


def reconcile(
    benchmark: Benchmark, observed: Observed, now: datetime, *, image: str, token: str
) -> list[Action]:
    """Returns what is to be done now, in this order; nothing where all is as it should be.

    `token` is a fresh secret for a run that begins.
    """
    runs = sorted(
        [*_end_runs(benchmark, observed, now), *_list_history(benchmark)],
        key=lambda entry: str(entry["finishedAt"]),
        reverse=True,
    )
    history = runs[: benchmark.operation.history_limit]
    asked = _find_run(benchmark, observed, runs, now)
    status = _build_status(benchmark, observed, asked, history, now)
    return [
        # A run first, then the status: a time that is noted as gone by is not gone back to.
        *(Create(body) for body in _begin(observed, asked, image, token)),
        # What the status says of a run that ended must not be lost with its Jobs.
        *([WriteStatus(status)] if status != benchmark.status else []),
        *(Delete(name) for name in _list_needless(observed, asked, runs, history)),
    ]


def _begin(observed: Observed, asked: Run | None, image: str, token: str) -> Iterator[Object]:
    """What a run lacks that is to go on; nothing while there are Pods of another one."""
    if asked is None:
        return
    others = [job for job in observed.jobs if job.run != asked.name and not job.is_over]
    is_led = any(job.part == LEADER for job in observed.jobs if job.run == asked.name)
    if not (others or is_led or any(job.is_deleting for job in observed.jobs)):
        yield from list_objects(asked, image, token)


def _list_needless(
    observed: Observed, asked: Run | None, runs: Sequence[Object], history: Sequence[Object]
) -> list[str]:
    """Jobs of runs that may not go on, workers whose leader has ended, and runs that nobody remembers."""
    name = None if asked is None else asked.name
    ended, known = {entry["run"] for entry in runs}, {entry["run"] for entry in history}
    needless = [
        job.name
        for job in observed.jobs
        if not job.is_deleting
        and (
            (not job.is_over and job.run != name)
            or (job.part == WORKERS and job.run in ended)
            or (job.is_over and job.run in ended - known)
        )
    ]
    return list(dict.fromkeys(needless))


def refuse(body: Mapping[str, Any], message: str, now: datetime) -> list[Action]:
    """What is to be done about a Benchmark that cannot be read: it says why, and nothing is begun."""
    status = dict(body.get("status") or {})
    generation = body["metadata"].get("generation", 1)
    status |= {"phase": "Refused", "verdict": "", "observedGeneration": generation, "faults": _lines(message)}
    planned = ("False", "SpecRefused", message)
    status["conditions"] = _turn(status.get("conditions", ()), {"Planned": planned}, generation, now)
    return [WriteStatus(status)] if status != body.get("status") else []


def _lines(message: str) -> list[str]:
    return [line for line in message.splitlines() if line]


def _list_history(benchmark: Benchmark) -> list[Object]:
    return list(benchmark.status.get("history", ()))


def _find_run(
    benchmark: Benchmark, observed: Observed, history: Sequence[Object], now: datetime
) -> Run | None:
    """The run that is to go on or to begin; `None` if nothing is due, or nothing may be begun."""
    if benchmark.operation.suspend or observed.planned.faults:
        return None
    stem = f"{benchmark.name}-{benchmark.digest}"
    ended = {entry["run"] for entry in history}
    for job in observed.jobs:
        if job.part == LEADER and not job.is_over and not job.is_deleting and job.run.startswith(stem):
            return Run(benchmark, job.run, job.due)
    if benchmark.operation.schedule is None:
        return None if stem in ended else Run(benchmark, stem)
    due = find_due(benchmark.operation.schedule, _last_due(benchmark), now)
    if due is None:
        return None
    name = f"{stem}-{int(due.timestamp()) // 60}"
    return None if name in ended else Run(benchmark, name, due)


def _last_due(benchmark: Benchmark) -> datetime:
    """From when on a schedule counts: its last run, else since when there is a Benchmark."""
    last = benchmark.status.get("lastScheduledAt")
    return read_time(last) if last else benchmark.created


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


def _end_runs(benchmark: Benchmark, observed: Observed, now: datetime) -> Iterator[Object]:
    """Yields what the status shall remember of runs that have ended and are not in it yet."""
    known = {entry["run"] for entry in _list_history(benchmark)}
    over = [job for job in observed.jobs if job.part == LEADER and job.is_over and job.run not in known]
    for job in over:
        yield _enter(job, observed.last_words.get(job.run), benchmark, now)


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


def _judge(job: JobState, words: LastWords | None, brief: Brief | None) -> tuple[str, str, Sequence[str]]:
    """Phase, verdict and faults: a run without a report of its own is no verdict, but a failure."""
    if brief is not None:
        return ("Valid" if brief.is_good else "Invalid"), brief.title, brief.faults
    if words is None:
        return "Failed", "failed", [job.failure or "the leader's Pod is gone without a word"]
    told = _lines(words.text)[-5:] or [words.reason or f"exit status {words.exit_code}"]
    return "Failed", "failed", told


def _build_status(
    benchmark: Benchmark, observed: Observed, asked: Run | None, history: Sequence[Object], now: datetime
) -> Object:
    running = next(
        (j for j in observed.jobs if asked and j.run == asked.name and j.part == LEADER and not j.is_over),
        None,
    )
    # What the status says is of what is asked now; what was asked before is in the history.
    same = [entry for entry in history if entry.get("digest") == benchmark.digest]
    last = same[0] if same else None
    phase = _find_phase(benchmark, observed, asked, last)
    faults = observed.planned.faults
    status: Object = {
        "observedGeneration": benchmark.generation,
        "phase": phase,
        "verdict": last["verdict"] if last and phase != "Refused" else "",
        "history": [_remember(entry) for entry in history],
        "faults": list(faults or (last or {}).get("faults", ())),
        "remarks": list((last or {}).get("remarks", observed.planned.remarks)),
    }
    if asked is not None:
        status |= _tell_running(asked, running, observed.planned.span_s, now)
    elif last is not None:
        status |= _tell_ended(Run(benchmark, last["run"]), last)
    status |= _tell_figures(last, _find_regressions(benchmark, same))
    status |= _tell_schedule(benchmark, asked, observed, now)
    conditions = _list_conditions(observed.planned.faults, phase, last)
    turned = _turn(benchmark.status.get("conditions", ()), conditions, benchmark.generation, now)
    return status | {"conditions": turned}


def _remember(entry: Object) -> Object:
    return {name: value for name, value in entry.items() if value not in (None, [], {})}


def _find_phase(benchmark: Benchmark, observed: Observed, asked: Run | None, last: Object | None) -> str:
    if observed.planned.faults:
        return "Refused"
    if benchmark.operation.suspend:
        return "Suspended"
    if asked is not None:
        return "Running"
    if last is not None:
        return str(last["phase"])
    return "Waiting"


def _tell_running(run: Run, job: JobState | None, span_s: float | None, now: datetime) -> Object:
    told: Object = {"run": run.name, "report": run.report}
    if job is not None and job.started is not None:
        told["startedAt"] = write_time(job.started)
        if span_s:
            told["progress"] = show_progress((now - job.started).total_seconds() / span_s)
    return told


def _tell_ended(run: Run, last: Object) -> Object:
    ended: Object = {name: last[name] for name in ("startedAt", "finishedAt") if name in last}
    return {"run": run.name, "report": run.report, "progress": "100%", **ended}


def show_progress(share: float) -> str:
    """In steps, and never all of it while a run goes: its last answers take their time."""
    steps = int(share * 100 / _PROGRESS_STEP)
    return f"{max(0, min(steps * _PROGRESS_STEP, 100 - _PROGRESS_STEP))}%"


def _tell_figures(last: Object | None, regressions: Sequence[str]) -> Object:
    figures = (last or {}).get("figures")
    if not figures:
        return {}
    summary = {}
    if "req_per_s" in figures:
        summary["requestsPerSecond"] = f"{figures['req_per_s']:.2f}"
    if "ttft_p95_ms" in figures:
        summary["ttftP95"] = f"{figures['ttft_p95_ms']:,.0f} ms"
    told: Object = {
        "figures": figures,
        "summary": summary,
        "definitions": {name: DEFINITIONS[name] for name in _DEFINED},
    }
    return told | ({"regressions": list(regressions)} if regressions else {})


def _find_regressions(benchmark: Benchmark, history: Sequence[Object]) -> list[str]:
    """Holds the last run, if it is valid, against the valid ones before it; all asked the same."""
    if not history or history[0]["phase"] != "Valid":
        return []
    entries = [
        Entry(
            source=entry["run"],
            kind="",
            name=benchmark.name,
            model=benchmark.spec.target.model or benchmark.spec.endpoint,
            at=entry["finishedAt"],
            is_valid=entry["phase"] == "Valid",
            verdict=entry["verdict"],
            version="",
            labels={},
            stack={},
            figures=entry.get("figures", {}),
        )
        for entry in history
    ]
    return list_regressions(trace_lines(entries, tolerance=_TOLERANCE, runs=_COMPARED))


def _tell_schedule(benchmark: Benchmark, asked: Run | None, observed: Observed, now: datetime) -> Object:
    schedule = benchmark.operation.schedule
    if schedule is None:
        return {}
    told: Object = {}
    dues = [job.due for job in observed.jobs if job.due is not None]
    dues += [asked.due] if asked is not None and asked.due is not None else []
    # What was due while another run went is left out, not made up for.
    missed = find_due(schedule, _last_due(benchmark), now) if asked is not None else None
    dues += [missed] if missed is not None else []
    last = benchmark.status.get("lastScheduledAt")
    if dues or last:
        told["lastScheduledAt"] = write_time(max([*dues, *([read_time(last)] if last else [])]))
    if not benchmark.operation.suspend:
        told["nextRunAt"] = write_time(find_next(schedule, now))
    return told


_Condition = tuple[str, str, str]


def _list_conditions(faults: Sequence[str], phase: str, last: Object | None) -> dict[str, _Condition]:
    """Each condition as status, reason and message."""
    planned = ("False", "SpecRefused", "\n".join(faults)) if faults else ("True", "Possible", "")
    is_running = phase == "Running"
    why = {"Suspended": "Suspended", "Waiting": "NothingDue", "Refused": "SpecRefused"}.get(phase, "Ended")
    made = {
        "Planned": planned,
        "Running": ("True", "JobIsActive", "") if is_running else ("False", why, ""),
    }
    if last is None:
        return made | {"Valid": ("Unknown", "NoRunYet", ""), "Failed": ("False", "NoRunYet", "")}
    has_failed = last["phase"] == "Failed"
    message = "\n".join(last.get("faults", ()))
    valid = {
        "Valid": ("True", "Measured", ""),
        "Invalid": ("False", "NoMeasurement", message),
        "Failed": ("Unknown", "RunFailed", ""),
    }[last["phase"]]
    failed = ("True", "RunFailed", message) if has_failed else ("False", "RunEnded", "")
    return made | {"Valid": valid, "Failed": failed}


def _turn(
    before: Iterable[Mapping[str, Any]], wanted: Mapping[str, _Condition], generation: int, now: datetime
) -> list[Object]:
    """Returns conditions; one that says the same as before has done so since then."""
    known = {condition["type"]: condition for condition in before}
    turned = []
    for kind, (status, reason, message) in wanted.items():
        old = known.get(kind, {})
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        turned.append(
            {
                "type": kind,
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": since or write_time(now),
                "observedGeneration": generation,
            }
        )
    return turned
