"""envoy/run.py and envoy/demo.py (`make run`, `make demo`) in a terminal, ended by Ctrl-C, at other ports."""

import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.stack.fetch import get, get_json
from tests.stack.ports import is_taken, port_offset
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
PORTS = (8001, 8002, 8003, 8004, 8080, 9002, 9090, 9901)
CTRL_C = b"\x03"

pytestmark = pytest.mark.envoy


@dataclass
class Played:
    """A stack in a terminal, which said `text`: every port is `offset` higher than usual."""

    process: subprocess.Popen[bytes]
    offset: int
    text: str

    def press(self, key: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(key)
        self.process.stdin.flush()

    def pool(self) -> Any:
        [shown] = get_json(f"http://127.0.0.1:{9090 + self.offset}/pools")
        return shown

    def state(self, port: int) -> str:
        address = f"127.0.0.1:{port + self.offset}"
        return next(
            str(one["state"]) for one in self.pool()["endpoints"] if one["address"] == address
        )

    def picks(self) -> float:
        lines = get(f"http://127.0.0.1:{9090 + self.offset}/metrics").splitlines()
        return sum(
            float(each.rpartition(" ")[2])
            for each in lines
            if each.startswith("extproc_picks_total{")
        )

    def listening(self) -> list[int]:
        return [port for port in PORTS if is_taken(port + self.offset)]


@contextmanager
def played(script: str) -> Iterator[Played]:
    """Runs a script in a terminal of its own, where its stdin is typed; Ctrl-C ends all."""
    with port_offset() as offset:
        # Not the session's leader, as it is none below `make`.
        command = (
            f"RUN_PORT_OFFSET={offset} PYTHONPATH={ROOT} {sys.executable} envoy/{script}; exit $?"
        )
        words = ["script", "--quiet", "--return", "--command", command, "/dev/null"]
        with subprocess.Popen(
            words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            try:
                stack = Played(process, offset, read_until(process, "Ctrl-C stops everything"))
                # The first address of all is the page's, and it is there.
                assert b"<title>extproc-router</title>" in fetch_page(
                    re.findall(r"http://\S+", stack.text)[0]
                )
                yield stack
                stack.press(CTRL_C)
                stack.text += process.stdout.read().decode()  # type: ignore[union-attr]  # a pipe
                assert process.wait(60) == 0
                wait_until(lambda: stack.listening() == [])
            finally:
                process.terminate()
                shutil.rmtree(ROOT / f".run-{offset}", ignore_errors=True)


def read_until(process: subprocess.Popen[bytes], words: str) -> str:
    assert process.stdout is not None
    text = ""
    while words not in text:
        line = process.stdout.readline()
        assert line, f"ended early:\n{text}"
        text += line.decode()
    return text


def fetch_page(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return bytes(answer.read())


def test_run_serves_the_line_it_prints_and_ctrl_c_stops_everything() -> None:
    with played("run.py") as stack:
        text = stack.text
        curl = (
            text[text.index("curl -si") : text.index("Ctrl-C")]
            .replace("\r\n", "\n")
            .replace("\\\n", " ")
        )
        command = shlex.split(curl)
        answers = [
            subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL) for _ in "12"
        ]
        served = [re.findall(r"x-served-by: (\S+)", answer) for answer in answers]
        cached = [re.search(r'"cached_tokens":(\d+)', answer) for answer in answers]

        assert all(answer.startswith("HTTP/1.1 200") for answer in answers)
        assert served[0] == served[1] != []
        assert [match and int(match[1]) > 0 for match in cached] == [False, True]
        assert stack.listening() == list(PORTS)


def test_demo_offers_a_load_and_its_keys_change_what_they_say() -> None:
    """1. The load picks. 2. `s`: another strategy, live. 3. `k`: an endpoint dies, `k`: it is back."""
    with played("demo.py") as stack:
        assert stack.pool()["strategy"] == "prefix_cache"
        wait_until(lambda: stack.picks() > 5)

        stack.press(b"xs")
        wait_until(lambda: stack.pool()["strategy"] == "prefix_hash")

        wait_until(lambda: stack.state(8004) == "ready")
        stack.press(b"k")
        wait_until(lambda: stack.state(8004) != "ready")
        assert 8004 not in stack.listening()
        stack.press(b"k")
        wait_until(lambda: stack.state(8004) == "ready")
        before = stack.picks()
        wait_until(lambda: stack.picks() > before)

    said, _, rest = stack.text.partition("stopping")
    assert "no key x: there are s, k, ? and q" in said
    assert rest
    assert "in flight" not in rest
