"""A run, whole and in parts."""

import asyncio
import multiprocessing
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp.web
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from extproc.bench.commands import DOES_NOT_HOLD
from extproc.bench.experiments.run import find_model, run, split_over_machines, split_schedule
from extproc.bench.experiments.watch import read_cache_counters, scrape
from extproc.bench.judge.verdict import judge
from extproc.bench.load.driver import LoadError
from extproc.bench.load.journal import JournalError, decode_lines, encode_lines
from extproc.bench.load.parts import Part, find_clock_offset, merge_parts, parse_part, read_run
from extproc.bench.load.process import Done, Ready, StartAt, allow_files, run_process
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import build_workload
from extproc.bench.measure import metrics
from extproc.bench.measure.metrics import RunMetrics, measure, whole_run
from extproc.bench.record import CacheCounters, PartStats, Record, RunResult, Window
from extproc.bench.report.outputs import write_reports
from extproc.bench.report.report import build
from extproc.bench.spec.section import Component
from extproc.bench.spec.tree import Slo, Spec
from extproc.errors import SettingsError
from tests.bench import synthetic
from tests.bench.running import (
    Silence,
    build_spec,
    build_tree,
    call,
    null_answer,
    serving_null,
    write_spec,
)
from tests.tables import table
from tests.waiting import wait_until


async def run_quietly(spec: Spec) -> RunResult:
    return await run(spec, progress=Silence())


@pytest.mark.slow
async def test_stalled_server_shows_in_latency_from_the_intended_start() -> None:
    """Coordinated omission: a server that stops for 2 s delays all that was due meanwhile.

    1. One request at a time may be in flight, 20 a second are due.
    2. The server answers at once, but at its fifth request it stops for two seconds.
    3. From send, one request took more than a second. From the intended start, some twenty did.
    """
    seen = 0

    async def stall(request: aiohttp.web.Request) -> aiohttp.web.Response:
        nonlocal seen
        seen += 1
        if seen == 5:
            await asyncio.sleep(2)
        return await null_answer(request)

    async with serving_null(chat=stall) as port:
        result = await run_quietly(
            build_spec(port, {"req-rate": 20, "duration": 3, "max-concurrency": 1})
        )

    ends = [(record.end_s or 0, record) for record in result.records]
    assert sum(end_s - (record.sent_s or 0) > 1 for end_s, record in ends) == 1
    assert sum(end_s - record.intended_s > 1 for end_s, record in ends) >= 18


@pytest.mark.slow
async def test_open_loop_keeps_sending_through_a_stall() -> None:
    """Without a cap nothing waits for the stalled request: it ends when all twenty are there."""
    gate, seen = asyncio.Event(), 0

    async def stall(request: aiohttp.web.Request) -> aiohttp.web.Response:
        nonlocal seen
        seen += 1
        if seen == 20:
            gate.set()
        await gate.wait()
        return await null_answer(request)

    async with serving_null(chat=stall) as port:
        result = await run_quietly(build_spec(port, {"req-rate": 20, "duration": 1}))

    assert [record.is_ok for record in result.records] == [True] * 20


METRICS = """# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{{engine="0"}} {queries}
vllm:prefix_cache_queries_total{{engine="1"}} 5
# TYPE vllm:prefix_cache_hits_total counter
vllm:prefix_cache_hits_total{{engine="0"}} {hits}
"""


async def test_hit_rate_is_what_the_counters_rose_during_the_run() -> None:
    asked = 0

    async def metrics(request: aiohttp.web.Request) -> aiohttp.web.Response:
        del request
        nonlocal asked
        asked += 1
        return aiohttp.web.Response(text=METRICS.format(queries=100 * asked, hits=100 + 60 * asked))

    async with serving_null(chat=null_answer, metrics=metrics) as port:
        scraped = (f"127.0.0.1:{port}", "127.0.0.1:1")
        spec = build_spec(port, {"req-rate": 10, "total-prompts": 3}, scrape=scraped)
        result = await run_quietly(spec)

    good, dead = result.info.scrapes
    assert good.before == CacheCounters(105.0, 160.0)
    assert good.hit_rate == pytest.approx(0.6)
    assert (dead.before, dead.after, dead.hit_rate) == (None, None, None)


