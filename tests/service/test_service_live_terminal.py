"""`extproc top` and `extproc explain --watch`: the pictures of a real service, as a terminal shows them."""

import asyncio
import os
import pty
import re
import signal
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from extproc.errors import ExtprocError
from extproc.feedback.outcome import Verdict
from extproc.service.live.terminal import _rate, follow, top
from tests.integration.mesh import until
from tests.integration.service import pool
from tests.service.live_service import Live, looking

HERE = "127.0.0.1:800"


def screen(width: int = 120, height: int = 50) -> Console:
    return Console(file=StringIO(), width=width, height=height, highlight=False, color_system=None)


def shown(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


async def until_watched(live: Live) -> None:
    await until(lambda: live.app.processor.observer is not live.app.metrics, 30)


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
        await until(lambda: shown(console).count("\n") == 5, 30)
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
    async with looking(tmp_path) as live:
        live.request()
        master, slave = pty.openpty()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "extproc", "top", live.url), stdin=slave, stdout=slave, stderr=slave
        )
        os.close(slave)
        text = b""
        async with asyncio.timeout(60):
            while b"8002" not in text:
                text += await asyncio.to_thread(os.read, master, 4_096)
            process.send_signal(signal.SIGINT)
            reading = asyncio.create_task(asyncio.to_thread(_read_all, master))
            status = await process.wait()
            text += await reading
        os.close(master)

    assert status == 0
    assert b"Traceback" not in text
    # The screen that was there before is back.
    assert text.count(b"\x1b[?1049h") == text.count(b"\x1b[?1049l") == 1


def _read_all(descriptor: int) -> bytes:
    text = b""
    while True:
        try:
            data = os.read(descriptor, 4_096)
        except OSError:  # the other end is closed
            return text
        text += data
