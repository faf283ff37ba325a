"""A listener with small services on it, for tests over real sockets."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from extproc.grpc_server.accepting import bind
from extproc.grpc_server.budget import Budget
from extproc.grpc_server.calls import Call, Status
from extproc.grpc_server.limits import WireLimits
from extproc.grpc_server.listener import Listener

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
ECHO = "/test.Service/Echo"
FEED = "/test.Service/Feed"


class Echo:
    """Gives each message back, but for `fail` and `refuse`; says how large a skipped one was."""

    def __init__(self, call: Call, ends: list[str]) -> None:
        self.call = call
        self._ends = ends

    def on_message(self, message: bytes | bytearray) -> None:
        match message:
            case b"fail":
                raise RuntimeError("the prompt says: secret")
            case b"refuse":
                self.call.send(b"last")
                self.call.finish(Status.NOT_FOUND, "no such thing")
                self.call.send(b"never")
            case _:
                self.call.send(bytes(message))

    def on_skipped(self, size: int) -> None:
        self.call.send(b"skipped %d" % size)

    def on_half_close(self) -> None:
        self.call.finish()

    def on_close(self) -> None:
        self._ends.append("echo")


class ServedListener:
    """What a test sees of the listener: its port, its calls, how many of them have ended."""

    def __init__(self, limits: WireLimits, budget: Budget) -> None:
        self.ends: list[str] = []
        self.feeds: list[Call] = []
        self.listener = Listener({ECHO: self._echo, FEED: self._feed}, limits=limits, budget=budget)
        self.opened = 0
        self.port = 0
        self.clients: list[Client] = []

    async def connect(self, data: bytes = b"", **options: Any) -> Client:
        """A client that says so much; it is gone when the listener is."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, **options)
        writer.write(data)
        self.clients.append((reader, writer))
        return reader, writer

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _echo(self, call: Call) -> Echo:
        self.opened += 1
        return Echo(call, self.ends)

    def _feed(self, call: Call) -> Echo:
        self.feeds.append(call)
        return Echo(call, self.ends)


@asynccontextmanager
async def serving_listener(
    limits: WireLimits | None = None,
    *,
    budget: Budget | None = None,
    tls: ssl.SSLContext | None = None,
    listen: str = "127.0.0.1:0",
) -> AsyncIterator[ServedListener]:
    served = ServedListener(limits or WireLimits(), budget or Budget(1 << 26))
    served.port = served.listener.listen(await bind(listen), tls)
    await served.listener.start()
    try:
        yield served
    finally:
        for _, writer in served.clients:
            writer.transport.abort()
        await served.listener.stop()


def trusting() -> ssl.SSLContext:
    """A client that takes any certificate and names no protocol, as Envoy AI Gateway."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def echo(channel: grpc.aio.Channel, *messages: bytes) -> list[bytes]:
    """One whole call; returns what came back."""
    call = channel.stream_stream(ECHO, None, None)(None)
    for message in messages:
        await call.write(message)
    await call.done_writing()
    answers = [answer async for answer in call]
    assert await call.code() is grpc.StatusCode.OK
    return answers
