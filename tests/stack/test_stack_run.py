"""`make run` and `make demo` as a user meets them: in a terminal, ended by Ctrl-C."""

import re
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.stack.fetch import get, get_json
from tests.stack.stack import eventually

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


def page(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


def press(process: subprocess.Popen[bytes], key: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(key)
    process.stdin.flush()


def pool() -> Any:
    [told] = get_json("http://127.0.0.1:9090/pools")
    return told


def state(port: int) -> str:
    return next(str(one["state"]) for one in pool()["endpoints"] if one["address"] == f"127.0.0.1:{port}")


def picks() -> float:
    lines = get("http://127.0.0.1:9090/metrics").splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("extproc_picks_total{"))


def test_make_run_serves_the_line_it_prints_and_ctrl_c_stops_everything() -> None:
    assert not listening(), f"`make run` needs its ports, and something has these: {listening()}"
    with terminal("make run") as process:
        text = read_until(process, "Ctrl-C stops everything")
        # The first address of all is the page's, and it is there.
        addresses = re.findall(r"http://\S+", text)
        assert b"<title>extproc</title>" in page(addresses[0])
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

        press(process, CTRL_C)

        assert process.wait(30) == 0
    time.sleep(0.2)
    assert listening() == []


@pytest.mark.slow
def test_make_demo_offers_a_load_and_its_keys_change_what_they_say() -> None:
    """1. The load picks. 2. `s`: another strategy, live. 3. `k`: an endpoint dies, `k`: it is back."""
    assert not listening(), f"`make demo` needs its ports, and something has these: {listening()}"
    with terminal("make demo") as process:
        text = read_until(process, "Ctrl-C stops everything")
        assert b"<title>extproc</title>" in page(re.findall(r"http://\S+", text)[0])
        assert pool()["strategy"] == "prefix_cache"
        assert eventually(lambda: picks() > 5, 60)

        press(process, b"s")
        assert eventually(lambda: pool()["strategy"] == "prefix_hash", 60)

        assert eventually(lambda: state(8004) == "ready", 60)
        press(process, b"k")
        assert eventually(lambda: state(8004) != "ready", 60)
        assert 8004 not in listening()
        press(process, b"k")
        assert eventually(lambda: state(8004) == "ready", 60)
        before = picks()
        assert eventually(lambda: picks() > before, 60)

        press(process, CTRL_C)

        assert process.wait(60) == 0
    time.sleep(0.2)
    assert listening() == []
