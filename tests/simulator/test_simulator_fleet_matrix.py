"""Cells, arms, scenarios and the matrix: chosen by name, run on all cores, and gone on with."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from extproc.errors import SettingsError
from extproc.simulator.commands import simulate as command
from extproc.simulator.fleet import matrix
from extproc.simulator.fleet.arms import parse_arm
from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.changes import SCENARIOS, FleetChange, Kind
from extproc.simulator.fleet.fleet import simulate_fleet
from extproc.simulator.fleet.progress import ProgressLine
from extproc.simulator.fleet.summary import summarize
from extproc.simulator.fleet.workloads import WORKLOADS
from tests.tables import table

SMALL = MatrixCell(arm="least_load", workload="U", load=0.3, endpoints=2, warmup_s=5, measured_s=20)
AXES: dict[str, Sequence[Any]] = {
    "workload": ["U"],
    "load": [0.3],
    "endpoints": [2],
    "profiles": [("l4-llama8b-fp8",)],
    "warmup_s": [5],
    "measured_s": [20],
    "seed": [1, 2],
    "arm": ["least_load", "prefix_hash:load_factor=1.5"],
}


def fleet(*arguments: str) -> str:
    small = ["--endpoints", "2", "--warmup-s", "0", "--measured-s", "10"]
    return CliRunner().invoke(command, ["fleet", *small, *arguments], catch_exceptions=False).output


def nothing(_share: float, _row: matrix.Row) -> None:
    pass


@table(
    ("text", "fault"),
    [
        ("prefix-cache", "oracle; did you mean prefix_cache?"),
        ("prefix_hash:[", "is no arm"),
        ("prefix_hash:foo=1", "foo"),
        ("prefix_hash:load_factor=.nan", "no number"),
        ("prefix_hash:load_factor=0.5", "below 1"),
    ],
)
def test_arm_is_a_strategy_with_its_options_or_refused(text: str, fault: str) -> None:
    arm = parse_arm("prefix_hash:key=[prompt_head, first_user_message],load_factor=1.5")

    assert arm.strategy == "prefix_hash"
    assert arm.options == {"key": ["prompt_head", "first_user_message"], "load_factor": 1.5}
    with pytest.raises(SettingsError, match=fault):
        parse_arm(text)


def test_cell_asks_for_a_share_of_the_capacity_of_all_endpoints() -> None:
    cell = MatrixCell(arm="random", workload="C", load=0.5, endpoints=4)

    assert cell.rps == pytest.approx(0.5 * WORKLOADS["sessions"].capacity_rps * 4)
    assert replace(cell, rate=7.0).rps == 7
    assert (cell.plan().traffic.until_s, cell.plan().warmup_s) == (800, 300)


def test_cells_that_differ_have_different_digests_and_arms_are_asked_the_same_for_each_seed() -> (
    None
):
    others = [
        replace(SMALL, seed=1),
        replace(SMALL, arm="random"),
        replace(SMALL, scenario="flush"),
    ]
    one, other, same, _ = (
        replace(SMALL, arm=arm, seed=seed).draw()
        for arm in ("random", "least_load")
        for seed in (1, 2)
    )

    assert len({cell.digest for cell in (SMALL, *others)}) == 4
    assert SMALL.digest == replace(SMALL).digest
    assert one == same != other


@table("name", SCENARIOS)
def test_scenario_keeps_to_the_measured_window_and_to_its_endpoints(name: str) -> None:
    changes = SCENARIOS[name](8, 100.0, 500.0)

    assert all(change.at_s == 0 or 100 <= change.at_s < 500 for change in changes)
    assert all(change.endpoint < 8 or change.kind is Kind.JOIN for change in changes)
    assert name == "plain" or changes


def test_rolling_restart_spares_every_request_and_empties_every_cache() -> None:
    tenants = replace(SMALL, workload="T", measured_s=120)
    plain, restarted = (replace(tenants, scenario=name).run() for name in ("plain", "restart"))

    assert restarted.failed == 0
    assert restarted.requests == plain.requests
    assert restarted.hit_rate < plain.hit_rate
    one_by_one = [FleetChange(0, Kind.RESTART, 0, 30), FleetChange(50, Kind.RESTART, 1, 30)]
    assert SCENARIOS["restart"](2, 0, 100) == one_by_one


def test_foreign_sessions_go_past_all_gateways_the_same_for_each_arm() -> None:
    cells = (
        replace(SMALL, arm=arm, scenario="foreign", gateways=2) for arm in ("least_load", "oracle")
    )
    some, same = ([one.reason == "turn" for one in cell.simulate().flights] for cell in cells)

    assert some == same
    assert 0.2 < sum(some) / len(some) < 0.4


def test_a_matrix_has_endpoints_of_two_kinds_where_profiles_are_joined_by_commas(
    tmp_path: Path,
) -> None:
    words = ["matrix", str(tmp_path), "--workload", "U", "--load", ".3", "--endpoints", "2"]
    words += ["--warmup-s", "0", "--measured-s", "10", "--seeds", "1", "--arm", "least_load"]
    kinds = ["--profile", "h100-llama8b-bf16", "--profile", "h100-llama8b-bf16,l4-llama8b-fp8"]
    CliRunner().invoke(command, [*words, *kinds, "--workers", "1"], catch_exceptions=False)
    alone, mixed = matrix.read_done_rows(tmp_path).values()

    assert float(str(mixed["ttft_mean_ms"])) > 1.5 * float(str(alone["ttft_mean_ms"]))


def test_matrix_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    cells = [*matrix.cross(**AXES)]
    first = matrix.run_matrix(cells[:2], tmp_path, 1, nothing, "1")
    with (tmp_path / matrix.CELLS).open("a") as file:
        file.write('{"digest": "cut o')
    told: list[tuple[float, matrix.Row]] = []
    rows = matrix.run_matrix(cells, tmp_path, 2, lambda share, row: told.append((share, row)), "2")

    assert len(cells) == 4
    assert rows[:2] == first
    assert [matrix_row["digest"] for matrix_row in rows] == [cell.digest for cell in cells]
    assert {matrix_row["version"] for _, matrix_row in told} == {"2"}
    assert [share for share, _ in told] == [0.5, 1.0]
    assert len(matrix.read_done_rows(tmp_path)) == 4
    with pytest.raises(SettingsError, match="cannot be written to"):
        matrix.run_matrix(cells, Path("/proc/folder"), 1, nothing, "1")


def test_row_has_all_that_is_needed_to_repeat_it(tmp_path: Path) -> None:
    (matrix_row, *_) = matrix.run_matrix([SMALL], tmp_path, 1, nothing, "1")
    asked = {name: matrix_row[name] for name in MatrixCell.__dataclass_fields__}
    again = MatrixCell(**{**asked, "profiles": tuple(asked["profiles"])})  # type: ignore[arg-type]

    assert again == SMALL
    assert again.run().ttft.mean_ms == matrix_row["ttft_mean_ms"]


def matrix_row(arm: str, seed: int, ttft: float | None, **more: object) -> matrix.Row:
    asked = {name: getattr(SMALL, name) for name in MatrixCell.__dataclass_fields__}
    figures = {"ttft_mean_ms": ttft, "ttft_p99_ms": None, "e2e_mean_ms": 70.0, "hit_rate": 0.5}
    told: matrix.Row = {**figures, "total_tok_per_s": 10.0, "faults": []}
    return {**asked, "arm": arm, "seed": seed, "workload": "C", **told, **more}


def test_table_has_the_median_of_the_seeds_and_each_arm_beside_the_best_other() -> None:
    rows = [matrix_row("a", seed, ttft) for seed, ttft in enumerate((1.0, 2.0, 9.0))]
    rows += [matrix_row("b", seed, 2.0, faults=["slow"]) for seed in range(3)]
    case, head, _, first, second, *words = matrix.render_rows(rows).splitlines()

    assert case == "workload C, load 0.3 of its capacity, endpoints 2"
    names = [re.sub(r"( mean| p\d+)?( ms)?$", "", name) for name in re.split("  +", head)]
    assert [name for name in names[2:] if f"{name}:" not in " ".join(words)] == []
    assert first.split() == [
        "a",
        "3",
        "2.0",
        "1.0-9.0",
        "-",
        "70.0",
        "0.500",
        "10",
        "1.310",
        "4.500",
        "0",
    ]
    assert second.split()[-3:] == ["0.763", "2.000", "3"]


def test_arms_are_compared_seed_by_seed_with_the_best_of_the_others() -> None:
    arms = {
        "a": [matrix_row("a", 1, 100), matrix_row("a", 2, 200), matrix_row("a", 3, 300)],
        "b": [matrix_row("b", 1, 90), matrix_row("b", 2, 220), matrix_row("b", 3, None)],
        "c": [matrix_row("c", 1, 95), matrix_row("c", 2, 205)],
    }

    assert matrix.compare_to_best("c", arms) == pytest.approx({(1, 0): 95 / 90, (2, 0): 205 / 200})
    assert matrix.compare_to_best("a", arms) == pytest.approx({(1, 0): 100 / 90, (2, 0): 200 / 205})
    assert matrix.compare_to_best("a", {"a": arms["a"]}) == {}


def test_progress_shows_percent_and_time_left() -> None:
    out, none, times = StringIO(), StringIO(), iter([0.0, 10.0, 60.0, 100.0])
    progress = ProgressLine(200, out, lambda: next(times))
    for done in (20, 22, 120, 200):
        progress.show(done, f"run {done}")
    progress.close()
    ProgressLine(0, none, lambda: 0.0).show(0)

    # Two per cent more are no news without a terminal.
    assert out.getvalue().splitlines() == [
        " 10%  1:30 left  run 20",
        " 60%  0:40 left  run 120",
        "100%  0:00 left  run 200",
    ]
    assert none.getvalue() == "100%  0:00 left\n"


@table(
    "arguments",
    [
        ["--rate", "nan"],
        ["--warmup-s", "nan"],
        ["--load", "inf"],
        ["--users", "3", "--rate", "4"],
        ["--arm", "prefix_hash:load_factor=.nan"],
        ["--workload", "nope"],
        ["--seed", "a-b"],
        ["--spike", "10:20"],
        ["--slo-ttft-s", "0"],
        ["--preset", "seed-000", "--load", "0.4"],
        ["--preset", "seed-000", "--autoscale", "queue:target=4"],
    ],
)
def test_command_refuses_what_it_cannot_do_in_one_line(arguments: list[str]) -> None:
    result = CliRunner().invoke(command, ["fleet", *arguments], catch_exceptions=False)

    assert result.exit_code == 2
    assert "Error: " in result.output


def test_k6_threads_whose_first_question_is_too_long_are_left_out() -> None:
    sessions = MatrixCell(arm="random", workload="k6-chat", requests=4260, rate=40, seed=369).draw()

    assert all(session.turns for session in sessions)


def test_load_that_is_not_served_is_shouted() -> None:
    text = fleet("--workload", "U", "--load", "3", "--arm", "least_load", "--measured-s", "30")

    assert "\nWARNING  least_load, seed 0: offered" in text


def test_every_run_is_in_the_json_with_what_it_takes_to_repeat_it(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    fleet("--workload", "U", "--load", "0.2", "--seed", "4-5", "--json", str(path))
    found = json.loads(path.read_text())

    assert found["profiles"]["l4-llama8b-fp8"]["prefill_ms_per_token"] == 0.19
    assert [run["cell"]["seed"] for run in found["runs"]] == [4] * 4 + [5] * 4
    assert all(run["figures"]["ttft"]["mean_ms"] > 0 for run in found["runs"])


def test_default_strategy_overfills_no_cache_where_answers_are_long() -> None:
    # The first rung of llm-d's ladder, which fills the caches, and the tenth: 40 requests a second,
    # whose answers leave no room. Here p99 is 416; llm-d's weights 397; without `crowding` 43,531
    # ms.
    cell = MatrixCell(
        arm="prefix_cache:engine=h100-llama8b-bf16,kv_tokens=307328", workload="ladder", seed=1
    )
    sessions = [
        session for session in cell.draw() if (session.start_s or 0.0) // 1_000 in {0.0, 9.0}
    ]

    assert summarize(simulate_fleet(cell.plan(), sessions), "").ttft.p99_ms < 500
