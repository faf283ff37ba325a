"""The commands `ab` and `saturate` as a user runs them, against small servers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result

from tests.bench.running import call, run_null_server, write_spec

SERVICE_S = 0.05


@pytest.fixture
def slow_server() -> Iterator[int]:
    """Answers one request after the other, `SERVICE_S` each: 20 requests/s and no more."""
    with run_null_server("--busy", f"{SERVICE_S}") as port:
        yield port


def invoke_experiment(
    command: str, folder: Path, port: int, traffic: dict[str, object], **fields: object
) -> Result:
    path = write_spec(folder, port, traffic, **fields)
    return call(command, path, "--output", folder / "out")


@pytest.mark.slow
def test_saturate_finds_the_rate_that_a_slow_server_can_serve(
    slow_server: int, tmp_path: Path
) -> None:
    traffic: dict[str, object] = {"req-rate": 1, "duration": 2, "warm-up": 0.5}
    ladder = {"start": 8, "factor": 2, "steps": 5, "precision": 0.3}
    result = invoke_experiment("saturate", tmp_path, slow_server, traffic, saturate=ladder)

    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "out" / "saturation.json").read_text())
    assert found["is_bracketed"]
    assert 8 <= found["inflection_rps"] <= 24
    assert found["best_rps"] <= 1.1 / SERVICE_S
    assert "Inflection point at" in result.stdout
    assert "Inflection point at" in (tmp_path / "out" / "saturation.html").read_text()


@pytest.mark.slow
def test_ab_switches_by_command_and_compares(null_server: int, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    ab: dict[str, object] = {
        "arms": ["random", "least_load"],
        "command": ["sh", "-c", f"echo {{strategy}} >> {asked}"],
    }
    ab |= {"flush": [], "repeats": 1, "prime": 0.2, "tolerance": 10}
    result = invoke_experiment("ab", tmp_path, null_server, {"req-rate": 40, "duration": 1}, ab=ab)

    assert result.exit_code == 0, result.output
    assert asked.read_text().split() == ["random", "least_load"]
    assert "| req/s" in result.stdout
    assert "comparable" in result.stderr
    assert (tmp_path / "out" / "least_load-1" / "vllm.json").exists()


@pytest.mark.slow
def test_ab_excuses_the_client_as_run_does(null_server: int, tmp_path: Path) -> None:
    ab = {
        "arms": ["random", "least_load"],
        "command": ["true"],
        "flush": [],
        "repeats": 1,
        "tolerance": 10,
    }
    spec = write_spec(
        tmp_path, null_server, {"req-rate": 40, "duration": 1}, ab=ab, limits={"lag-p99": 1e-9}
    )
    bad, allowed = (call("ab", spec, *flag) for flag in ([], ["--allow-client-limited"]))

    assert (bad.exit_code, allowed.exit_code) == (3, 0), allowed.output
    assert "invalid: client-limited" in allowed.stderr


@pytest.mark.slow
def test_ab_excuses_no_fault_that_names_the_clients_limit(null_server: int, tmp_path: Path) -> None:
    """An arm may be called so, and a server may answer so: here every request fails."""
    ab = {"arms": ["invalid: client-limited"], "command": ["true"], "flush": [], "repeats": 1}
    spec = write_spec(
        tmp_path,
        null_server,
        {"total-prompts": 3, "vus": 1},
        ab=ab,
        target={"model": "m", "timeout": 1e-6},
    )
    told = call("ab", spec, "--allow-client-limited", "--quiet")

    assert told.exit_code == 3
    assert "invalid: requests failed" in told.stderr


def test_ab_of_arms_that_cannot_be_switched_ends_with_the_reason(
    null_server: int, tmp_path: Path
) -> None:
    result = invoke_experiment(
        "ab", tmp_path, null_server, {"req-rate": 40, "duration": 1}, ab={"command": ["false"]}
    )

    assert result.exit_code == 1
    assert "false ended with 1" in str(result.exception)
