"""What the status says of a Benchmark: phase, figures, schedule and conditions. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from extproc.bench.experiments.history import Entry, Line, list_regressions, trace_lines
from extproc.bench.status_server import RunStatus
from extproc.operator.objects import Object, Run
from extproc.operator.resource import Benchmark, write_time
from extproc.operator.router import is_elsewhere
from extproc.operator.runs import find_due, find_next, last_due, split_lines
from extproc.operator.state import JobState, Observation

TOLERANCE: Final = 0.05
COMPARED: Final = 5

_Condition = tuple[str, str, str]


def build_status(
    benchmark: Benchmark,
    observed: Observation,
    run: Run | None,
    history: Sequence[Object],
    now: datetime,
) -> Object:
    running = next(
        (job for job in observed.jobs if run and job.run == run.name and job.started is not None),
        None,
    )
    # The status is about runs of the spec as it is now; runs of earlier specs are in the history.
    same = [entry for entry in history if entry.get("digest") == benchmark.digest]
    last = same[0] if same else None
    phase = _find_phase(benchmark, observed, run, last)
    faults = observed.faults
    status: Object = {
        "observedGeneration": benchmark.generation,
        "phase": phase,
        "verdict": last["verdict"] if last and phase != "Refused" else "",
        "history": [_remember(entry) for entry in history],
        "faults": list(faults or (last or {}).get("faults", ())),
        "remarks": list((last or {}).get("remarks", ())),
    }
    if run is not None:
        status |= _show_running(run, running, observed.notices.get(run.name), benchmark.status)
    elif last is not None:
        status |= _show_ended(Run(benchmark, last["run"]), last)
    status |= _show_figures(last, _find_regressions(benchmark, same))
    if summary := _summarise(status.get("soFar", {}).get("figures") or status.get("figures", {})):
        status["summary"] = summary
    status |= _show_schedule(benchmark, run, observed, now)
    conditions = _list_conditions(observed.faults, phase, last)
    if phase == "Waiting" and is_elsewhere(benchmark, observed.router):
        conditions["Running"] = ("False", "RouterIsTaken", "another Benchmark switches the router")
    start = observed.starts.get(run.name) if run is not None else None
    if phase == "Starting":
        reason = (start.reason if start is not None else "") or "NoPodYet"
        conditions["Running"] = ("False", reason, start.message if start is not None else "")
    status["message"] = _find_message(phase, conditions["Running"], status["faults"])
    turned = _turn(benchmark.status.get("conditions", ()), conditions, benchmark.generation, now)
    return status | {"conditions": turned}


def _find_message(phase: str, running: _Condition, faults: Sequence[str]) -> str:
    """Why it does not run, or did not succeed, for `kubectl get`."""
    if phase in {"Starting", "Waiting"}:
        _, reason, message = running
        return f"{reason}: {message}" if message else reason
    return faults[0] if faults and phase in {"Refused", "Invalid", "Failed"} else ""


def _remember(entry: Object) -> Object:
    return {name: value for name, value in entry.items() if value not in (None, [], {})}


def _find_phase(
    benchmark: Benchmark, observed: Observation, run: Run | None, last: Object | None
) -> str:
    if observed.faults:
        return "Refused"
    if benchmark.operation.suspend:
        return "Suspended"
    if run is not None:
        start = observed.starts.get(run.name)
        return "Running" if start is not None and start.has_started else "Starting"
    if last is not None:
        return str(last["phase"])
    return "Waiting"


def _show_running(
    run: Run, job: JobState | None, notice: RunStatus | None, before: Mapping[str, Any]
) -> Object:
    status: Object = {"run": run.name, "report": run.report}
    if job is None or job.started is None:
        return status
    status["startedAt"] = write_time(job.started)
    before = before if before.get("run") == run.name and "finishedAt" not in before else {}
    return status | _show_progress(notice, before)


def _show_progress(notice: RunStatus | None, before: Mapping[str, Any]) -> Object:
    """What its Pods report, if the progress or the run's part has changed: else there is nothing to write."""
    so_far = before.get("soFar", {})
    is_news = notice is not None and (notice.progress, notice.doing) != (
        before.get("progress", ""),
        so_far.get("doing", ""),
    )
    if notice is None or not is_news:
        return {name: before[name] for name in ("progress", "soFar") if name in before}
    so_far = {"doing": notice.doing, "finished": notice.finished, "figures": dict(notice.figures)}
    if notice.planned is not None:
        so_far["planned"] = notice.planned
    return {"soFar": so_far} | ({"progress": notice.progress} if notice.progress else {})


