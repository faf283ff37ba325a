from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.bench.commands import bench
from extproc.bench.experiments.compare import compare, comparison_markdown, find_remarks
from extproc.bench.record import RunResult, Window
from extproc.bench.report import report
from extproc.bench.report.figures import FIGURES
from extproc.bench.report.report import Report
from tests.bench.synthetic import record, result, spec, steady

PUBLISHED = Path(__file__).parents[2] / "extproc" / "vllm" / "fleet" / "kubeai-8xl4.csv"


def said(run: RunResult) -> Report:
    return report.build(run)


def slower(factor: float) -> RunResult:
    """The requests of `steady`, each `factor` times as long."""
    records = [
        record(
            index,
            at := index / 10,
            first_token_s=at + 0.5 * factor,
            end_s=at + 1.5 * factor,
            chunk_s=[at + 0.5 * factor + step * factor / 10 for step in range(11)],
        )
        for index in range(100)
    ]
    return result(records, duration_s=9.9 + 1.5 * factor, window=Window(0.0, 10.0))


def test_comparison_of_equal_loads_is_fair_and_gives_ratios() -> None:
    comparison = compare(said(steady(100)), said(slower(2)))

    changes = {change.name: change for change in comparison.changes}
    assert comparison.is_fair
    assert list(changes) == list(FIGURES)
    assert changes["ttft_mean_ms"].ratio == pytest.approx(2)
    assert changes["ttft_mean_ms"].is_better is False
    assert changes["tpot_median_ms"].ratio == pytest.approx(2)
    assert changes["total_tok_per_s"].is_better is False
    assert changes["goodput"].ratio is None


def test_equal_figures_are_neither_better_nor_worse() -> None:
    same = compare(said(steady(100)), said(steady(100)))

    assert {change.is_better for change in same.changes} == {None}
    assert "| ITL mean" in comparison_markdown(same)
    assert "goodput" not in comparison_markdown(same)


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        (steady(100, per_second=12), "unequal load: 12"),
        (steady(101), "another schedule"),
        (
            result(steady(100).records, duration_s=11.4, window=Window(0.0, 10.0), model="other"),
            "asked for model other",
        ),
        (steady(100, started_s=None), "B is invalid: client-limited: offered"),
        (steady(100, failure="timeout"), "completed no request"),
    ],
)
def test_runs_that_answer_different_questions_are_not_fair_to_compare(other: RunResult, fault: str) -> None:
    comparison = compare(said(steady(100)), said(other))

    assert not comparison.is_fair
    assert any(fault in found for found in comparison.faults), comparison.faults


def test_load_within_the_tolerance_is_equal() -> None:
    a, b = said(steady(100)), said(steady(100, per_second=10.2))

    assert not [fault for fault in compare(a, b).faults if "unequal" in fault]
    assert [fault for fault in compare(a, b, tolerance=0.01).faults if "unequal" in fault]


def test_run_past_capacity_is_remarked() -> None:
    overloaded = said(slower(8))

    assert "past its capacity" in next(find_remarks([("B", overloaded)], 0.03))
    assert list(find_remarks([("A", said(steady(1000)))], 0.03)) == []


def test_capped_schedule_is_measured_as_a_whole() -> None:
    capped = result(steady(100).records, duration_s=11.4, of=spec(max_concurrency=5))

    assert said(capped).measured == said(capped).whole
    assert said(steady(100)).measured == said(steady(100)).steady
    assert said(result(steady(100).records, of=spec(req_rate="inf"))).is_queued


def write(path: Path, run: RunResult) -> str:
    path.write_bytes(report.encode(said(run)))
    return str(path)


def test_compare_command_prints_ratios_and_ends_well(tmp_path: Path) -> None:
    told = CliRunner().invoke(
        bench, ["compare", write(tmp_path / "a.json", steady(100)), write(tmp_path / "b.json", slower(2))]
    )

    assert told.exit_code == 0
    assert "2.000" in told.output


def test_compare_command_exits_3_when_the_loads_differ(tmp_path: Path) -> None:
    told = CliRunner().invoke(
        bench,
        [
            "compare",
            write(tmp_path / "a.json", steady(100)),
            write(tmp_path / "b.json", steady(100, per_second=20)),
        ],
    )

    assert told.exit_code == 3
    assert "unequal load" in told.stderr
