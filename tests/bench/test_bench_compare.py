from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extproc.bench.commands.experiments import read_spec_or_flags
from extproc.bench.experiments.compare import (
    Comparison,
    compare,
    comparison_markdown,
    find_remarks,
    is_better,
)
from extproc.bench.record import RunResult, Window
from extproc.bench.report import report
from extproc.bench.report.report import Report
from extproc.errors import SettingsError
from tests.bench.running import call
from tests.bench.synthetic import failed, record, result, spec, steady
from tests.tables import table


def said(run: RunResult) -> Report:
    return report.build(run)


def slower_by(factor: float) -> RunResult:
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


def seeded(run: RunResult, seed: int) -> Report:
    return replace(said(run), seed=seed)


def pair_of_runs(other: RunResult) -> Comparison:
    return compare([said(steady(100))], [said(other)])


def test_comparison_of_equal_loads_is_fair_and_single_runs_are_never_better_or_worse() -> None:
    """However far apart they are: no repeat shows how far two equal runs would have been."""
    comparison = pair_of_runs(slower_by(2))
    usual, changes = comparison.arms[0].changes, comparison.arms[1].changes
    text = comparison_markdown(comparison)

    assert not comparison.faults
    for name in ("ttft_mean_ms", "tpot_median_ms"):
        assert (usual[name].mean, changes[name].mean) == pytest.approx((0, 1))
    assert "goodput" not in changes
    assert {is_better(*change) for change in changes.items()} == {None}
    assert "worse" not in text
    assert "better" not in text
    assert "one run of each: a difference may be noise" in comparison.remarks[0]
    # It names the part that is compared, and leaves out what neither has.
    assert (
        "figures of the steady window, 0.0 to 10.0 s; latencies from the intended start\n" in text
    )
    assert "| ITL mean" in text
    assert "goodput" not in text


@table(
    ("changes", "is_said"),
    [
        ({"started_at": "2026-11-21T13:00:00+00:00"}, True),
        ({}, False),  # one run, given twice
        ({"started_at": "2026-11-21T13:00:00+00:00", "seed": 7}, False),
    ],
)
def test_a_load_that_was_asked_again_of_the_same_endpoints_is_remarked(
    changes: dict[str, Any], is_said: bool
) -> None:
    """Its prompts may have been cached."""
    first = said(steady(100, endpoint="10.0.0.0:8000"))
    remarks = compare([first], [replace(first, **changes)]).remarks

    assert any("unless caches were emptied in between" in line for line in remarks) == is_said


def test_repeats_are_paired_by_seed_and_judged_by_their_interval() -> None:
    """Three seeds, in any order: 2.0, 2.1 and 1.9 times as slow is worse; 0.99 to 1.01 times is nothing."""
    usual = [seeded(steady(100), seed) for seed in (3, 1, 2)]
    slow = [seeded(slower_by(factor), seed) for seed, factor in ((1, 2.0), (2, 2.1), (3, 1.9))]
    same = [seeded(slower_by(factor), seed) for seed, factor in ((1, 1.01), (2, 0.99), (3, 1.0))]

    worse, equal = (compare(usual, side).arms[1].changes["ttft_mean_ms"] for side in (slow, same))

    assert is_better("ttft_mean_ms", worse) is False
    assert worse.mean == pytest.approx(0.9983, abs=1e-4)
    assert is_better("ttft_mean_ms", equal) is None
    assert "worse" in comparison_markdown(compare(usual, slow))
    others = compare([seeded(steady(100), 1)], [seeded(steady(100), 2)])
    assert others.faults == ("A has the seeds 1, B 2: repeats are compared seed by seed",)
    mixed = compare([replace(run, arm=f"arm {run.seed}") for run in usual], same)
    assert mixed.faults == ("A has runs of arm 1 and arm 2 and arm 3: give the reports of one arm",)


@table(
    ("other", "fault"),
    [
        (steady(100, per_second=12), "unequal load: 12"),
        (steady(101), "another schedule"),
        (
            result(steady(100).records, duration_s=11.4, window=Window(0.0, 10.0), model="other"),
            "asked for model other",
        ),
        (steady(100, started_s=None), "B is invalid: client-limited: offered"),
        (
            steady(100, failure="timeout"),
            "100 of 100 requests failed (100.0%, 1.0% allowed): timeout 100",
        ),
        (
            result(
                [*steady(98).records, failed(98, 9.8), failed(99, 9.9)], window=Window(0.0, 10.0)
            ),
            "B is invalid: requests failed: 2 of 100 requests failed (2.0%, 1.0% allowed): timeout 2",
        ),
        (
            result(steady(100).records, duration_s=11.4, of=spec(max_concurrency=5)),
            "B is measured by figures of the whole run",
        ),
    ],
)
def test_runs_that_answer_different_questions_are_not_fair_to_compare(
    other: RunResult, fault: str
) -> None:
    comparison = pair_of_runs(other)

    assert any(fault in found for found in comparison.faults), comparison.faults


@table(
    ("requests", "is_equal"),
    # A count of n is off by its root: one of 18 is nothing, 60 of 2,000 are.
    [
        ((18, 19), True),
        ((200, 210), True),
        ((2000, 2040), True),
        ((2000, 2100), False),
        ((18, 36), False),
    ],
)
def test_load_that_differs_by_counting_noise_is_equal(
    requests: tuple[int, int], is_equal: bool
) -> None:
    a, b = ([said(steady(count, per_second=count / 10))] for count in requests)

    assert is_equal == (not [fault for fault in compare(a, b).faults if "unequal" in fault])


