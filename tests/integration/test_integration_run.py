"""`make run` as a user meets it: in a terminal, ended by Ctrl-C."""

import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PORTS = (8001, 8002, 8003, 8004, 8080, 9002, 9090, 9901)
CTRL_C = b"\x03"

pytestmark = pytest.mark.envoy


@contextmanager
def terminal(command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs `command` in a terminal of its own; what is written to its stdin is typed there."""
    words = ["script", "--quiet", "--return", "--command", command, "/dev/null"]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.terminate()


def read_until(process: subprocess.Popen[bytes], words: str) -> str:
    assert process.stdout is not None
    text = ""
    while words not in text:
        line = process.stdout.readline()
        assert line, f"ended early:\n{text}"
        text += line.decode()
    return text


def listening() -> list[int]:
    table = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True, check=True).stdout
    return [port for port in PORTS if re.search(rf"127\.0\.0\.1\]?:{port}\s", table)]


def test_make_run_serves_the_line_it_prints_and_ctrl_c_stops_everything() -> None:
    assert not listening(), f"`make run` needs its ports, and something has these: {listening()}"
    with terminal("make run") as process:
        text = read_until(process, "Ctrl-C stops everything")
        curl = text[text.index("curl -si") : text.index("Ctrl-C")].replace("\r\n", "\n").replace("\\\n", " ")
        answers = [
            subprocess.run(shlex.split(curl), capture_output=True, text=True, check=True).stdout for _ in "12"
        ]
        served = [re.search(r"x-served-by: (\S+)", answer) for answer in answers]
        cached = [re.search(r'"cached_tokens":(\d+)', answer) for answer in answers]

        assert all(answer.startswith("HTTP/1.1 200") for answer in answers)
        assert served[0] is not None
        assert served[1] is not None
        assert served[0][1] == served[1][1]
        assert [match and int(match[1]) > 0 for match in cached] == [False, True]
        assert listening() == list(PORTS)

        assert process.stdin is not None
        process.stdin.write(CTRL_C)
        process.stdin.flush()

        assert process.wait(30) == 0
    time.sleep(0.2)
    assert listening() == []
