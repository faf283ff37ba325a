"""A real NATS server of a test's own."""

import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.stack.process import Process

PASSWORD = ("--user", "gateway", "--pass", "password")


class Broker(Process):
    """`nats-server` on a port of 127.0.0.1, for one user, or as its `options` say who may come in."""

    def __init__(self, directory: Path, port: int, options: Sequence[str] = PASSWORD) -> None:
        beside = Path(sys.executable).parent / "nats-server"
        program = str(beside) if beside.exists() else shutil.which("nats-server")
        assert program is not None, "no nats-server"
        super().__init__("nats", [program, "-a", "127.0.0.1", "-p", str(port), *options], directory)
        self.port = port

    def is_ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
