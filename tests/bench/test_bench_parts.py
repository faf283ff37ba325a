"""A run in parts: together they offer the whole schedule, and their journals make one report."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from extproc.bench.commands import DOES_NOT_HOLD, bench
from extproc.bench.experiments.run import run, share_out, spread
from extproc.bench.judge.verdict import judge
from extproc.bench.load.driver import LoadError
from extproc.bench.load.journal import JournalError, decode_lines, encode_lines
from extproc.bench.load.parts import Part, find_clock_offset, merge_parts, parse_part, read_run
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import build_workload
from extproc.bench.measure.metrics import measure, whole_run
from extproc.bench.record import PartStats, Record, RunResult
from extproc.bench.spec.tree import Slo, Spec
from extproc.errors import SettingsError
from tests.bench import synthetic
from tests.bench.running import Silence, build_tree
from tests.tables import table
from tests.waiting import wait_until


def tree(port: int, **more: Any) -> dict[str, Any]:
    return build_tree(port, {"req-rate": 20, "total-prompts": 40, **more})


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 60), st.booleans())
def test_parts_together_are_the_schedule(count: int, processes: int, prompts: int, is_closed: bool) -> None:
    """Every start, every user and every conversation is one part's; no other part has it."""
    shape = {"vus": 20} if is_closed else {"req-rate": 10}
    dataset = {"name": "random", "input_tokens": 4}
    traffic = {"total-prompts": prompts + 1, "dataset": dataset, **shape}
    base = {"endpoint": "h", "processes": processes, "performance": {"traffic-shape": traffic}}
    spec = spread(Spec.model_validate(base), count)
    workload = build_workload(spec, build_registry())
    shares = share_out(spec, "m", workload, machines=count)
    parts = [shares[number::count] for number in range(count)]
    starts = sorted(start for part in parts for share in part for start in share.starts)
    users = sum(share.users for part in parts for share in part)
    numbers = [number for part in parts for number in part[0].numbers] if is_closed else []

    assert [at_s for _, at_s in starts] == list(workload.starts_s or ())
    assert users == (20 if is_closed else 0)
    assert sorted(numbers) == list(range(len(numbers)))
    assert all(share.numbers == part[0].numbers for part in parts for share in part)


@pytest.mark.slow
async def test_merged_report_counts_what_one_machine_counts(null_server: int, tmp_path: Path) -> None:
    """Both parts are ready long before they begin, whatever else the machine does."""
    spec, start_at = Spec.model_validate(tree(null_server)), time.time() + 20
    parts = [Part(number, 2, start_at) for number in range(2)]
    results = await asyncio.gather(
        *(run(spec, progress=Silence(), part=each, journal=tmp_path / each.journal) for each in parts)
    )
    whole = await run(spec, progress=Silence())
    told = CliRunner().invoke(bench, ["report", str(tmp_path), "--output", str(tmp_path)])
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())

    assert told.exit_code == 0, told.output
    assert report["verdict"]["text"].startswith("valid")
    assert [len(each.records) for each in results] == [20, 20]
    assert [(part["number"], part["count"], part["starts"], part["records"]) for part in report["parts"]] == [
        (0, 2, 20, 20),
        (1, 2, 20, 20),
    ]
    assert report["whole"]["counts"]["completed"] == len(whole.records) == 40
    merged = merge_parts([(str(i), each) for i, each in enumerate(results)])
    assert [r.intended_s for r in merged.records] == pytest.approx([r.intended_s for r in whole.records])
    assert "part 0 of 2" in told.output


def start_part(folder: Path, number: int, start_at: float) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "extproc", "bench", "run", str(folder / "spec.yaml"), "--quiet"]
    part = ["--part", f"{number}/2", "--start-at", str(start_at), "--output", str(folder)]
    return subprocess.Popen([*command, *part])


@pytest.mark.slow
def test_part_that_is_killed_is_named_in_the_verdict(null_server: int, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(tree(null_server, **{"total-prompts": 400})))
    journals = [tmp_path / f"run.part-{number}-of-2.jsonl" for number in range(2)]
    start_at = time.time() + 20
    with start_part(tmp_path, 0, start_at) as stopped, start_part(tmp_path, 1, start_at) as killed:
        for journal in journals:
            wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 10)  # noqa: B023
        killed.kill()
        killed.wait()
        stopped.send_signal(signal.SIGTERM)
        stopped.wait(60)
    told = CliRunner().invoke(bench, ["report", str(tmp_path)])

    assert told.exit_code == DOES_NOT_HOLD
    first, second, *_ = judge(read_run([tmp_path])).reasons
    assert first.startswith("part 0 of 2 is missing of 200 starts: interrupted after")
    assert second.startswith("part 1 of 2 is missing of 200 starts: killed after")


def part_of(whole: Sequence[Record], number: int, count: int, **more: Any) -> tuple[str, RunResult]:
    """The journal of one part of a run with these requests."""
    own = tuple(whole[number::count])
    stats = PartStats(number, count, starts=len(own), start_at=1000.0, **more)
    return f"{number}.jsonl", RunResult(replace(synthetic.result(whole).info, parts=(stats,)), own)


