"""Runs that end before their time: what is kept, and that nobody takes it for a whole one."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.bench.commands import DOES_NOT_HOLD
from extproc.bench.experiments.run import Interrupted, run
from extproc.bench.load.journal import JournalError, read_journal
from extproc.bench.progress import RunSnapshot
from extproc.bench.report.report import build
from extproc.bench.spec.tree import Spec
from tests.bench.running import Silence, build_tree, call
from tests.stack.ports import free_ports
from tests.waiting import wait_until

# Runs as processes that get a signal to end, or die.
pytestmark = pytest.mark.slow


def partial_tree(port: int, **traffic: Any) -> dict[str, Any]:
    return build_tree(port, {"req-rate": 40, "duration": "10m", **traffic}, processes=2)


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def start(folder: Path, port: int) -> "subprocess.Popen[str]":
    spec = folder / "spec.yaml"
    spec.write_text(yaml.safe_dump(partial_tree(port)))
    command = [sys.executable, "-m", "extproc", "bench", "run", str(spec), "--quiet"]
    command += ["--output", str(folder / "out")]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


@pytest.mark.parametrize("is_group", [False, True], ids=["process", "group"])
@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_run_with_a_report_marked_partial(
    told: signal.Signals, is_group: bool, null_server: int, tmp_path: Path
) -> None:
    """Ctrl-C, `timeout`, systemd and CI signal the whole group: its load processes are not to die of it."""
    out = tmp_path / "out"
    with start(tmp_path, null_server) as process:
        wait_until(lambda: count_lines(out / "run.jsonl") > 20)
        os.killpg(process.pid, told) if is_group else process.send_signal(told)
        shown, banner = process.communicate(timeout=60)

    report = json.loads((out / "report.json").read_text())
    counts = report["whole"]["counts"]
    assert process.returncode == DOES_NOT_HOLD
    assert report["verdict"]["text"] == "invalid: partial"
    assert "interrupted after" in banner
    assert "Traceback" not in banner
    assert counts["completed"] >= 20
    assert counts["failures"] == {}
    assert f"{counts['completed']:,} completed, 0 failed" in shown
    assert build(read_journal(out / "run.jsonl")).verdict.text == "invalid: partial"


def test_signal_to_the_group_at_the_start_kills_no_load_process(
    null_server: int, tmp_path: Path
) -> None:
    """They are still being imported: as `timeout` or systemd end what has just begun."""
    with start(tmp_path, null_server) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        # The first one is multiprocessing's own.
        wait_until(lambda: len(children.read_text().split()) >= 3)
        os.killpg(process.pid, signal.SIGTERM)
        _, banner = process.communicate(timeout=60)

    assert "a load process died" not in banner
    assert "interrupted" in banner
    assert process.returncode == DOES_NOT_HOLD


def test_run_that_was_killed_can_still_be_reported(null_server: int, tmp_path: Path) -> None:
    """A line may be cut off anywhere: the load processes end a moment after their parent."""
    journal = tmp_path / "out" / "run.jsonl"
    with start(tmp_path, null_server) as process:
        wait_until(lambda: count_lines(journal) > 20)
        process.kill()
        # Its load processes write until they notice: what they share with it is closed when all are
        # gone.
        process.communicate(timeout=60)
    kept = count_lines(journal)
    with journal.open("ab") as file:
        file.write(b'{"index":999,"sess')

    result = call("report", journal, "--output", tmp_path / "again")

    assert result.exit_code == DOES_NOT_HOLD
    assert "invalid: partial" in result.stderr
    assert "of the journal were cut off half-way" in " ".join(
        result.stderr.replace("│", " ").split()
    )
    report = json.loads((tmp_path / "again" / "report.json").read_text())
    assert report["whole"]["counts"]["completed"] >= kept - 1


async def test_journal_of_a_whole_run_gives_its_report_again(
    null_server: int, tmp_path: Path
) -> None:
    spec = Spec.model_validate(partial_tree(null_server, duration=None, **{"total-prompts": 30}))
    result = await run(spec, progress=Silence(), journal=tmp_path / "run.jsonl")

    assert build(read_journal(tmp_path / "run.jsonl")) == build(result)
    assert len(result.records) == 30
    assert result.info.interrupted_s is None


async def test_requests_not_yet_due_are_not_counted_when_a_run_is_stopped(null_server: int) -> None:
    stop = asyncio.Event()

    class Watcher(Silence):
        def update(self, snapshot: RunSnapshot) -> None:
            if snapshot.finished >= 10:
                stop.set()

    spec = Spec.model_validate(partial_tree(null_server))
    result = await run(spec, progress=Watcher(), stop=stop)

    assert result.info.interrupted_s is not None
    assert all(record.intended_s <= result.info.interrupted_s for record in result.records)
    assert not [record for record in result.records if record.failure == "not sent"]
    assert result.info.window.end_s == result.info.interrupted_s
    with pytest.raises(Interrupted, match="before the first request"):
        await run(spec, progress=Silence(), stop=stop)


def test_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for data in (b"", b"nonsense", b'{"format": "other"}', b"\xff"):
        path.write_bytes(data)
        fault = "not the record of a run" if data else "empty: nothing was written of this run"
        with pytest.raises(JournalError, match=fault):
            read_journal(path)


def invoke_partial(
    folder: Path, spec: dict[str, Any], *arguments: str
) -> "subprocess.CompletedProcess[str]":
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", "extproc", "bench", arguments[0], str(path), *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.parametrize("command", ["run", "saturate"])
def test_server_that_is_not_there_is_said_at_once(command: str, tmp_path: Path) -> None:
    """A spec of ten minutes against a closed port: no schedule, no table of zeros."""
    result = invoke_partial(tmp_path, partial_tree(*free_ports(1)), command, "--quiet")

    assert result.returncode == 2
    assert "Connection refused: no request was sent" in result.stderr
    assert "ssl:" not in result.stderr
    assert result.stdout == ""


def test_server_that_is_gone_ends_the_run_and_is_no_valid_one(tmp_path: Path) -> None:
    """It answers the first look, then nothing listens: twenty requests later the run is over."""
    with socket.create_server(("127.0.0.1", 0)) as once:

        def answer() -> None:
            caller, _ = once.accept()
            caller.recv(65536)
            once.close()
            caller.sendall(
                b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
            caller.close()

        threading.Thread(target=answer).start()
        spec = {**partial_tree(once.getsockname()[1]), "processes": 1}
        result = invoke_partial(tmp_path, spec, "run", "--quiet", "--output", str(tmp_path / "out"))

    assert result.returncode == DOES_NOT_HOLD
    assert "connect 20" in result.stdout
    assert "invalid: requests failed, nothing measured" in result.stderr
    assert "stopped: 20 requests in a row could not connect" in result.stderr
    assert "Connection refused" in result.stderr
    page = (tmp_path / "out" / "report.html").read_text()
    assert 'class="banner bad"' in page


def test_faults_of_the_machine_are_messages_and_no_tracebacks(
    null_server: int, tmp_path: Path
) -> None:
    """A port in use; a folder that cannot be made."""
    spec = partial_tree(null_server, duration=1)
    (tmp_path / "file").touch()
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        used = invoke_partial(tmp_path, spec, "run", "--quiet", "--metrics-port", port)
    folder = invoke_partial(
        tmp_path, spec, "run", "--quiet", "--output", str(tmp_path / "file" / "out")
    )

    for told, fault in ((used, "Address already in use"), (folder, "Not a directory")):
        assert told.returncode == 2
        assert fault in told.stderr
        assert "Traceback" not in told.stderr
