"""`extproc top` and `extproc explain --watch`: the pictures of a real service, as a terminal shows them."""

import asyncio
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from extproc.errors import ExtprocError
from extproc.router.feedback.outcome import Verdict
from extproc.router.service.live.terminal import _rate, follow, top
from tests.router.service.live_service import Live, looking
from tests.stack.service import pool
from tests.waiting import until

HERE = "127.0.0.1:800"


def screen(width: int = 120, height: int = 50) -> Console:
    return Console(file=StringIO(), width=width, height=height, highlight=False, color_system=None)


def shown(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


async def until_watched(live: Live) -> None:
    await until(lambda: live.app.processor.observer is not live.app.metrics)


async def test_top_shows_what_the_page_shows(tmp_path: Path) -> None:
    console = screen()
    async with looking(tmp_path) as live:
        showing = asyncio.create_task(top(live.url, console, count=2))
        await until_watched(live)
        name = live.request().pick.endpoint.name
        live.outcome("vllm", name, Verdict.ANSWERED, 0.25)
        other = f"{HERE}{3 - int(name[-1])}"
        live.fail("vllm", other)
        await showing

    lines = shown(console).splitlines()
    [of_name] = [line.split() for line in lines if line.strip().startswith(name)]
    [of_other] = [line.split() for line in lines if line.strip().startswith(other)]
    assert lines[0].startswith("extproc ")
    assert re.search(r"ready  \d\.\d requests/s  1 in flight", lines[0])
    assert of_name[1:2] + of_name[3:7] == ["ready", "1/4", "100", "%", "250"]
    assert of_other[1] == "cooling"
    assert any(f"  home        {name}  " in line for line in lines)


@pytest.mark.parametrize(
    ("totals", "rate"),
    [
        ([(1, 5)], 0.0),  # nothing to compare with
        ([(1, 5), (2, 9)], 4.0),
        ([(1, 5), (4, 11)], 2.0),  # two pictures were missed
        ([(7, 900), (1, 3)], 0.0),  # the service began again
        ([(7, 900), (8, 3)], 0.0),  # the tape did
    ],
)
def test_the_rate_is_over_the_pictures_that_there_were(totals: list[tuple[int, int]], rate: float) -> None:
    assert _rate(totals) == rate


async def test_top_shows_those_in_trouble_and_the_busiest_where_there_are_more_than_lines(
    tmp_path: Path,
) -> None:
    addresses = [f"10.0.0.{n}:80" for n in range(100)]
    console = screen(height=30)
    async with looking(tmp_path, [pool(addresses, {"name": "round_robin"}, probe=False)]) as live:
        busy = live.request().pick.endpoint.name
        live.fail("vllm", addresses[-1])
        await top(live.url, console, count=1)

    names = [line.split()[:1] for line in shown(console).splitlines()]
    rows = [name for [name] in filter(None, names) if name.startswith("10.0.0.")]
    assert rows[:2] == [addresses[-1], busy]
    assert len(shown(console).splitlines()) <= 30


async def test_watching_follows_every_decision_and_says_how_many_it_left_out(tmp_path: Path) -> None:
    console = screen()
    async with looking(tmp_path) as live:
        following = asyncio.create_task(follow(live.url, console, count=55))
        await until_watched(live)
        first = [live.request(f"a secret {n}").pick.endpoint.name for n in range(5)]
        await until(lambda: shown(console).count("\n") == 5)
        for number in range(100):
            live.request(str(number))
        await following

    lines = shown(console).splitlines()
    assert [line.split()[3] for line in lines[:5]] == first
    assert lines[5] == "… 50 more"
    assert len(lines) == 56
    assert "secret" not in shown(console)


async def test_a_name_cannot_move_the_cursor(tmp_path: Path) -> None:
    endpoints = tmp_path / "endpoints.yaml"
    endpoints.write_text(r'[{address: 10.0.0.1, port: 1, name: "\e[2J[red]evil"}]')
    pools = [{"name": "a", "endpoints": {"file": "endpoints.yaml"}, "probe": False}]
    console = screen()
    async with looking(tmp_path, pools) as live:
        await top(live.url, console, count=1)

    assert "�[2J[red]evil" in shown(console)
    assert "\x1b" not in shown(console)


async def test_where_nothing_can_be_watched_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(ExtprocError, match=r"127\.0\.0\.1:1"):
        await top("http://127.0.0.1:1", screen())
    async with looking(tmp_path) as live:
        with pytest.raises(ExtprocError, match="has nothing to watch: 404"):
            await top(f"{live.url}/pools", screen())


async def test_top_runs_in_a_terminal_until_ctrl_c(tmp_path: Path) -> None:
    """As a user meets it: the command, in a pseudo-terminal of its own."""
    async with looking(tmp_path) as live, started("top", live.url) as terminal:
        live.request()
        text = await terminal.until(b"8002")
        text += await terminal.interrupt()

    assert terminal.status == 0
    assert b"Traceback" not in text
    # The screen that was there before is back.
    assert text.count(b"\x1b[?1049h") == text.count(b"\x1b[?1049l") == 1


async def test_explain_watch_runs_in_a_terminal_until_ctrl_c(tmp_path: Path) -> None:
    """The command: no configuration, no body; a line for each decision of the service at `--url`."""
    async with looking(tmp_path) as live, started("explain", "--watch", "--url", live.url) as terminal:
        await until_watched(live)
        picked = [live.request(f"a secret {n}").pick.endpoint.name for n in range(3)]
        lines = (await terminal.until(b"\n", 3)).decode().splitlines()
        rest = await terminal.interrupt()

    assert terminal.status == 0
    assert [re.sub("\x1b[^m]*m", "", line).split()[1:4] for line in lines[:3]] == [
        ["vllm", "home", name] for name in picked
    ]
    assert "secret" not in "".join(lines)
    assert b"Traceback" not in rest


async def test_explain_watch_ends_when_its_reader_does(tmp_path: Path) -> None:
    """`extproc explain --watch | head -1`."""
    async with looking(tmp_path) as live:
        command = f"{sys.executable} -m extproc explain --watch --url {live.url} | head -1"
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *("bash", "-o", "pipefail", "-c", command), stdout=pipe, stderr=pipe
        )
        await until_watched(live)
        name = live.request().pick.endpoint.name
        assert process.stdout is not None
        async with asyncio.timeout(60):
            line = await process.stdout.readline()
            while process.returncode is None:
                live.request()
                await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=0.1)
        _, said = await process.communicate()

    assert name in line.decode()
    assert b"Traceback" not in said


