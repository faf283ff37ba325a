"""What a proof on a GPU would do."""

import json
from pathlib import Path

import pytest

from extproc.bench.spec.tree import read_spec
from extproc.router.settings.reading import parse_settings
from tests.gpu import plan
from tests.tables import table

FOUR = plan.Engines("vllm", "3b", 4, 60_000, 16_384, 4_096)
COSTS = {
    "base_ms": 5.0,
    "usual_prefill_ms": 0.022,
    "prefill_ms_per_token": 0.02,
    "attention_ns": 1.0,
    "floor_ms": 0.0,
}
KIT = Path("/kit")


def test_four_engines_try_the_service_then_graphs_then_eager_and_one_has_no_neighbour() -> None:
    assert [*FOUR.rungs] == ["mps", "graphs", "eager"]
    assert [*plan.Engines("vllm", "8b", 1, 380_000, 40_960, 8_192).rungs] == ["graphs", "eager"]
    assert [*plan.Engines("simulated", "", 4, 1, 1, 1).rungs] == ["eager"]


def test_engines_have_ports_of_their_own_and_the_cache_that_was_asked_for() -> None:
    command, _ = plan.engine_command(FOUR, 2, "graphs", KIT, "python")
    eager, environment = plan.engine_command(FOUR, 2, "eager", KIT, "python")
    block_bytes = 16 * 28 * 8 * 128 * 2 * 2

    assert command[command.index("--port") + 1] == "8003"
    assert int(command[command.index("--kv-cache-memory-bytes") + 1]) == 3_751 * block_bytes
    assert "--enforce-eager" in eager
    assert "--enforce-eager" not in command
    assert environment["VLLM_USE_V2_MODEL_RUNNER"] == "0"


def test_rate_fills_the_asked_share_of_an_engine() -> None:
    """40 prefixes of 4,000 tokens; 60,000 tokens less 8 open prompts keep 17 % of them."""
    missing = (1 - (60_000 - 8 * 4_120) / 160_000) * 4_000 + 120
    work_ms = 5 + missing * 0.02 + missing * 4_120 / 2 / 1e6

    assert plan.choose_rate(plan.Load(), FOUR, COSTS) == pytest.approx(0.6 * 4_000 / work_ms)


@table(
    ("left_s", "repeats", "duration_s"),
    [(900, 3, 60.0), (300, 3, 300 / 9 - 16), (270, 2, 29.0), (100, 1, 100 / 3 - 16), (20, 1, 7.5)],
)
def test_short_time_costs_repeats_first_and_then_the_windows(
    left_s: float, repeats: int, duration_s: float
) -> None:
    windows = plan.choose_windows(3, 3, left_s)

    assert windows.repeats == repeats
    assert windows.duration_s == pytest.approx(duration_s)


def test_spec_and_settings_are_what_the_product_reads(tmp_path: Path) -> None:
    settings = tmp_path / "extproc.yaml"
    settings.write_text(json.dumps(plan.write_gateway(FOUR)))
    windows = plan.Windows(2, 30.0)
    spec = plan.write_proof_spec(
        plan.Load(),
        FOUR,
        windows,
        arms=["round_robin", "prefix_cache"],
        costs=COSTS,
        rate=20.0,
        settings=settings,
    )

    assert [pool.name for pool in parse_settings(settings.read_text(), {}, "a").pools] == ["pool"]
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    assert read_spec(tmp_path / "spec.yaml", lambda _: ()).ab.repeats == 2
