"""Runs that are due by the clock, what is remembered of them, and what got worse."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from extproc.bench.experiments.history import list_regressions
from extproc.operator.objects import RUN_LABEL
from extproc.operator.observe import read_starts
from extproc.operator.runs import find_due, find_next
from extproc.operator.state import PodStart
from extproc.operator.status import trace_history
from tests.operator.world import NOON, SPEC, World, brief_json
from tests.tables import table


def run_once(world: World, words: str) -> str:
    """A minute later: begins what is due and ends it with these words; returns its run."""
    world.after(minutes=1)
    world.settle()
    run = world.end(words)
    world.settle()
    return run


def test_schedule_runs_again_and_again_and_leaves_out_what_is_due_meanwhile() -> None:
    """Every ten minutes; the run of 12:10 takes until 12:25, so that the one of 12:20 is left out."""
    world = World(
        spec={**SPEC, "schedule": "*/10 * * * *"}, now=datetime(2026, 11, 22, 11, 5, tzinfo=UTC)
    )
    world.settle()
    assert world.jobs == {}
    assert (world.status["phase"], world.status["nextRunAt"]) == ("Waiting", "2026-11-22T11:10:00Z")

    world.after(minutes=6)
    world.settle()
    first = world.active()[0].run
    world.after(minutes=14)
    world.settle()
    assert [job.run for job in world.active()] == [first]
    world.end(brief_json(req_per_s=10))
    world.settle()
    assert (world.active(), world.status["lastScheduledAt"]) == ([], "2026-11-22T11:20:00Z")

    world.after(minutes=6)
    world.settle()
    assert len(world.active()) == 1
    assert world.active()[0].run != first


def test_history_has_a_limit_and_what_it_forgets_loses_its_job() -> None:
    world = World(spec={**SPEC, "schedule": "* * * * *", "history-limit": 3})
    runs = [run_once(world, brief_json(req_per_s=10)) for _ in range(6)]

    assert [entry["run"] for entry in world.status["history"]] == runs[:2:-1]
    assert sorted(job.run for job in world.jobs.values()) == sorted(runs[3:])


@table("workers", [1, 2])
def test_schedule_leaves_nothing_behind_with_each_run_but_the_jobs_that_are_remembered(
    workers: int,
) -> None:
    """After many runs there is as much as after few: what belongs to no Job is of all runs."""
    world = World(spec={**SPEC, "schedule": "* * * * *", "history-limit": 2, "workers": workers})
    counts = []
    for _ in range(8):
        run_once(world, brief_json(req_per_s=10))
        counts.append(len(world.objects))

    assert counts[3:] == 5 * counts[2:3]


def test_run_that_got_worse_is_reported_beside_its_verdict() -> None:
    world = World(spec={**SPEC, "schedule": "* * * * *"})
    for rate in (10.0, 10.1, 9.9, 8.0):
        run_once(world, brief_json(req_per_s=rate))
        assert ("regressions" in world.status) == (rate == 8.0)

    assert "req/s 8.00, before 10.00" in world.status["regressions"][0]
    run_once(world, brief_json(is_good=False, title="invalid: client-limited", req_per_s=1))
    assert "regressions" not in world.status


@table(
    ("after", "now", "due"),
    [
        ("11:00", "11:09", None),
        ("11:00", "11:10", "11:10"),
        ("11:10", "11:10", None),
        ("11:00", "11:35", "11:30"),
    ],
)
def test_schedule_is_due_once_however_late_one_looks(after: str, now: str, due: str | None) -> None:
    def at(text: str) -> datetime:
        return datetime.fromisoformat(f"2026-11-22T{text}:00+00:00")

    assert find_due("*/10 * * * *", at(after), at(now)) == (None if due is None else at(due))
    # A long silence is not gone through minute by minute.
    assert find_due("* * * * *", NOON - timedelta(days=3650), NOON) == NOON


@table("ahead", [timedelta(minutes=90), timedelta(days=400)])
def test_schedule_goes_on_after_a_clock_that_was_ahead_is_set_right(ahead: timedelta) -> None:
    """A node without a clock of its own begins in the future; its runs there are not waited for."""
    world = World(spec={**SPEC, "schedule": "*/10 * * * *"}, now=NOON + ahead)
    world.settle()
    world.end(brief_json(req_per_s=10))
    world.settle()
    early = world.status["run"]
    world.now = NOON + timedelta(minutes=1)
    world.settle()
    assert world.active() == []
    world.after(minutes=10)
    world.settle()

    assert [job.run != early for job in world.active()] == [True]
    assert world.status["lastScheduledAt"] == "2026-11-22T12:10:00Z"


def test_clock_that_is_set_back_a_little_does_not_run_a_time_twice() -> None:
    world = World(spec={**SPEC, "schedule": "*/10 * * * *"}, now=NOON + timedelta(seconds=1))
    world.settle()
    run = world.end(brief_json(req_per_s=10))
    world.settle()
    world.after(seconds=-30)
    world.settle()
    world.after(seconds=60)
    world.settle()

    assert (world.active(), world.made.count(f"Job/{run}")) == ([], 1)


@pytest.fixture
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@table("day", ["2026-03-29", "2026-10-25"])
@pytest.mark.usefixtures("_berlin")
def test_schedule_knows_no_summer_time(day: str) -> None:
    """Wherever the operator runs: a day on which Berlin skips or repeats an hour has 24 runs."""
    at = datetime.fromisoformat(f"{day}T00:30:00+00:00")
    world = World(spec={**SPEC, "schedule": "0 * * * *"}, now=at)
    world.status = {"lastScheduledAt": f"{day}T00:00:00Z"}
    runs = []
    for _ in range(48):
        world.after(minutes=30)
        world.settle()
        if world.active():
            runs.append(world.end(brief_json()))
            world.settle()

    assert len(set(runs)) == len(runs) == 24
    skipped = datetime.fromisoformat(f"{day}T02:30:00+00:00")
    assert find_next("30 2 * * *", at) == skipped
    assert find_due("30 2 * * *", at, skipped) == skipped
    assert find_due("30 2 * * *", at, skipped - timedelta(minutes=1)) is None


def test_runs_are_held_against_those_of_the_same_load_alone() -> None:
    def run(digest: str, day: int, ttft_ms: float) -> dict[str, object]:
        status = {"run": f"r-{day}", "digest": digest, "phase": "Valid", "verdict": "valid"}
        return {**status, "finishedAt": f"2026-11-{day}", "figures": {"ttft_median_ms": ttft_ms}}

    others = [run("a", 10, 100.0), run("b", 11, 900.0)]

    assert list_regressions(trace_history("b", "m", others)) == []
    assert len(list_regressions(trace_history("b", "m", [*others, run("a", 12, 900.0)]))) == 1


def test_a_pod_that_no_node_takes_says_why() -> None:
    lack = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "no cpu",
    }
    pod = {
        "metadata": {"labels": {RUN_LABEL: "r"}},
        "status": {"phase": "Pending", "conditions": [lack]},
    }

    assert read_starts([pod]) == {"r": PodStart(False, "Unschedulable", "no cpu", None)}