async def test_scrape_without_counters_gives_none() -> None:
    async def metrics(request: aiohttp.web.Request) -> aiohttp.web.Response:
        del request
        return aiohttp.web.Response(status=500)

    async with serving_null(metrics=metrics) as port:
        assert await scrape([f"http://127.0.0.1:{port}/"]) == [None]
    for text in ("", "nonsense {", "# TYPE other counter\nother_total 1\n"):
        assert read_cache_counters(text) is None


async def test_records_hold_endpoint_and_cache_and_the_key_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys: set[str | None] = set()

    async def check(request: aiohttp.web.Request) -> aiohttp.web.Response:
        keys.add(request.headers.get("Authorization"))
        return await null_answer(request)

    monkeypatch.setenv("EXTPROC_TEST_KEY", "secret")
    traffic: dict[str, object] = {"req-rate": 20, "duration": 1, "warm-up": 0.2, "cool-down": 0.3}
    async with serving_null(chat=check) as port:
        target = {"model": "m", "api-key-env": "EXTPROC_TEST_KEY"}
        result = await run_quietly(build_spec(port, traffic, target=target))

    record = result.records[0]
    assert keys == {"Bearer secret"}
    assert (record.endpoint, record.cached_tokens, record.input_tokens) == ("10.0.0.1:8000", 3, 7)
    assert (result.info.window.start_s, result.info.window.end_s) == (0.2, 0.7)
    assert sum(map(result.info.window.holds, result.records)) == 10
    assert result.info.offered_rps == pytest.approx(20)


def test_load_process_may_open_as_many_files_as_the_machine_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
        allow_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_model_is_asked_for_where_the_spec_names_none() -> None:
    async def models(request: aiohttp.web.Request) -> aiohttp.web.Response:
        del request
        return aiohttp.web.json_response({"data": [{"id": "tiny"}]})

    traffic: dict[str, object] = {"req-rate": 1, "total-prompts": 1}
    async with serving_null(models=models) as port:
        named, unnamed = build_spec(port, traffic), build_spec(port, traffic, target={})
        assert [await find_model(spec) for spec in (named, unnamed)] == ["m", "tiny"]
    for spec in (unnamed, named):
        with pytest.raises(
            LoadError, match=rf"127\.0\.0\.1:{port}: Connection refused: no request"
        ):
            await find_model(spec)
    async with serving_null() as port:  # a server that lists no model
        assert await find_model(build_spec(port, traffic)) == "m"
        with pytest.raises(LoadError, match=r"give target\.model"):
            await find_model(build_spec(port, traffic, target={}))


PLUGIN = """
import os
from extproc.bench.datasets.conversation import Conversation, TurnMessage, ChatTurn

def register(registry):
    def poems(dataset, need, rng):
        return [Conversation((ChatTurn((TurnMessage("user", f"poem {i}"),), 3),)) for i in range(need)]
    registry.datasets["poems"] = poems
    registry.clients["fatal"] = Fatal

class Fatal:
    def __init__(self, wiring):
        pass

    async def send(self, ask, record):
        os._exit(9)

    async def close(self):
        pass
"""


@pytest.mark.slow
async def test_users_module_brings_its_own_parts(null_server: int, tmp_path: Path) -> None:
    """Its dataset is used; its client kills the load process, which is an error and no result."""
    plugin = tmp_path / "poems.py"
    plugin.write_text(PLUGIN)
    traffic: dict[str, object] = {"req-rate": 20, "total-prompts": 4, "dataset": "poems"}
    spec = build_spec(null_server, traffic, plugins=(str(plugin),))
    result = await run_quietly(spec)

    assert [record.is_ok for record in result.records] == [True] * 4
    fatal = spec.target.model_copy(update={"api": Component(name="fatal")})
    with pytest.raises(LoadError, match="exit code 9"):
        await run_quietly(spec.model_copy(update={"target": fatal}))


OLD_PLUGIN = "def register(registry):\n    registry.reports['mine.txt'] = str\n"


