"""Workers on machines of their own, as near as one machine gets to that: namespaces of network and time.

Without root, or without the tools, they are processes on loopback.
"""

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from extproc.bench.load.crew import Crew
from tests.stack.ports import free_ports

TOKEN = "a-token-of-the-tests"
_PORT = 9200


@dataclass(frozen=True)
class Machine:
    """One worker: where it listens, and its process, the head of a group of its own."""

    host: str
    port: int
    process: subprocess.Popen[bytes]

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    def kill(self) -> None:
        """As the kernel does when memory is out: without a word."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


@dataclass(frozen=True)
class Machines:
    """Workers, and the address at which they reach a server of the test."""

    server: str
    all: Sequence[Machine]
    are_apart: bool

    def crew(self, *numbers: int) -> Crew:
        return Crew(tuple((self.all[i].host, self.all[i].port) for i in numbers), TOKEN, ready_within_s=90.0)


def can_be_apart() -> bool:
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "unshare"))) and _try("ip", "link")


def _try(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@contextmanager
def machines(count: int, folder: Path) -> Iterator[Machines]:
    """Starts workers; each one's monotonic clock is some 1,000 s off the next one's."""
    token = folder / "token"
    token.write_text(TOKEN + "\n")
    with ExitStack() as stack:
        if can_be_apart():
            net, spaces = stack.enter_context(_bridge(count))
            places = [
                (f"{net}.{i + 2}", _PORT, ["ip", "netns", "exec", space, *_other_clock(i)])
                for i, space in enumerate(spaces)
            ]
        else:
            net = ""
            places = [("127.0.0.1", port, []) for port in free_ports(count)]
        started = [stack.enter_context(_worker(*place, token)) for place in places]
        yield Machines(f"{net}.1" if net else "127.0.0.1", started, bool(net))


@contextmanager
def _worker(host: str, port: int, inside: Sequence[str], token: Path) -> Iterator[Machine]:
    command = [*inside, sys.executable, "-m", "extproc", "bench", "worker"]
    options = ["--listen", f"{host}:{port}", "--token-file", str(token)]
    with subprocess.Popen([*command, *options], start_new_session=True) as process:
        machine = Machine(host, port, process)
        try:
            yield machine
        finally:
            if process.poll() is None:
                machine.kill()


def _other_clock(number: int) -> list[str]:
    offset = ["unshare", "--time", "--fork", "--monotonic", str(1000 * (number + 1))]
    return offset if _try(*offset, "true") else []


@contextmanager
def _bridge(count: int) -> Iterator[tuple[str, list[str]]]:
    """Joins `count` network namespaces by a bridge.

    Yields the first three numbers of their addresses, and the namespaces' names.
    """
    tag, net = secrets.token_hex(3), f"10.213.{secrets.randbelow(256)}"
    spaces = [f"extproc-{tag}-{i}" for i in range(count)]
    with ExitStack() as stack:
        _ip(f"link add eb{tag} type bridge")
        stack.callback(_ip, f"link del eb{tag}")
        _ip(f"addr add {net}.1/24 dev eb{tag}")
        _ip(f"link set eb{tag} up")
        for i, space in enumerate(spaces):
            ours, theirs = f"ev{tag}{i}", f"ew{tag}{i}"
            _ip(f"netns add {space}")
            stack.callback(_ip, f"netns del {space}")
            _ip(f"link add {ours} type veth peer name {theirs}")
            _ip(f"link set {theirs} netns {space}")
            _ip(f"link set {ours} master eb{tag} up")
            _ip(f"-n {space} addr add {net}.{i + 2}/24 dev {theirs}")
            _ip(f"-n {space} link set {theirs} up")
            _ip(f"-n {space} link set lo up")
        yield net, spaces


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)
