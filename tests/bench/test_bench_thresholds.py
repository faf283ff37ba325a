"""Thresholds: which figures have limits, and the run's exit status."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from extproc.bench.commands import THRESHOLD_MISSED, bench
from extproc.bench.report import report
from extproc.bench.report.report import Report
from extproc.bench.spec.thresholds import Claim, parse_claim
from extproc.bench.spec.tree import Spec, parse_spec
from extproc.errors import SettingsError
from tests.bench.running import write_spec
from tests.bench.synthetic import failed, record, result, spec

CLAIMS = {
    "ttft_ms.p95 < 500": Claim("ttft", "p95", "<", 500),
    "ttft.p95<0.5s": Claim("ttft", "p95", "<", 500),
    "time_per_token_ms.avg <= 120ms": Claim("time_per_token", "mean", "<=", 120),
    "e2e_ms.med < 2 s": Claim("e2e", "p50", "<", 2000),
    "failed < 1%": Claim("failed", None, "<", 0.01),
    "hit_rate >= 0.5": Claim("hit_rate", None, ">=", 0.5),
    "total_tok_per_s > 5000": Claim("total_tok_per_s", None, ">", 5000),
}
FAULTS = {
    "fast": "is no threshold such as",
    "ttft_ms < 500": "say which value of the latency",
    "ttft_ms.p42 < 500": "say which value of the latency",
    "ttft_ms.p95 < 5%": "a latency is not in %",
    "speed > 5": "there is no such figure; there are ttft_ms.p95",
    "failed.p95 < 1": "there is no such figure",
    "req_per_s > 5ms": "req_per_s is not in ms",
}


def test_threshold_is_read_or_refused_with_its_spec() -> None:
    assert {text: parse_claim(text) for text in CLAIMS} == CLAIMS
    for text, fault in FAULTS.items():
        with pytest.raises(ValueError, match=fault):
            parse_claim(text)
        with pytest.raises(SettingsError, match=rf"thresholds\.0: .*{fault}"):
            parse_spec(yaml.safe_dump({**spec().model_dump(mode="json"), "thresholds": [text]}))


def judged(*thresholds: str) -> Report:
    """A hundred requests, TTFT 500 ms each; one of them failed."""
    of = Spec.model_validate({**spec().model_dump(), "thresholds": thresholds})
    records = [record(index, index / 10) for index in range(99)]
    return report.build(result([*records, failed(99, 9.9)], duration_s=11.4, of=of))


def test_thresholds_are_held_against_the_headline_figures() -> None:
    said = judged("ttft_ms.p95 < 500.1", "failed <= 1%", "hit_rate > 70%", "goodput > 0.5")

    assert [outcome.is_met for outcome in said.thresholds] == [True, True, False, False]
    assert [outcome.value for outcome in said.thresholds[1:]] == [0.01, pytest.approx(0.6), None]
    assert said.verdict.is_valid
    assert not said.is_good
    assert said.title == "valid, with remarks; 2 of 4 thresholds not met"
    assert report.decode_report(report.encode_report(said)) == said
    assert said.faults == (
        "threshold not met: hit_rate > 70%: it is 60.00%",
        "threshold not met: goodput > 0.5: it is unknown",
    )


def run_with(tmp_path: Path, port: int, **fields: Any) -> int:
    path = write_spec(tmp_path, port, {"req-rate": 50, "total-prompts": 20}, **fields)
    return CliRunner().invoke(bench, ["run", path, "--quiet"]).exit_code


@pytest.mark.slow
def test_exit_status_tells_a_missed_threshold_from_an_invalid_run(null_server: int, tmp_path: Path) -> None:
    assert run_with(tmp_path, null_server, thresholds=["failed < 1%", "ttft_ms.p95 < 1000 s"]) == 0
    assert run_with(tmp_path, null_server, thresholds=["ttft_ms.p95 > 1000 s"]) == THRESHOLD_MISSED
