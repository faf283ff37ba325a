"""A pool with `record`: its file, in the published form; and what goes wrong with files hurts no request."""

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from extproc.simulator.fleet.trace import read_trace
from tests.router.service.live_service import Live, serving_live
from tests.stack.service import Pool, pool
from tests.waiting import until


def _recording(file: str, **fields: Any) -> list[Pool]:
    record = {"file": file, "share": 1.0, **fields}
    return [pool(["127.0.0.1:1"], {"name": "prefix_cache"}, probe=False, record=record)]


def _serve(live: Live, count: int) -> None:
    for number in range(count):
        live.request(f"SECRET {number} " + "hello " * 700).pick.release()


async def test_trace_is_written_and_read_as_it_is(tmp_path: Path) -> None:
    async with serving_live(tmp_path, _recording("trace.jsonl")) as live:
        _serve(live, 5)
        path = tmp_path / "trace.jsonl"
        await until(lambda: path.exists() and path.read_bytes().count(b"\n") == 5)
        trace = read_trace(str(path))
        file = live.app.pools["vllm"].trace_file
        assert file
        await until(lambda: file.rows["written"] == 5)
        async with live.session.get(f"{live.url}/metrics") as metrics:
            samples = await metrics.text()

    assert 'extproc_record_rows_total{pool="vllm",result="written"} 5.0' in samples
    assert len(trace.sessions) == 5
    assert "SECRET" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


async def test_each_start_and_each_full_file_begins_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("before\n")
    async with serving_live(tmp_path, _recording("t")) as live, live.watching():
        _serve(live, 2)
        await until(lambda: (tmp_path / "t.1").exists() and (tmp_path / "t").exists())
        live.configure([pool(["127.0.0.1:1"], {"name": "prefix_cache"}, probe=False)])
        await until(lambda: not live.app.pools["vllm"].pool.listeners)

    assert (tmp_path / "t.1").read_text() == "before\n"
    assert (tmp_path / "t").read_bytes().count(b"\n") == 2


async def test_file_that_cannot_be_put_aside_takes_no_rows_of_another_key(tmp_path: Path) -> None:
    """So it does not outgrow its limit either. It goes on once the way is free."""
    (tmp_path / "t").write_text("before\n")
    (tmp_path / "t.1").mkdir()
    async with serving_live(tmp_path, _recording("t")) as live:
        trace = live.app.pools["vllm"].trace_file
        assert trace
        _serve(live, 3)
        await until(lambda: trace.rows["lost"] == 3)
        _serve(live, 3)
        await until(lambda: trace.rows["lost"] == 6)
        assert (tmp_path / "t").read_text() == "before\n"
        (tmp_path / "t.1").rmdir()
        _serve(live, 2)
        await until(lambda: trace.rows["written"] == 2)

    assert (tmp_path / "t.1").read_text() == "before\n"


@pytest.mark.parametrize("file", ["absent/t", ".", "full", "pipe"])
async def test_file_that_cannot_be_written_costs_rows_alone(
    file: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "full").symlink_to("/dev/full")
    os.mkfifo(tmp_path / "pipe")
    async with serving_live(tmp_path, _recording(file)) as live:
        _serve(live, 3)
        await until(lambda: "the trace is not written" in caplog.text)
        _serve(live, 3)
        trace = live.app.pools["vllm"].trace_file
        assert trace
        await until(lambda: trace.rows == {"written": 0, "lost": 6})

        assert not live.app.faults()
    assert caplog.text.count("the trace is not written") == 1
