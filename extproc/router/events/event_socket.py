"""Sockets to an engine's publishers, and the ration of our time that all of one engine's have together."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

from extproc.grpc_server.budget import TokenBucket
from extproc.router.events.kv_log import MAX_BYTES
from extproc.router.events.zmtp import Sign, ZmtpConnection

ANSWER_S: Final = 2.0
# The payload, its number, and a topic.
_MESSAGE_BYTES: Final = MAX_BYTES + 1_024
_READ_BYTES: Final = 65_536
# Seconds of our time that an endpoint may take in a second, and at once. A read, and each thing in
# what was read, takes so much at least, and a byte so much.
_WORK: Final = 0.1
_BURST_S: Final = 0.1
_STEP_S: Final = 25e-6
_BYTE_S: Final = 1.5e-9
# A host that is gone without a word is noticed by then.
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class EventFlood(Exception):
    """An endpoint's events take more time than they may."""


class Ration:
    """The time that one endpoint's events may take. After each piece of it everybody else's work comes first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._bucket = TokenBucket(_WORK, _BURST_S)

    async def spend(self, seconds: float) -> None:
        """Raises `EventFlood` where there is none left."""
        self._bucket.spend(seconds)
        if self._bucket.wait_s(self._clock()):
            raise EventFlood
        await asyncio.sleep(0)


class EventSocket:
    """An open connection to a publisher. It reads no more than it is asked for, so nothing piles up here."""

    def __init__(self, raw: socket.socket, kind: str, ration: Ration) -> None:
        self._raw = raw
        self._ration = ration
        self._connection = ZmtpConnection(kind, _MESSAGE_BYTES)

    async def open(self, host: str, port: int) -> None:
        for option in _KEEPALIVE:
            self._raw.setsockopt(*option)
        self._raw.setblocking(False)
        async with asyncio.timeout(ANSWER_S):
            await asyncio.get_running_loop().sock_connect(self._raw, (host, port))
            while not self._connection.is_open:
                await self._step()

    async def ask(self, *parts: bytes) -> None:
        self._connection.ask(*parts)
        await self._send()

    async def receive(self) -> list[bytes]:
        """Returns the next message; no parts: it was too long.

        Raises `OSError` where the connection is lost, `ProtocolError` or `EventFlood` where it
        should be closed.
        """
        while True:
            event = await self._step()
            if event is Sign.TOO_LONG:
                return []
            if isinstance(event, list):
                return event

    async def _step(self) -> list[bytes] | Sign:
        event = self._connection.next_event()
        await self._send()
        if event is Sign.NEEDS_BYTES:
            data = await asyncio.get_running_loop().sock_recv(self._raw, _READ_BYTES)
            if not data:
                raise ConnectionResetError
            self._connection.feed(data)
            await self._ration.spend(_STEP_S + len(data) * _BYTE_S)
        else:
            await self._ration.spend(_STEP_S)
        return event

    async def _send(self) -> None:
        if data := bytes(self._connection.to_send):
            self._connection.to_send.clear()
            async with asyncio.timeout(ANSWER_S):
                await asyncio.get_running_loop().sock_sendall(self._raw, data)


@asynccontextmanager
async def connect(kind: str, host: str, port: int, ration: Ration) -> AsyncIterator[EventSocket]:
    """Raises what `EventSocket.receive` does; `host` is an address."""
    host = host.strip("[]")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as raw:
        opened = EventSocket(raw, kind, ration)
        await opened.open(host, port)
        yield opened