@table(
    ("name", "text", "fault"),
    [
        ("nosuch.module", "", "No module"),
        ("a.py", "a =", "invalid syntax"),
        ("b.py", "", "no function"),
        ("c.py", OLD_PLUGIN, r"registry\.reports was removed in 0\.2"),
    ],
)
def test_plugin_that_cannot_be_used_is_told(
    name: str, text: str, fault: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    plugin = str(tmp_path / name) if name.endswith(".py") else name

    with pytest.raises(SettingsError, match=fault):
        build_registry([plugin])


@pytest.mark.slow
async def test_cancelled_run_leaves_no_process_behind() -> None:
    async with serving_null(chat=null_answer) as port:
        running = asyncio.create_task(
            run_quietly(build_spec(port, {"req-rate": 5, "duration": 60}))
        )
        await asyncio.sleep(1.5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_run_command_prints_the_report_and_exits_by_its_verdict(
    null_server: int, tmp_path: Path
) -> None:
    output, traffic = tmp_path / "out", {"req-rate": 50, "total-prompts": 40}
    path = write_spec(tmp_path, null_server, {**traffic})
    good = call("run", path, "--quiet", "--output", output, "--metrics-port", "0")
    strict = write_spec(tmp_path, null_server, {**traffic}, limits={"lag-p99": 1e-9})
    bad, allowed = call("run", strict, "--quiet"), call("run", strict, "--allow-client-limited")

    assert (good.exit_code, bad.exit_code, allowed.exit_code) == (0, DOES_NOT_HOLD, 0), good.output
    assert "40 asked, 40 completed, 0 failed, 0 cut off" in good.stdout
    assert "figures of the steady window" in good.stdout
    assert "Successful requests:                     40" in (output / "report.txt").read_text()
    assert "invalid: client-limited" in bad.stderr


def test_dataset_command_writes_the_file_and_the_account(tmp_path: Path) -> None:
    path, dataset = tmp_path / "dataset.jsonl", {"dataset": "synthetic"}
    spec = write_spec(tmp_path, 1, {"req-rate": 1, "total-prompts": 50, **dataset})
    told, as_json = call("dataset", spec, "--output", path), call("dataset", spec, "--json")

    assert told.exit_code == 0, told.output
    assert "ideal hit rate" in told.output
    assert path.read_text().startswith('{"format":"extproc-dataset"')
    assert '"prompts": 50' in as_json.output


def read_children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_load_ends_when_its_parent_is_killed(null_server: int, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, null_server, {"req-rate": 10, "duration": "10m"}, processes=2)
    command = [sys.executable, "-m", "extproc", "bench", "run", spec, "--quiet"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as parent:
        # Two load processes and the resource tracker of multiprocessing.
        wait_until(lambda: len(read_children(parent.pid)) == 3)
        children = read_children(parent.pid)
        parent.kill()

    wait_until(lambda: not any(map(is_running, children)))


async def test_run_is_measured_once_however_many_formats_tell_it(
    null_server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: list[Window] = []

    def count(records: Sequence[Record], window: Window, slo: Slo) -> RunMetrics:
        windows.append(window)
        return measure(records, window, slo)

    monkeypatch.setattr(metrics, "measure", count)
    result = await run_quietly(build_spec(null_server, {"req-rate": 50, "total-prompts": 10}))
    said = build(result)
    write_reports(result, said, tmp_path)

    assert windows == [said.whole.window, said.steady.window]


@pytest.mark.slow
def test_process_with_much_to_tell_waits_for_a_parent_that_is_slow(null_server: int) -> None:
    """A thousand answers of 100 chunks are more than a pipe holds; a late parent gets them all."""
    spec = build_spec(
        null_server,
        {"vus": 20, "total-prompts": 1000, "max-output-length": 100},
        target={"model": "m"},
    )
    workload = build_workload(spec, build_registry())
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    (share,) = split_schedule(spec, "m", workload)
    taken = context.Value("q", 0)
    process = context.Process(target=run_process, args=(share, theirs, taken))
    process.start()
    theirs.close()
    assert isinstance(mine.recv(), Ready)
    mine.send(StartAt(time.monotonic()))
    process.join(8)
    messages = iter(mine.recv, None)
    done = next(message for message in messages if isinstance(message, Done))
    process.join()

    assert len(done.records) == 1000
    assert process.exitcode == 0


def report_tree(port: int, **more: Any) -> dict[str, Any]:
    return build_tree(port, {"req-rate": 20, "total-prompts": 40, **more})


@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 60), st.booleans())
def test_parts_together_are_the_schedule(
    count: int, processes: int, prompts: int, is_closed: bool
) -> None:
    """Every start, every user and every conversation is one part's; no other part has it."""
    shape = {"vus": 20} if is_closed else {"req-rate": 10}
    dataset = {"name": "random", "input_tokens": 4}
    traffic = {"total-prompts": prompts + 1, "dataset": dataset, **shape}
    base = {"endpoint": "h", "processes": processes, "performance": {"traffic-shape": traffic}}
    spec = split_over_machines(Spec.model_validate(base), count)
    workload = build_workload(spec, build_registry())
    shares = split_schedule(spec, "m", workload, machines=count)
    parts = [shares[number::count] for number in range(count)]
    starts = sorted(start for part in parts for share in part for start in share.starts)
    users = sum(share.users for part in parts for share in part)
    numbers = [number for part in parts for number in part[0].numbers] if is_closed else []

    assert [at_s for _, at_s in starts] == list(workload.starts_s or ())
    assert users == (20 if is_closed else 0)
    assert sorted(numbers) == list(range(len(numbers)))
    assert all(share.numbers == part[0].numbers for part in parts for share in part)


@pytest.mark.slow
async def test_merged_report_counts_what_one_machine_counts(
    null_server: int, tmp_path: Path
) -> None:
    """Both parts are ready long before they begin, whatever else the machine does."""
    spec, start_at = Spec.model_validate(report_tree(null_server)), time.time() + 40
    parts = [Part(number, 2, start_at) for number in range(2)]
    results = await asyncio.gather(
        *(
            run(spec, progress=Silence(), part=each, journal=tmp_path / each.journal)
            for each in parts
        )
    )
    whole = await run(spec, progress=Silence())
    result = call("report", tmp_path, "--output", tmp_path)
    report = msgspec.json.decode((tmp_path / "report.json").read_bytes())

    assert result.exit_code == 0, result.output
    assert report["verdict"]["text"].startswith("valid")
    assert [len(each.records) for each in results] == [20, 20]
    assert [
        (part["number"], part["count"], part["starts"], part["records"]) for part in report["parts"]
    ] == [
        (0, 2, 20, 20),
        (1, 2, 20, 20),
    ]
    assert report["whole"]["counts"]["completed"] == len(whole.records) == 40
    merged = merge_parts([(str(i), each) for i, each in enumerate(results)])
    assert [r.intended_s for r in merged.records] == pytest.approx(
        [r.intended_s for r in whole.records]
    )
    assert "part 0 of 2" in result.output


def start_part(folder: Path, number: int, start_at: float) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        "-m",
        "extproc",
        "bench",
        "run",
        str(folder / "spec.yaml"),
        "--quiet",
    ]
    part = ["--part", f"{number}/2", "--start-at", str(start_at), "--output", str(folder)]
    return subprocess.Popen([*command, *part])


@pytest.mark.slow
def test_part_that_is_killed_is_named_in_the_verdict(null_server: int, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(
        yaml.safe_dump(report_tree(null_server, **{"total-prompts": 400}))
    )
    journals = [tmp_path / f"run.part-{number}-of-2.jsonl" for number in range(2)]
    start_at = time.time() + 40
    with start_part(tmp_path, 0, start_at) as stopped, start_part(tmp_path, 1, start_at) as killed:
        for journal in journals:
            wait_until(lambda: journal.exists() and journal.read_bytes().count(b"\n") > 10)  # noqa: B023
        killed.kill()
        killed.wait()
        stopped.send_signal(signal.SIGTERM)
        stopped.wait(60)
    result = call("report", tmp_path)

    assert result.exit_code == DOES_NOT_HOLD
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
        (
            [(0, {}), (1, {"lost": "it was ready 3.0 s late"})],
            "share missing",
            "it was ready 3.0 s late",
        ),
        (
            [(0, {"clock_offset_s": 4.1}), (1, {"clock_offset_s": -0.2})],
            "clocks apart",
            "about 4 s apart",
        ),
        ([(0, {"clock_offset_s": 0.9}), (1, {"clock_offset_s": -0.2})], "", ""),
        ([(0, {}), (1, {})], "", ""),
    ],
    ids=["missing", "twice", "lost", "clocks apart", "clocks near", "whole"],
)
def test_verdict_tells_parts_faults(
    parts: list[tuple[int, dict[str, Any]]], kind: str, fault: str
) -> None:
    records = [synthetic.record(index, index * 0.025) for index in range(40)]
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


async def test_part_that_is_late_says_so_and_leaves_a_journal(
    null_server: int, tmp_path: Path
) -> None:
    part = Part(0, 2, time.time() - 5)
    spec = Spec.model_validate(report_tree(null_server))
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
def test_part_and_start_are_read_or_refused(
    part: str, start_at: str | None, expected: Part | str
) -> None:
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
    assert measure(merged.records, window, Slo(ttft_ms=5000)) == measure(
        records, window, Slo(ttft_ms=5000)
    )
