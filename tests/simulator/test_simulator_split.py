"""A fleet whose prompts some endpoints compute for the others."""

import pytest
from click.testing import CliRunner

from extproc.errors import SettingsError
from extproc.simulator.commands import simulate as command
from extproc.simulator.engine.engine import Engine
from extproc.simulator.engine.profiles import find_profile
from extproc.simulator.fleet.changes import FleetChange, Kind
from extproc.simulator.fleet.fleet import FleetRun, Setup, simulate_fleet
from extproc.simulator.fleet.gateway import Routing
from extproc.simulator.fleet.split import DECIDERS, FleetSplit
from extproc.simulator.fleet.split_table import run_split
from extproc.simulator.fleet.traffic import Traffic
from tests.simulator.prompts import planned
from tests.tables import table

H100 = find_profile("h100-llama8b-bf16")


def serve_split(decider: str, *tokens: int, changes: tuple[FleetChange, ...] = ()) -> FleetRun:
    """Two endpoints, of which one only prefills, serve a chat of prompts of these lengths, 10 tokens out each."""
    routing = Routing("prefix_cache", {"engine": H100.name}, split=FleetSplit(1, decider))
    session = planned(1, *((length, 10) for length in tokens))
    return simulate_fleet(Setup([H100], 2, routing, Traffic(), changes), [session])


def test_an_engine_that_gets_a_computed_prompt_has_one_step_to_its_first_token() -> None:
    engine = Engine[list[int]](H100)
    engine.add_hashed("a", 8_000, [*range(500)], 2, now=0.0, is_computed=True)
    first = engine.step(0.0)

    assert (first.prefill_tokens, first.prefilled) == (1, ("a",))
    assert engine.step(first.ends_at).finished == ("a",)
    assert engine.cached_tokens([*range(500)], 8_000)[0] == 7_984


def test_a_request_takes_both_steps_and_the_transfer() -> None:
    (flight,) = serve_split("Dynamo", 8_000).flights
    prefill_s = H100.step_s(8_000, 8_000)
    moved_s = FleetSplit(1).transfer.way_ms(8_000) / 1000

    assert flight.ttft_s == pytest.approx(prefill_s + moved_s + H100.step_s(8_000, 1), abs=1e-4)
    assert flight.e2e_s > flight.ttft_s
    assert moved_s == pytest.approx(8_000 * 131_072 * 8 / 1e11)


@table(
    "decider, expected",
    [
        ("llm-d 0", ["remote_prefill", "remote_prefill"]),
        ("llm-d 512", ["remote_prefill", "local_prefill"]),
        ("Dynamo", ["remote_prefill", "remote_prefill"]),
        ("ours", ["local_prefill", "session"]),
    ],
)
def test_each_rule_decides_as_it_says(decider: str, expected: list[str]) -> None:
    """An idle endpoint, a first prompt of 4,000 tokens and a second that adds 100."""
    run = serve_split(decider, 4_000, 4_110)

    assert [flight.reason for flight in run.flights] == expected
    assert all(flight.is_answered for flight in run.flights)


def test_a_fixed_threshold_waits_for_prefill_engines_and_the_cost_does_not() -> None:
    rows = {rule: run_split("long-short", 2, rule, (0, 10)) for rule in ("llm-d 512", "ours")}

    assert rows["llm-d 512"].ttft_ms > 10 * rows["ours"].ttft_ms
    assert 0 < rows["ours"].remote < rows["llm-d 512"].remote == 1


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(SettingsError, match="no changes"):
        serve_split("ours", 100, changes=(FleetChange(1, Kind.CRASH, 1),))
    alone = Setup([H100], 2, Routing("prefix_cache", split=FleetSplit(2)), Traffic())
    with pytest.raises(SettingsError, match="2 cannot only prefill"):
        simulate_fleet(alone, [planned(1, (100, 1))])


def test_the_command_says_first_where_a_split_does_not_pay() -> None:
    options = "prefill --workload agents --prefill 2 --measured-s 1"
    lines = CliRunner().invoke(command, options.split()).output.splitlines()

    assert lines[0] == "agents: a split does not pay (tool agents, 60 system prompts of 5,500)"
    assert [line.partition(" ")[0] for line in lines].count("agents") == 1 + len(DECIDERS)