@pytest.mark.parametrize(
    "words", [("top", "http://127.0.0.1:1"), ("explain", "--watch", "--url", "http://127.0.0.1:1")]
)
def test_who_watches_where_nothing_listens_is_told_and_the_status_says_so(words: tuple[str, ...]) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "extproc", *words], capture_output=True, text=True, check=False, timeout=60
    )

    assert run.returncode != 0
    assert "127.0.0.1:1" in run.stderr
    assert "Traceback" not in run.stderr


@dataclass
class Terminal:
    """A command in a pseudo-terminal of its own."""

    process: asyncio.subprocess.Process
    master: int
    status: int | None = None

    async def until(self, word: bytes, count: int = 1) -> bytes:
        """Reads until `word` was shown so often."""
        text = b""
        async with asyncio.timeout(60):
            while text.count(word) < count:
                text += await asyncio.to_thread(os.read, self.master, 4_096)
        return text

    async def interrupt(self) -> bytes:
        """Ctrl-C; returns what is shown until the end."""
        async with asyncio.timeout(60):
            self.process.send_signal(signal.SIGINT)
            reading = asyncio.create_task(asyncio.to_thread(_read_all, self.master))
            self.status = await self.process.wait()
            return await reading


@asynccontextmanager
async def started(*words: str) -> AsyncGenerator[Terminal]:
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc", *words), stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(master)


def _read_all(descriptor: int) -> bytes:
    text = b""
    while True:
        try:
            data = os.read(descriptor, 4_096)
        except OSError:  # the other end is closed
            return text
        text += data
