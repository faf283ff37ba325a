"""What is done about a Benchmark: what there is, what follows, and a crash between any two acts."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from extproc.bench.status_server import RunStatus
from extproc.operator import observe
from extproc.operator.objects import MAIN, PARTS, RUN_LABEL
from extproc.operator.state import Create, Delete, JobState, PodStart, WriteStatus
from tests.hosting import hosting
from tests.operator.world import SPEC, World, brief_json
from tests.tables import table


def test_benchmark_that_was_applied_is_run_once() -> None:
    """A Job is made and the status says so; it ends, and the status has verdict and figures; nothing more."""
    world, leader = start_run()
    assert (world.status["phase"], world.condition("Running")) == (
        "Running",
        ("True", "JobIsActive"),
    )
    assert world.status["run"] == leader.run

    world.after(seconds=110)
    world.end(brief_json(req_per_s=9.87, ttft_p95_ms=123.4))
    world.settle()
    assert (world.status["phase"], world.status["verdict"]) == ("Valid", "valid")
    assert world.status["summary"] == {"requestsPerSecond": "9.87", "ttftP95": "123 ms"}
    assert world.status["report"] == f"b-results/b/{leader.run}"
    assert world.condition("Valid") == ("True", "Measured")

    world.after(hours=100)
    world.settle()
    assert world.made.count(f"Job/{leader.run}") == 1


def start_run(**fields: Any) -> tuple[World, JobState]:
    """A Benchmark of this spec that runs, and its Job."""
    world = World(spec={**SPEC, **fields})
    world.settle()
    (job,) = world.active()
    return world, job


def test_refused_spec_is_a_condition_with_the_reason_and_no_job_until_it_is_mended() -> None:
    world = World(spec={**SPEC, "performance": {"traffic-shape": {}}})
    world.settle()

    assert world.objects == {}
    assert (world.status["phase"], world.condition("Planned")) == (
        "Refused",
        ("False", "SpecRefused"),
    )
    assert "give req-rate" in world.status["faults"][0]
    world.change(performance=SPEC["performance"])
    world.settle()
    assert (world.status["phase"], world.condition("Planned")) == ("Running", ("True", "Possible"))


def test_spec_that_cannot_be_run_makes_no_job() -> None:
    world = World(faults=("3.1 cores are needed",))
    split = World(spec={**SPEC, "workers": 2, "mode": "saturate"})
    world.settle()
    split.settle()

    assert world.objects == {}
    assert (world.status["phase"], world.status["faults"]) == ("Refused", ["3.1 cores are needed"])
    only = "workers: only mode run can be split over Pods; in saturate one Pod has processes"
    assert split.status["faults"] == [only]


def test_several_workers_are_parts_of_an_indexed_job_and_a_job_that_merges_them() -> None:
    """However the parts ended: what is missing is for the report to say."""
    world = World(spec={**SPEC, "workers": 3, "start-within-seconds": 90})
    world.settle()
    [parts] = world.active()
    job = world.objects["Job", parts.name]["spec"]
    command = job["template"]["spec"]["containers"][0]["command"]

    assert parts.part == PARTS
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 3, 3)
    assert command[-4:] == [
        "--part",
        "$(JOB_COMPLETION_INDEX)/3",
        "--start-at",
        "2026-11-22T12:01:30Z",
    ]
    assert world.objects["PersistentVolumeClaim", "b-results"]["spec"]["accessModes"] == [
        "ReadWriteMany"
    ]

    world.after(minutes=5)
    world.jobs[parts.name] = replace(parts, finished=world.now, failure="BackoffLimitExceeded")
    world.settle()
    [main] = world.active()
    merging = world.objects["Job", main.name]["spec"]["template"]["spec"]["containers"][0][
        "command"
    ]
    assert (main.part, main.run, merging[2]) == (MAIN, parts.run, "report")
    world.end(
        brief_json(is_good=False, title="invalid: share missing", faults=["part 1 of 3 is missing"])
    )
    world.settle()
    assert [job.part for job in world.jobs.values()] == [MAIN]
    assert (world.status["phase"], world.status["message"]) == ("Invalid", "part 1 of 3 is missing")
    assert world.status["startedAt"] == "2026-11-22T12:00:00Z"


CLIENT_LIMITED = brief_json(is_good=False, title="invalid: client-limited", faults=["late"])


@table(
    ("words", "exit_code", "phase", "conditions", "faults"),
    [
        (brief_json(), 0, "Valid", ("True", "False"), []),
        (CLIENT_LIMITED, 3, "Invalid", ("False", "False"), ["late"]),
        ("extproc: no model", 2, "Failed", ("Unknown", "True"), ["extproc: no model"]),
        ("", 137, "Failed", ("Unknown", "True"), ["BackoffLimitExceeded"]),
    ],
)
def test_end_of_a_run_is_a_verdict_or_a_failure(
    words: str, exit_code: int, phase: str, conditions: tuple[str, str], faults: list[str]
) -> None:
    world, _ = start_run()
    world.end(words, exit_code, None if exit_code == 0 else "BackoffLimitExceeded")
    world.settle()

    assert (world.status["phase"], world.status["faults"]) == (phase, faults)
    assert (world.condition("Valid")[0], world.condition("Failed")[0]) == conditions


def test_changed_spec_ends_what_runs_and_begins_when_its_pods_are_gone() -> None:
    world, old = start_run()
    world.change(seed=5)
    for action in world.decide():
        world.act(action)
    assert world.jobs[old.name].is_deleting
    # Its Pods write what they know: nothing is begun beside them.
    assert [type(action) for action in world.decide()] == []
    world.collect()
    world.settle()

    (new,) = world.active()
    assert new.run != old.run
    assert world.status["run"] == new.run


def test_nothing_begins_while_the_runs_own_part_is_being_deleted() -> None:
    """The parts have ended, and somebody deletes their Job: the merge waits until it is gone."""
    world = World(spec={**SPEC, "workers": 2})
    world.settle()
    [parts] = world.active()
    world.jobs[parts.name] = replace(parts, finished=world.now, is_deleting=True)
    begun = [action for action in world.decide() if isinstance(action, Create)]
    world.jobs[parts.name] = replace(parts, finished=world.now)

    assert begun == []
    assert [action for action in world.decide() if isinstance(action, Create)] != []


def test_suspended_benchmark_ends_what_runs_begins_nothing_and_goes_on_later() -> None:
    world = World(spec={**SPEC, "workers": 2})
    world.settle()
    world.change(suspend=True)
    world.settle()
    assert world.jobs == {}
    assert (world.status["phase"], world.condition("Running")) == (
        "Suspended",
        ("False", "Suspended"),
    )
    world.change(suspend=False)
    world.settle()

    assert (len(world.active()), world.status["phase"]) == (1, "Running")


def test_jobs_that_somebody_deleted_are_made_again_and_conditions_say_since_when() -> None:
    world, job = start_run()
    del world.jobs[job.name], world.objects["Job", job.name]
    world.settle()
    assert [each.name for each in world.active()] == [job.name]
    since = {each["type"]: each["lastTransitionTime"] for each in world.status["conditions"]}
    world.after(minutes=1)
    world.end(brief_json())
    world.settle()
    later = {each["type"]: each["lastTransitionTime"] for each in world.status["conditions"]}

    assert later["Planned"] == since["Planned"]
    assert later["Valid"] == later["Running"] == "2026-11-22T12:01:00Z"


@given(st.data())
def test_operator_that_dies_between_any_two_acts_ends_up_where_it_would_have(
    data: st.DataObject,
) -> None:
    """Whenever it is cut off: one run at a time, none that ended is forgotten or done again, and it rests."""
    schedule = data.draw(st.sampled_from([None, "*/2 * * * *"]))
    world = World(spec={**SPEC, "workers": data.draw(st.integers(1, 2)), "history-limit": 50})
    if schedule:
        world.spec["schedule"] = schedule
    ended: set[str] = set()
    for _ in range(data.draw(st.integers(1, 12))):
        actions = world.decide()
        for action in actions[: data.draw(st.integers(0, len(actions)))]:
            world.act(action)
        match data.draw(
            st.sampled_from(["time", "parts", "end", "collect", "change", "suspend", "look"])
        ):
            case "time":
                world.after(minutes=data.draw(st.integers(1, 5)))
            case "parts" if parts := world.active(lambda job: job.part == PARTS):
                world.jobs[parts[0].name] = replace(parts[0], finished=world.now)
            case "end" if world.active(lambda job: job.part == MAIN):
                ended.add(world.end(brief_json(req_per_s=1)))
            case "collect":
                world.collect()
            case "change":
                world.change(seed=data.draw(st.integers(0, 2)))
            case "suspend":
                world.change(suspend=data.draw(st.booleans()))
        assert len(world.active()) <= 1
    world.change(suspend=False)
    world.collect()
    world.settle()

    known = {entry["run"] for entry in world.status["history"]}
    assert ended <= known
    assert len(known) == len(world.status["history"])
    assert {job.run for job in world.active()}.isdisjoint(known)
    assert schedule or world.active() or world.status["run"] in known


def test_job_is_made_last_and_a_run_that_ended_is_in_the_status_before_its_jobs_go() -> None:
    """What was made before a crash is enough."""
    world = World(spec={**SPEC, "workers": 2})
    created = [action.body for action in world.decide() if isinstance(action, Create)]
    assert [body["kind"] for body in created] == ["ConfigMap", "PersistentVolumeClaim", "Job"]
    for action in world.decide()[:2]:
        world.act(action)
    world.settle()
    assert len(world.active()) == 1
    world.end(brief_json())

    assert [type(action) for action in world.decide()] == [WriteStatus, Delete]


def test_progress_is_what_the_pod_reports_written_when_it_has_come_further() -> None:
    """1. Nothing is known before it says something. 2. Its figures so far are what `kubectl get` shows.

    3. The status is not written at every look. 4. The run ends.
    """
    world, leader = start_run()
    assert "progress" not in world.status
    figures = {"req_per_s": 9.5, "ttft_p95_ms": 210.4}
    world.notices[leader.run] = RunStatus("b", "45%", 450, 1000, figures)
    world.settle()
    assert world.status["progress"] == "45%"
    assert world.status["soFar"] == {
        "doing": "b",
        "finished": 450,
        "planned": 1000,
        "figures": figures,
    }
    assert world.status["summary"] == {"requestsPerSecond": "9.50", "ttftP95": "210 ms"}

    world.notices[leader.run] = RunStatus("b", "45%", 457, 1000, figures)
    assert world.decide() == []
    del world.notices[leader.run]  # its Pod did not answer this time
    assert world.decide() == []
    world.notices[leader.run] = RunStatus("b", "46%", 460, 1000, figures)
    assert [type(action) for action in world.decide()] == [WriteStatus]

    world.end(brief_json(req_per_s=9.87))
    world.settle()
    assert world.status["progress"] == "100%"
    assert "soFar" not in world.status
    assert world.status["summary"] == {"requestsPerSecond": "9.87"}


def test_run_whose_pods_wait_is_starting_and_says_what_they_wait_for() -> None:
    """A full cluster heals: however long it takes, the run goes on when its Pod runs."""
    world, leader = start_run()
    full = PodStart(
        False, "Unschedulable", "0/1 nodes are available: 1 Insufficient cpu.", world.now
    )
    world.starts[leader.run] = full
    world.after(hours=1)
    world.settle()
    assert world.status["phase"] == "Starting"
    assert world.status["message"] == f"Unschedulable: {full.message}"
    assert world.condition("Running") == ("False", "Unschedulable")

    del world.starts[leader.run]
    world.settle()
    assert (world.status["phase"], world.status["message"]) == ("Running", "")


@table(
    "reason",
    ["CreateContainerConfigError", "InvalidImageName", "ErrImageNeverPull", "ImagePullBackOff"],
)
def test_run_whose_pods_never_start_fails_with_their_own_reason(reason: str) -> None:
    """What was applied a moment later may come; a registry that is away comes back."""
    world, leader = start_run()
    world.starts[leader.run] = PodStart(False, reason, 'secret "keys" not found', world.now)
    world.after(seconds=30)
    world.settle()
    assert world.status["phase"] == "Starting"
    world.after(seconds=40)
    world.settle()

    heals = reason == "ImagePullBackOff"
    assert world.status["phase"] == ("Starting" if heals else "Failed")
    assert (world.status["message"], bool(world.jobs)) == (
        f'{reason}: secret "keys" not found',
        heals,
    )
    assert world.made.count(f"Job/{leader.run}") == 1


async def test_all_pods_of_a_run_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them answers before all were asked: one after the other, each would be waited for."""
    asked, all_asked = [], asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        asked.append(request)
        if len(asked) == 20:
            all_asked.set()
        await all_asked.wait()
        return web.json_response({"finished": 1})

    pods = [{"metadata": {"labels": {RUN_LABEL: "r"}}} for _ in range(20)]
    async with hosting({"/": answer}) as address:
        monkeypatch.setattr(observe, "find_address", lambda _: f"http://{address}/")
        found = await observe.read_statuses(pods)

    assert found["r"].finished == 20
