"""The whole tool against the whole system: a comparison of strategies through a real Envoy."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from extproc.bench.commands import bench
from tests.bench.fleet import ServedFleet, run_fleet
from tests.stack.fetch import get

pytestmark = [pytest.mark.envoy, pytest.mark.slow, pytest.mark.timeout(300)]

# Conversations of about six turns whose prompts grow by 140 tokens each, answers short for the sake
# of time.
CHAT = {
    "name": "synthetic",
    "turns_min": 4,
    "turns_extra": {"kind": "exponential", "mean": 2},
    "user_tokens": {"kind": "lognormal", "mean": 120, "sigma": 0.8, "min": 4},
    "reply_tokens": {"kind": "lognormal", "mean": 16, "sigma": 0.5, "min": 4},
    **dict.fromkeys(("mean_input_tokens", "mean_output_tokens")),
}
TRAFFIC = {
    "req_rate": 20,
    "duration": 10,
    "warm_up": 3,
    "cool_down": 1,
    "think_time": 0.5,
    "dataset": CHAT,
}
ARMS = ["round_robin", "least_load", "prefix_hash"]


def compare_strategies(fleet: ServedFleet, folder: Path) -> str:
    """Runs `bench ab` over three strategies; returns what it prints."""
    # Two cores hold the client, Envoy, the service, eight endpoints and other tests: the client may
    # wait long for its turn. How verdicts judge that is in tests/bench.
    limits = {"lag_p99": 5, "loop_lag_p99": 5, "cpu": 5, "achieved": 0.1}
    ab = {"arms": ARMS, "repeats": 1, "tolerance": 1}
    spec = folder / "spec.yaml"
    spec.write_text(yaml.safe_dump(fleet.spec(TRAFFIC, ab=ab, limits=limits)))
    result = CliRunner().invoke(
        bench, ["ab", str(spec), "--output", str(folder / "out"), "--quiet"]
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def test_comparison_through_envoy_shows_prefix_hash_ahead(tmp_path: Path) -> None:
    """1. Envoy, the service, eight endpoints. 2. `bench ab` of three strategies, switched live.

    3. Every report is there, every verdict valid, every strategy really in force for its run, the
       hit rate
    of prefix_hash far ahead, and the settings file as it was.
    """
    with run_fleet(tmp_path, endpoints=8, simulate=("--speed", "10")) as fleet:
        before = fleet.settings_file.read_text()
        table = compare_strategies(fleet, tmp_path)
        lines = get(f"http://{fleet.admin}/metrics").splitlines()
        counts = [line for line in lines if line.startswith("extproc_picks_total{")]
        picks = {
            arm: sum(
                float(line.rpartition(" ")[2]) for line in counts if f'strategy="{arm}"' in line
            )
            for arm in ARMS
        }
        after = fleet.settings_file.read_text()

    compared = json.loads((tmp_path / "out" / "ab.json").read_text())
    hits = {arm["label"]: arm["figures"]["hit_rate"]["mean"] for arm in compared["arms"]}
    trials = compared["trials"]

    assert before == after
    assert "| hit rate" in table
    assert {trial["report"]["verdict"]["text"] for trial in trials} == {"valid"}
    assert compared["faults"] == []
    assert len({trial["report"]["schedule"] for trial in trials}) == 1
    for trial in trials:
        asked = trial["report"]["whole"]["counts"]
        assert asked["failures"] == {}
        # And the list of models, which comes before Envoy asks the service the first time.
        assert picks[trial["arm"]] - asked["completed"] in {0, 1}
        # Of a hundred requests, few conversations may leave an endpoint out by chance.
        assert 5 <= len(trial["report"]["groups"]["endpoints"]) <= 8
    assert hits["prefix_hash"] > 2 * max(hits["round_robin"], hits["least_load"])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("ab.json", "ab.html", "ab.md"),
        *("round_robin-1", "least_load-1", "prefix_hash-1"),
    }
    assert (tmp_path / "out" / "prefix_hash-1" / "report.html").stat().st_size > 10_000