def test_run_past_capacity_is_remarked_and_a_capped_schedule_measured_as_a_whole() -> None:
    capped = said(result(steady(100).records, duration_s=11.4, of=spec(max_concurrency=5)))

    assert "past its capacity" in next(find_remarks([("B", said(slower_by(8)))], 0.03))
    # Of 100 that were sent 15 end after the window, and have begun.
    assert list(find_remarks([("B", said(steady(100)))], 0.03)) == []
    assert list(find_remarks([("A", said(steady(1000)))], 0.03)) == []
    assert capped.measured == capped.whole
    assert said(steady(100)).measured == said(steady(100)).steady
    assert said(result(steady(100).records, of=spec(req_rate="inf"))).is_queued


def write_run_report(path: Path, run: RunResult, seed: int = 0) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(report.encode_report(seeded(run, seed)))
    return str(path)


def test_compare_command_pairs_the_repeats_of_folders_and_exits_3_when_the_loads_differ(
    tmp_path: Path,
) -> None:
    for seed in (0, 1, 2):
        write_run_report(tmp_path / "a" / str(seed) / "report.json", steady(100), seed)
        write_run_report(
            tmp_path / "b" / str(seed) / "report.json", slower_by(2 + seed / 100), seed
        )
        write_run_report(
            tmp_path / "c" / str(seed) / "report.json", steady(100, per_second=20 + seed), seed
        )
    fair, unfair = [call("compare", tmp_path / "a", tmp_path / other) for other in "bc"]
    usual, more = tmp_path / "a" / "0" / "report.json", tmp_path / "more.json"
    unequal = call("compare", usual, write_run_report(more, steady(100, per_second=20)))

    assert (fair.exit_code, unequal.exit_code) == (0, 3), fair.output
    assert "+101.0%" in fair.stdout
    assert "worse" in fair.stdout
    assert ("*" in fair.stdout, "*" in unfair.stdout, unfair.exit_code) == (True, False, 3)
    assert "one run of each" not in fair.stderr
    assert "unequal load" in unequal.stderr


def test_compare_command_writes_a_page_with_the_names_of_both(tmp_path: Path) -> None:
    page = tmp_path / "new" / "both.html"
    names = ("least_load", "prefix_cache")
    sides = [write_run_report(tmp_path / name / "report.json", steady(100)) for name in names]
    told = call("compare", *sides, "--output", page)

    assert told.exit_code == 0, told.output
    assert "prefix_cache sends the first token as soon as least_load" in told.stdout
    assert f"All figures: {page}." in told.stdout
    assert ("TPOT p99" in told.stdout, "TPOT p99" in page.read_text()) == (False, True)
    assert "<title>least_load and prefix_cache</title>" in page.read_text()
    assert "sends the first token as soon as" in page.read_text()


def test_compare_and_ab_sum_up_repeats_alike() -> None:
    """Geometric means: 500 ms and 1,000 ms are 707 ms."""
    repeats = [seeded(steady(100), 0), seeded(slower_by(2), 1)]
    levels = [arm.figures["ttft_mean_ms"].mean for arm in compare(repeats, repeats).arms]

    assert levels == pytest.approx([500 * 2**0.5] * 2)


def test_page_command_says_what_draws_its_tables_now() -> None:
    told = call("page", "runs.csv")

    assert told.exit_code == 2
    assert "was removed in 0.3: in the sources `python -m tests.benchmarks.published" in told.stderr


def test_compare_command_names_the_file_it_cannot_read(tmp_path: Path) -> None:
    good, bad = write_run_report(tmp_path / "a.json", steady(100)), tmp_path / "b.json"
    bad.write_bytes(b"\xff\x00")
    (tmp_path / "empty").mkdir()

    for other, fault in (
        (bad, "b.json: not a benchmark report"),
        (tmp_path / "empty", "no report.json in it"),
    ):
        told = call("compare", good, other)
        assert isinstance(told.exception, report.ReportError)
        assert fault in str(told.exception)


@table(
    ("arguments", "fault"),
    [
        (["run"], "give a spec file"),
        (["run", "--url", "http://h:1"], "give a spec file"),
        (["ab", "--url", "http://h:1", "--rate", "2"], "give a spec file"),
        (["run", "FILE", "--rate", "2"], "not both"),
        (["compare", "FILE"], "give two reports, or two folders"),
        (
            ["run", "--url", "ftp://h", "--rate", "2", "--duration", "1s"],
            "neither host, host:port nor",
        ),
        (["run", "FILE", "--pushgateway", "http://gateway"], "--pushgateway was removed in 0.2"),
    ],
)
def test_arguments_without_meaning_or_gone_say_so(
    arguments: list[str], fault: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    result = call(*(each.replace("FILE", str(tmp_path / "file")) for each in arguments))

    assert isinstance(result.exception, SettingsError)
    assert fault in str(result.exception)


def test_flags_make_a_spec_with_a_warm_up() -> None:
    made = read_spec_or_flags(None, ["http://a:1", "http://b:2"], 4.0, 60.0)

    assert (made.base_url, made.traffic.req_rate, made.traffic.duration) == ("http://a:1", 4, 60)
    assert made.traffic.warm_up == 12
    assert [arm.name for arm in made.ab.arms] == ["http://a:1", "http://b:2"]
    assert read_spec_or_flags(None, ["http://a:1"], 4.0, 60.0).ab.urls == ()
