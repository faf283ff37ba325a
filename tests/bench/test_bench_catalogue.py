"""What a run was made with and what it cost; the runs of one kind, held against one another."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extproc.bench.experiments.history import Entry, list_regressions, trace_lines
from extproc.bench.record import RunResult
from extproc.bench.report.headline import headlines
from extproc.bench.report.outputs import write_reports
from extproc.bench.report.report import build, decode_report, encode_report
from extproc.bench.spec.tree import Spec
from tests.bench.synthetic import steady

STACK = {
    "accelerator": "nvidia-l4",
    "count": 2,
    "engine": "vllm",
    "version": "0.32.0",
    "price-per-hour": 3.6,
}


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

    assert said.spending.total_tok_per_dollar == pytest.approx(
        said.measured.throughput.total_tps * 1000
    )
    assert said.spending.dollars == pytest.approx(said.whole.window.end_s / 1000, rel=1e-3)
    assert headlines(said)["tok/$"] == f"{said.measured.throughput.total_tps * 1000:,.0f}"
    assert (said.labels, said.stack["accelerator"]) == ({"team": "blue"}, "nvidia-l4")
    assert all(part in page for part in ("nvidia-l4", "0.32.0", "blue"))
    assert decode_report(encode_report(said)) == said
    assert "tok/$" not in headlines(build(steady(10)))


def catalogue_entry(
    number: int, *, at: str = "", is_valid: bool = True, kind: str = "k", **figures: float
) -> Entry:
    told = {"req_per_s": 10.0, "ttft_median_ms": 100.0, **figures}
    return Entry(f"{number}", kind, "n", "m", at or f"2026-11-{number:02}", is_valid, "valid", told)


def regressions(*entries: Entry) -> list[str]:
    (line,) = trace_lines(entries, tolerance=0.05, runs=5)
    return [drift.figure for drift in line.regressions]


def test_last_run_is_held_against_the_median_of_those_before_and_their_noise() -> None:
    """Median deviation 10 of 100: three robust deviations are 44."""
    quiet = [catalogue_entry(i) for i in range(1, 5)]
    noisy = [
        catalogue_entry(i + 1, ttft_median_ms=value)
        for i, value in enumerate((80.0, 90.0, 100.0, 110.0, 120.0))
    ]

    assert regressions(*quiet, catalogue_entry(5, req_per_s=9.4)) == ["req_per_s"]
    assert regressions(*quiet, catalogue_entry(5, req_per_s=9.6)) == []
    assert regressions(*quiet, catalogue_entry(5, ttft_median_ms=106.0)) == ["ttft_median_ms"]
    assert regressions(*quiet, catalogue_entry(5, ttft_median_ms=50.0, req_per_s=20.0)) == []
    assert regressions(*noisy, catalogue_entry(6, ttft_median_ms=140.0)) == []
    assert regressions(*noisy, catalogue_entry(6, ttft_median_ms=150.0)) == ["ttft_median_ms"]


def test_only_the_last_few_valid_runs_of_the_kind_count_in_order_of_time() -> None:
    old = [catalogue_entry(i, req_per_s=100.0) for i in range(1, 4)]
    recent = [catalogue_entry(i) for i in range(4, 9)]

    assert regressions(*old, *recent, catalogue_entry(9, req_per_s=1.0, is_valid=False)) == []
    assert regressions(*old, *recent, catalogue_entry(9)) == []
    assert (
        len(
            trace_lines(
                [catalogue_entry(1), catalogue_entry(2, kind="other", req_per_s=1.0)],
                tolerance=0.05,
                runs=5,
            )
        )
        == 2
    )
    assert regressions(
        catalogue_entry(9, at="2026-11-09", req_per_s=1.0), catalogue_entry(1, at="2026-11-01")
    ) == ["req_per_s"]


def test_a_figure_that_got_worse_is_one_sentence() -> None:
    history = trace_lines(
        [catalogue_entry(1), catalogue_entry(2, req_per_s=5.0)], tolerance=0.05, runs=5
    )

    assert list_regressions(history) == ["n, m: req/s 5.00, before 10.00 (-50.0 %)"]
