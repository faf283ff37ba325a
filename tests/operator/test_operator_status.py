"""A status that somebody wrote: what the API server lets through, the operator can live with."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.operator.resource import read_time, write_time
from tests.operator.structural import list_refusals
from tests.operator.world import STATUS, World, brief

TIMES = st.integers(-30_000_000_000, 250_000_000_000).map(
    lambda at: write_time(datetime.fromtimestamp(at, UTC))
)


PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=5),
    "integer": st.integers(-(2**63), 2**63 - 1),
    "number": st.floats(allow_nan=False, allow_infinity=False),
}


def allowed_by(schema: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Whatever the API server stores in such a field."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if schema["type"] == "array":
        return st.lists(allowed_by(schema["items"]), max_size=2)
    if schema["type"] != "object":
        return TIMES if schema.get("format") == "date-time" else PLAIN[schema["type"]]
    if "additionalProperties" in schema:
        return st.dictionaries(st.text(max_size=5), allowed_by(schema["additionalProperties"]), max_size=2)
    fields = {name: allowed_by(field) for name, field in schema["properties"].items()}
    needed = {name: fields.pop(name) for name in schema.get("required", ())}
    return st.fixed_dictionaries(needed, optional=fields)


ANY_STATUS = allowed_by(STATUS)


@settings(deadline=None)
@given(ANY_STATUS, st.sampled_from([None, "*/5 * * * *"]))
def test_whatever_the_schema_lets_through_the_run_goes_its_way(status: Any, schedule: str | None) -> None:
    """Written before it began, it is run all the same; a schedule goes on by the clock that there is."""
    world = World(status=status)
    if schedule:
        world.spec |= {"schedule": schedule}
    world.settle()
    world.after(minutes=5)
    world.settle()

    if schedule:
        assert world.active()
    if world.active():
        run = world.end(brief())
        world.settle()
        assert run in {entry["run"] for entry in world.status["history"]} | {run}
    assert list_refusals(STATUS, world.status) == []


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"run": "b-1", "finishedAt": "2026-11-22T12:00:00Z", "verdict": "valid", "digest": "1"},
        {
            "run": "b-1",
            "finishedAt": "2026-11-22T12:00:00Z",
            "verdict": "valid",
            "digest": "1",
            "phase": "Fine",
        },
        {"run": "b-1", "finishedAt": "soon", "verdict": "valid", "digest": "1", "phase": "Valid"},
        {"run": "b-1", "finishedAt": "0000-01-01T00:00:00Z", "verdict": "", "digest": "1", "phase": "Valid"},
    ],
    ids=["nothing", "no phase", "no such phase", "no time", "no year"],
)
def test_history_that_nobody_could_read_is_refused_by_the_api_server(entry: dict[str, str]) -> None:
    assert list_refusals(STATUS, {"history": [entry]}) != []


def test_what_another_version_of_the_operator_wrote_is_written_over_once() -> None:
    """A field that is not ours goes with the next status; it does not make every look a write."""
    world = World()
    world.settle()
    world.status |= {"fromTheFuture": {"x": 1}}
    world.settle()

    assert "fromTheFuture" not in world.status
    assert world.decide() == []


def test_field_of_another_version_ends_the_run_and_is_named() -> None:
    """The definition is newer than the operator: a field that it does not know may mean anything."""
    world = World()
    world.settle()
    world.change(new_field=1)
    world.settle()

    assert (world.status["phase"], world.jobs) == ("Refused", {})
    assert "new-field" in world.status["faults"][0]


def test_time_without_a_zone_is_utc_and_one_with_is_turned_into_it() -> None:
    assert read_time("2026-11-22T12:00:00") == datetime(2026, 11, 22, 12, tzinfo=UTC)
    assert read_time("2026-11-22T12:00:00+02:00").hour == 10
