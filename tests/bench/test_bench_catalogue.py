"""What makes runs a catalogue: stack and price, the history."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from extproc.bench.commands import bench
from extproc.bench.experiments.history import (
    Entry,
    enter_report,
    history_markdown,
    list_regressions,
    list_remarks,
    trace_lines,
)
from extproc.bench.record import RunResult
from extproc.bench.report.headline import headlines
from extproc.bench.report.outputs import write_reports
from extproc.bench.report.report import Report, ReportError, build, decode_report, encode_report
from extproc.bench.spec.tree import Spec
from tests.bench.synthetic import record, steady

STACK = {"accelerator": "nvidia-l4", "count": 2, "engine": "vllm", "version": "0.32.0", "price-per-hour": 3.6}


def priced(run: RunResult, **fields: Any) -> RunResult:
    tree = run.info.spec.model_dump(by_alias=True, exclude_defaults=True)
    spec = Spec.model_validate({**tree, "stack": STACK, "labels": {"team": "blue"}, **fields})
    return replace(run, info=replace(run.info, spec=spec))


def test_tokens_per_dollar_are_throughput_over_price(tmp_path: Path) -> None:
    """A tenth of a cent a second: 3.60 dollars an hour. The page names stack and labels."""
    run = priced(steady(100))
    said = build(run)
    write_reports(run, said, tmp_path)
    page = (tmp_path / "report.html").read_text()

    assert said.spending.total_tok_per_dollar == pytest.approx(said.measured.throughput.total_tps * 1000)
    assert said.spending.dollars == pytest.approx(said.whole.window.end_s / 1000, rel=1e-3)
    assert headlines(said)["tok/$"] == f"{said.measured.throughput.total_tps * 1000:,.0f}"
    assert (said.labels, said.stack["accelerator"]) == ({"team": "blue"}, "nvidia-l4")
    assert all(part in page for part in ("nvidia-l4", "0.32.0", "blue"))
    assert decode_report(encode_report(said)) == said
    assert "tok/$" not in headlines(build(steady(10)))


def entry(number: int, *, at: str = "", is_valid: bool = True, kind: str = "k", **figures: float) -> Entry:
    told = {"req_per_s": 10.0, "ttft_median_ms": 100.0, **figures}
    return Entry(
        f"{number}", kind, "n", "m", at or f"2026-11-{number:02}", is_valid, "valid", "", {}, {}, dict(told)
    )


def regressions(*entries: Entry) -> list[str]:
    (line,) = trace_lines(entries, tolerance=0.05, runs=5)
    return [drift.figure for drift in line.regressions]


def test_last_run_is_held_against_the_median_of_those_before_and_their_noise() -> None:
    """Median deviation 10 of 100: three robust deviations are 44."""
    quiet = [entry(i) for i in range(1, 5)]
    noisy = [entry(i + 1, ttft_median_ms=value) for i, value in enumerate((80.0, 90.0, 100.0, 110.0, 120.0))]

    assert regressions(*quiet, entry(5, req_per_s=9.4)) == ["req_per_s"]
    assert regressions(*quiet, entry(5, req_per_s=9.6)) == []
    assert regressions(*quiet, entry(5, ttft_median_ms=106.0)) == ["ttft_median_ms"]
    assert regressions(*quiet, entry(5, ttft_median_ms=50.0, req_per_s=20.0)) == []
    assert regressions(*noisy, entry(6, ttft_median_ms=140.0)) == []
    assert regressions(*noisy, entry(6, ttft_median_ms=150.0)) == ["ttft_median_ms"]


def test_only_the_last_few_valid_runs_of_the_kind_count_in_order_of_time() -> None:
    old = [entry(i, req_per_s=100.0) for i in range(1, 4)]
    recent = [entry(i) for i in range(4, 9)]

    assert regressions(*old, *recent, entry(9, req_per_s=1.0, is_valid=False)) == []
    assert regressions(*old, *recent, entry(9)) == []
    assert len(trace_lines([entry(1), entry(2, kind="other", req_per_s=1.0)], tolerance=0.05, runs=5)) == 2
    assert regressions(entry(9, at="2026-11-09", req_per_s=1.0), entry(1, at="2026-11-01")) == ["req_per_s"]


def save(folder: Path, run: RunResult, day: int) -> Report:
    at = run.info.started_at.replace(day=day)
    run = replace(run, info=replace(run.info, started_at=at))
    said = build(run)
    write_reports(run, said, folder / f"day-{day}")
    return said


def test_history_finds_a_new_version_that_is_slower(tmp_path: Path) -> None:
    """Three nights of one version, then one of the next that answers half a second later."""
    for day in (1, 2, 3):
        save(tmp_path, priced(steady(200)), day)
    equal = CliRunner().invoke(bench, ["history", str(tmp_path)])
    late = [
        record(i, i / 10, first_token_s=i / 10 + 1.0, chunk_s=[i / 10 + 1.0 + s / 10 for s in range(11)])
        for i in range(200)
    ]
    slower = priced(steady(200), stack={**STACK, "version": "0.33.0"})
    save(tmp_path, replace(slower, records=tuple(late)), 4)
    done = CliRunner().invoke(bench, ["history", str(tmp_path)])

    assert equal.exit_code == 0, equal.output
    assert "benchmark, llama" in equal.stdout
    assert done.exit_code == 4
    assert all(part in done.stdout for part in ("TTFT median", "WORSE", "0.33.0"))


def test_history_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")

    assert isinstance(CliRunner().invoke(bench, ["history", str(tmp_path)]).exception, ReportError)


def test_invalid_and_lonely_runs_are_named() -> None:
    history = trace_lines([entry(1), entry(2, is_valid=False)], tolerance=0.05, runs=5)

    assert list_regressions(history) == []
    assert list_remarks(history)[0] == "n: 1 of 2 runs are not valid, left out"
    assert "up to 5 valid ones" in history_markdown(history, tolerance=0.05, runs=5)


def test_arms_of_one_comparison_are_no_versions_of_one_thing() -> None:
    """Least load was measured after prefix cache: nothing got worse."""
    said = build(steady(100))
    arms = [replace(said, arm=arm) for arm in ("prefix_cache", "least_load")]
    entries = [enter_report(report, "x") for report in arms]

    assert len({each.kind for each in entries}) == 2
    assert [each.name for each in entries] == ["benchmark, prefix_cache", "benchmark, least_load"]
    assert enter_report(arms[0], "x").kind == entries[0].kind
