"""A status that somebody wrote: the operator can live with it."""

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from extproc.operator.resource import read_time
from tests.operator.world import World, brief

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=2) | st.dictionaries(st.text(max_size=5), inside, max_size=2),
    max_leaves=4,
)
RUN = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("run", "digest", "phase", "verdict", "finishedAt", "figures"), JSON)
)
FIELDS = ("conditions", "faults", "figures", "lastScheduledAt", "progress", "run", "soFar", "startedAt")
ANY_STATUS = st.fixed_dictionaries(
    {}, optional={**dict.fromkeys(FIELDS, JSON), "history": JSON | st.lists(RUN, max_size=2)}
)


@given(ANY_STATUS, st.sampled_from([None, "*/5 * * * *"]))
def test_whatever_somebody_writes_into_a_status_the_run_goes_on(status: Any, schedule: str | None) -> None:
    """Written before it began, it is run all the same; a schedule goes on by the clock that there is."""
    world = World(status=status)
    if schedule:
        world.spec |= {"schedule": schedule}
    world.settle()
    world.after(minutes=5)
    world.settle()
    assert world.active()

    run = world.end(brief())
    world.settle()
    assert run in {entry["run"] for entry in world.status["history"]}


def test_what_another_version_wrote_is_written_over_once_and_its_field_ends_the_run() -> None:
    """A field of a status goes with the next one, and does not make every look a write.

    The definition may be newer than the operator: a field of a spec that it does not know may mean anything.
    """
    world = World()
    world.settle()
    world.status |= {"fromTheFuture": {"x": 1}}
    world.settle()
    assert "fromTheFuture" not in world.status
    assert world.decide() == []
    world.change(new_field=1)
    world.settle()

    assert (world.status["phase"], world.jobs) == ("Refused", {})
    assert "new-field" in world.status["faults"][0]


def test_time_without_a_zone_is_utc_and_one_with_is_turned_into_it() -> None:
    assert read_time("2026-11-22T12:00:00") == datetime(2026, 11, 22, 12, tzinfo=UTC)
    assert read_time("2026-11-22T12:00:00+02:00").hour == 10
