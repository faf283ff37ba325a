"""Fitting costs to measured steps."""

from pathlib import Path
from random import Random

import pytest
import yaml
from click.testing import CliRunner

from extproc.errors import SettingsError
from extproc.simulator.commands import simulate
from extproc.simulator.engine.engine import Engine
from extproc.simulator.engine.profiles import find_profile, read_profiles
from extproc.simulator.fit import MeasuredStep, fit, read_steps

HEAD = "running,context_tokens,prefill_tokens,step_ms\n"


def measure_steps() -> list[MeasuredStep]:
    """The steps of an engine under a mixed load, as a run would record them."""
    rng = Random(1)
    engine = Engine(find_profile("l4-llama8b-fp8"))
    for number in range(60):
        engine.add_hashed(str(number), rng.randint(50, 900), range(0), rng.randint(1, 60), now=0)
    steps = []
    while not engine.is_idle:
        step = engine.step(0)
        steps.append(MeasuredStep(step.context_tokens, step.prefill_tokens, 1000 * step.duration_s))
    return steps


def test_fit_recovers_the_profile_that_ran() -> None:
    found = fit(measure_steps())

    assert found.base_ms == pytest.approx(39)
    assert found.kv_us_per_ctx_token == pytest.approx(0.583)
    assert found.prefill_ms_per_token == pytest.approx(0.19)
    assert found.error_ms < 1e-6


def test_cost_is_never_negative() -> None:
    steps = [MeasuredStep(context, prefill, 50 - 0.01 * context + prefill)
             for context in (0, 100, 200) for prefill in (0, 10)]  # fmt: skip

    found = fit(steps)

    assert found.kv_us_per_ctx_token == 0
    assert found.prefill_ms_per_token == pytest.approx(1)
    assert found.error_ms > 0


@pytest.mark.parametrize("steps", [[], [MeasuredStep(100, 0, 40)] * 5])
def test_steps_that_are_all_alike_are_refused(steps: list[MeasuredStep]) -> None:
    with pytest.raises(SettingsError, match="cannot tell"):
        fit(steps)


def test_json_lines_and_csv_read_alike(tmp_path: Path) -> None:
    table, lines = tmp_path / "steps.csv", tmp_path / "steps.jsonl"
    table.write_text(f"{HEAD}3,100,0,40.5\n")
    lines.write_text('{"running": 3, "context_tokens": 100, "prefill_tokens": 0, "step_ms": 40.5}\n')

    assert read_steps(table) == read_steps(lines) == [MeasuredStep(100, 0, 40.5)]


@pytest.mark.parametrize("row", ["3,100,0,fast", "3,100"])
def test_step_that_cannot_be_read_is_named(tmp_path: Path, row: str) -> None:
    path = tmp_path / "steps.csv"
    path.write_text(f"{HEAD}3,100,0,40\n{row}\n")

    with pytest.raises(SettingsError, match=r"steps\.csv: step 2: "):
        read_steps(path)


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.csv"):
        read_steps(tmp_path / "none.csv")


def test_command_prints_a_profile_that_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    rows = (f"0,{step.context_tokens},{step.prefill_tokens},{step.step_ms}" for step in measure_steps())
    path.write_text(HEAD + "\n".join(rows))

    result = CliRunner().invoke(simulate, ["fit", str(path), "--name", "mine"], catch_exceptions=False)

    profile = read_profiles(result.output)["mine"]
    assert profile.base_ms == pytest.approx(39)
    assert profile.kv_tokens == 84_000
    assert "measured steps" in yaml.safe_load(result.output)["mine"]["note"]
