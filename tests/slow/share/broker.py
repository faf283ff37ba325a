"""A real NATS server of a test's own."""

import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from nats.aio.client import Client

from tests.router.share.gateways import lies
from tests.stack.ports import is_taken
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
        return is_taken(self.port)


async def rave_over(broker: Broker, me: int | None = None) -> None:
    """Tells lies over the server as fast as it can, until cancelled."""
    client = Client()
    await client.connect(f"nats://127.0.0.1:{broker.port}", user="gateway", password="password")
    try:
        for letter in lies(me):
            await client.publish("extproc.share.llm", letter)
            await asyncio.sleep(0)
    finally:
        await client.close()