def _show_ended(run: Run, last: Object) -> Object:
    ended: Object = {name: last[name] for name in ("startedAt", "finishedAt") if name in last}
    status = {"run": run.name, "report": run.report}
    return {**status, "progress": "100%", **ended}


def _show_figures(last: Object | None, regressions: Sequence[str]) -> Object:
    figures = (last or {}).get("figures")
    if not figures:
        return {}
    return {"figures": figures, **({"regressions": list(regressions)} if regressions else {})}


def _summarise(figures: Mapping[str, float]) -> Object:
    summary = {}
    if "req_per_s" in figures:
        summary["requestsPerSecond"] = f"{figures['req_per_s']:.2f}"
    if "ttft_p95_ms" in figures:
        summary["ttftP95"] = f"{figures['ttft_p95_ms']:,.0f} ms"
    return summary


def _find_regressions(benchmark: Benchmark, history: Sequence[Object]) -> list[str]:
    """Compares the last run, if it is valid, with the valid ones before it, all of the same spec."""
    if not history or history[0]["phase"] != "Valid":
        return []
    model = benchmark.spec.target.model or benchmark.spec.endpoint
    return list_regressions(trace_history(benchmark.name, model, history))


def _show_schedule(
    benchmark: Benchmark, run: Run | None, observed: Observation, now: datetime
) -> Object:
    schedule = benchmark.operation.schedule
    if schedule is None:
        return {}
    status: Object = {}
    dues = [job.due for job in observed.jobs if job.due is not None]
    dues += [run.due] if run is not None and run.due is not None else []
    # A time that came while another run went is skipped.
    missed = find_due(schedule, last_due(benchmark, now), now) if run is not None else None
    dues += [missed] if missed is not None else []
    dues = [due for due in dues if due <= now]
    if dues or benchmark.status.get("lastScheduledAt"):
        status["lastScheduledAt"] = write_time(max([*dues, last_due(benchmark, now)]))
    if not benchmark.operation.suspend:
        status["nextRunAt"] = write_time(find_next(schedule, now))
    return status


def _list_conditions(
    faults: Sequence[str], phase: str, last: Object | None
) -> dict[str, _Condition]:
    """Each condition as status, reason and message."""
    planned = ("False", "SpecRefused", "\n".join(faults)) if faults else ("True", "Possible", "")
    is_running = phase == "Running"
    why = {"Suspended": "Suspended", "Waiting": "NothingDue", "Refused": "SpecRefused"}.get(
        phase, "Ended"
    )
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
    before: Iterable[Mapping[str, Any]],
    wanted: Mapping[str, _Condition],
    generation: int,
    now: datetime,
) -> list[Object]:
    """Returns conditions; one with the same status as before keeps its transition time."""
    old = {condition["type"]: condition for condition in before}
    turned = []
    for kind, (status, reason, message) in wanted.items():
        last = old.get(kind, {})
        since = last.get("lastTransitionTime") if last.get("status") == status else None
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


def refuse_status(
    before: Mapping[str, Any], generation: int, message: str, now: datetime
) -> Object:
    """The status of a Benchmark that cannot be read: it says why."""
    refused = {"phase": "Refused", "verdict": "", "observedGeneration": generation}
    planned = ("False", "SpecRefused", message)
    conditions = _turn(before.get("conditions", ()), {"Planned": planned}, generation, now)
    return {**before, **refused, "faults": split_lines(message), "conditions": conditions}


def trace_history(name: str, model: str, runs: Iterable[Mapping[str, Any]]) -> list[Line]:
    """Groups runs by their spec's digest, and compares the last valid one of each with those before it."""
    entries = [
        Entry(
            source=run["run"],
            kind=run.get("digest", ""),
            name=name,
            model=model,
            at=run["finishedAt"],
            is_valid=run["phase"] == "Valid",
            verdict=run["verdict"],
            figures=run.get("figures", {}),
        )
        for run in runs
    ]
    return trace_lines(entries, tolerance=TOLERANCE, runs=COMPARED)
