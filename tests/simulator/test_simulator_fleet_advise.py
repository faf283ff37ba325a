"""From a trace to a number of endpoints."""

import json
import re
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from extproc.cli import cli
from extproc.simulator.fleet.advise import Question, find_needs

ENGINE = "l4-llama8b-fp8"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve tenants with prompts of 4,000 tokens, of which 3,072 are each one's own head; four a second."""
    path = tmp_path_factory.mktemp("advise") / "trace.jsonl"
    rng = Random(1)
    rows = [
        {
            "timestamp": 250 * n,
            "input_length": 4_000,
            "output_length": 20,
            "hash_ids": [
                *range(100 * (tenant := rng.randrange(12)), 100 * tenant + 6),
                9_000 + n,
                1,
            ],
        }
        for n in range(150)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.slow
def test_needs_differ_by_strategy_and_are_the_least(trace: Path) -> None:
    needs = find_needs(Question(str(trace), ENGINE, p95_ms=2_000, most=32))
    told = {(need.strategy, need.times): need for need in needs}
    cached, spread = told["prefix_cache", 1], told["round_robin", 1]

    assert [*told] == [
        ("prefix_cache", 1),
        ("least_load", 1),
        ("round_robin", 1),
        ("prefix_cache", 2),
    ]
    assert 0 < cached.endpoints < spread.endpoints
    for need in needs:
        assert need.at.ttft.p95_ms <= 2_000
        assert need.fewer is None or need.fewer.ttft.p95_ms > 2_000
    assert told["prefix_cache", 2].endpoints <= cached.endpoints


def test_table_names_the_command_that_repeats_it(trace: Path) -> None:
    asked = ["--engine", ENGINE, "--requests", "30", "--most", "1", "--p95-ms", "150"]

    said = CliRunner().invoke(cli, ["simulate", "advise", str(trace), *asked]).output

    assert re.search(r"round_robin +x 1 +more than 1 ", said)
    assert (
        f"extproc simulate advise {trace} --engine {ENGINE} --p95-ms 150 --requests 30 --most 1"
        in said
    )