@table(
    ("parts", "kind", "fault"),
    [
        ([(0, {})], "share missing", "part 1 of 2 is missing: it has no journal"),
        ([(0, {}), (0, {}), (1, {})], "share missing", "part 0 was given 2 times: parts overlap"),
        ([(0, {}), (1, {"lost": "it was ready 3.0 s late"})], "share missing", "it was ready 3.0 s late"),
        ([(0, {"clock_offset_s": 4.1}), (1, {"clock_offset_s": -0.2})], "clocks apart", "about 4 s apart"),
        ([(0, {"clock_offset_s": 0.9}), (1, {"clock_offset_s": -0.2})], "", ""),
        ([(0, {}), (1, {})], "", ""),
    ],
    ids=["missing", "twice", "lost", "clocks apart", "clocks near", "whole"],
)
def test_verdict_tells_parts_faults(parts: list[tuple[int, dict[str, Any]]], kind: str, fault: str) -> None:
    records = [synthetic.record(index, index * 0.1) for index in range(10)]
    merged = merge_parts([part_of(records, number, 2, **more) for number, more in parts])
    verdict = judge(merged)

    assert kind in verdict.text
    assert any(fault in reason for reason in verdict.reasons) == bool(fault)
    assert ("share missing" in verdict.kinds or "clocks apart" in verdict.kinds) == bool(fault)


def test_journals_of_other_runs_are_refused_and_of_other_times_told() -> None:
    records = [synthetic.record(0, 0.0)]
    first, (name, other) = (part_of(records, number, 2) for number in range(2))
    late = replace(other.info, parts=(replace(other.info.parts[0], start_at=1012.0),))
    reasons = judge(merge_parts([first, (name, replace(other, info=late))])).reasons

    assert "parts began 12.000 s apart: their --start-at differs" in reasons
    with pytest.raises(JournalError, match="a whole run"):
        merge_parts([first, ("x", synthetic.result(records))])
    with pytest.raises(JournalError, match="different runs"):
        merge_parts([first, (name, replace(other, info=replace(other.info, model="n")))])


async def test_part_that_is_late_says_so_and_leaves_a_journal(null_server: int, tmp_path: Path) -> None:
    part = Part(0, 2, time.time() - 5)
    spec = Spec.model_validate(tree(null_server))
    with pytest.raises(LoadError, match=r"part 0 of 2 was ready .* s after --start-at"):
        await run(spec, progress=Silence(), part=part, journal=tmp_path / part.journal)
    reasons = judge(read_run([tmp_path])).reasons

    assert "after --start-at: give it more time" in reasons[0]
    assert "part 1 of 2 is missing: it has no journal" in reasons


@table(
    ("part", "start_at", "expected"),
    [
        ("0/1", "12.5", Part(0, 1, 12.5)),
        ("2/3", "1970-01-01T00:00:10Z", Part(2, 3, 10.0)),
        ("2/3", "1970-01-01T01:00:10+01:00", Part(2, 3, 10.0)),
        ("3/3", "0", "i from 0 to n-1"),
        ("-1/3", "0", "i from 0"),
        ("1", "0", "i/n"),
        ("0/2", None, "give --start-at"),
        ("0/2", "soon", "RFC 3339"),
        ("0/2", "2026-11-22T12:00:00", "time zone"),
    ],
)
def test_part_and_start_are_read_or_refused(part: str, start_at: str | None, expected: Part | str) -> None:
    if isinstance(expected, Part):
        assert parse_part(part, start_at) == expected
    else:
        with pytest.raises(SettingsError, match=expected):
            parse_part(part, start_at)


async def test_clock_is_compared_with_the_servers_where_it_tells_its_time(null_server: int) -> None:
    offset = await find_clock_offset(f"http://127.0.0.1:{null_server}")

    assert offset is None or abs(offset) < 60
    assert await find_clock_offset("http://127.0.0.1:1") is None


def test_request_that_was_noted_twice_counts_once_as_it_was_noted_last() -> None:
    early = synthetic.record(1, 0.0, output_tokens=0)
    late = synthetic.record(1, 0.0, output_tokens=7)
    lines = encode_lines([early, synthetic.record(0, 0.0), late]) + b'{"index": 9, "se'

    records, cut = decode_lines(lines)

    assert [(r.index, r.output_tokens) for r in records] == [(1, 0), (0, 11), (1, 7)]
    assert cut == 1


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40), st.integers(1, 4))
def test_figures_of_merged_parts_are_those_of_one_run(intended_s: list[float], count: int) -> None:
    """Percentiles are of all records: merging percentiles would not give these."""
    records = [
        synthetic.record(index, at_s, started_s=at_s, end_s=at_s + index / 7)
        for index, at_s in enumerate(intended_s)
    ]
    merged = merge_parts([part_of(records, i, count) for i in reversed(range(count))])
    window = whole_run(merged)

    assert list(merged.records) == records
    assert measure(merged.records, window, Slo(ttft_ms=5000)) == measure(records, window, Slo(ttft_ms=5000))
