"""Whole runs in processes of their own: stalls, scrapes, plugins, deaths, exit codes."""

import asyncio
import multiprocessing
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp.web
import pytest
from click.testing import CliRunner, Result

from extproc.bench.commands import DOES_NOT_HOLD, bench
from extproc.bench.experiments.run import find_model, run, share_out
from extproc.bench.experiments.watch import read_cache_counters, scrape
from extproc.bench.load.driver import LoadError
from extproc.bench.load.process import Done, Ready, StartAt, allow_files, run_process
from extproc.bench.load.registry import build_registry
from extproc.bench.load.workload import build_workload
from extproc.bench.measure import metrics
from extproc.bench.measure.metrics import RunMetrics, measure
from extproc.bench.record import CacheCounters, Record, RunResult, Window
from extproc.bench.report.outputs import write_reports
from extproc.bench.report.report import build
from extproc.bench.spec.section import Component
from extproc.bench.spec.tree import Slo, Spec
from extproc.errors import SettingsError
from tests.bench.running import Silence, answer, build_spec, serving, write_spec
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
        return await answer(request)

    async with serving(chat=stall) as port:
        result = await run_quietly(build_spec(port, {"req-rate": 20, "duration": 3, "max-concurrency": 1}))

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
        return await answer(request)

    async with serving(chat=stall) as port:
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

    async with serving(chat=answer, metrics=metrics) as port:
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

    async with serving(metrics=metrics) as port:
        assert await scrape([f"http://127.0.0.1:{port}/"]) == [None]
    for text in ("", "nonsense {", "# TYPE other counter\nother_total 1\n"):
        assert read_cache_counters(text) is None


async def test_records_hold_endpoint_and_cache_and_the_key_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: set[str | None] = set()

    async def check(request: aiohttp.web.Request) -> aiohttp.web.Response:
        keys.add(request.headers.get("Authorization"))
        return await answer(request)

    monkeypatch.setenv("EXTPROC_TEST_KEY", "secret")
    traffic: dict[str, object] = {"req-rate": 20, "duration": 1, "warm-up": 0.2, "cool-down": 0.3}
    async with serving(chat=check) as port:
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
    async with serving(models=models) as port:
        named, unnamed = build_spec(port, traffic), build_spec(port, traffic, target={})
        assert [await find_model(spec) for spec in (named, unnamed)] == ["m", "tiny"]
    for spec in (unnamed, named):
        with pytest.raises(LoadError, match=rf"127\.0\.0\.1:{port}: Connection refused: no request"):
            await find_model(spec)
    async with serving() as port:  # a server that lists no model
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
def test_plugin_that_cannot_be_used_is_told(name: str, text: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    plugin = str(tmp_path / name) if name.endswith(".py") else name

    with pytest.raises(SettingsError, match=fault):
        build_registry([plugin])


@pytest.mark.slow
async def test_cancelled_run_leaves_no_process_behind() -> None:
    async with serving(chat=answer) as port:
        running = asyncio.create_task(run_quietly(build_spec(port, {"req-rate": 5, "duration": 60})))
        await asyncio.sleep(1.5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_run_command_prints_the_report_and_exits_by_its_verdict(null_server: int, tmp_path: Path) -> None:
    output, traffic = tmp_path / "out", {"req-rate": 50, "total-prompts": 20}
    path = write_spec(tmp_path, null_server, {**traffic})
    good = call("run", path, "--quiet", "--output", str(output), "--metrics-port", "0")
    strict = write_spec(tmp_path, null_server, {**traffic}, limits={"lag-p99": 1e-9})
    bad, allowed = call("run", strict, "--quiet"), call("run", strict, "--allow-client-limited")

    assert (good.exit_code, bad.exit_code, allowed.exit_code) == (0, DOES_NOT_HOLD, 0), good.output
    assert "20 asked, 20 completed, 0 failed, 0 broken off" in good.stdout
    assert "figures of the steady window" in good.stdout
    assert "Successful requests:                     20" in (output / "report.txt").read_text()
    assert "invalid: client-limited" in bad.stderr


def call(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments)


def test_dataset_command_writes_the_file_and_the_account(tmp_path: Path) -> None:
    path, dataset = tmp_path / "dataset.jsonl", {"dataset": "synthetic"}
    spec = write_spec(tmp_path, 1, {"req-rate": 1, "total-prompts": 50, **dataset})
    told, as_json = call("dataset", spec, "--output", str(path)), call("dataset", spec, "--json")

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
        null_server, {"vus": 20, "total-prompts": 1000, "max-output-length": 100}, target={"model": "m"}
    )
    workload = build_workload(spec, build_registry())
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    (share,) = share_out(spec, "m", workload)
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
