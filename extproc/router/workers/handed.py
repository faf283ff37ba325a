"""How a worker serves gRPC: connections come from the parent, one by one, already accepted."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from extproc.router.stream.names import PROCESS
from extproc.router.wire.accepting import AT_ONCE
from extproc.router.wire.link import Link
from extproc.router.wire.listener import Listener
from extproc.router.workers.spread import Held

log = logging.getLogger("extproc.router.workers")

CONNECTION: Final = b"c"
SIBLING: Final = b"s"
_PACKET_BYTES: Final = 16


class HandedTransport:
    """Serves what comes out of `handed`: connections, and ends of links to other workers for `on_link`."""

    def __init__(
        self,
        listener: Listener,
        tls: Callable[[], ssl.SSLContext | None],
        handed: socket.socket,
        on_link: Callable[[int, socket.socket], None],
    ) -> None:
        self._listener = listener
        self._build_tls = tls
        self._handed = handed
        self._on_link = on_link
        self._received = 0

    def __repr__(self) -> str:
        return f"<HandedTransport {self._listener!r}, {self._received} received>"

    async def bind(self) -> int:
        """Raises `SettingsError` for certificates that cannot be read."""
        self._listener.listen((), self._build_tls())
        self._handed.setblocking(False)
        return 0

    async def start(self) -> None:
        await self._listener.start()
        asyncio.get_running_loop().add_reader(self._handed, self._receive)

    def drain(self) -> None:
        self._listener.drain()

    async def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handed)
        await self._listener.stop()

    def held(self) -> Held:
        """What the parent wants to know."""
        links = [link for link in self._listener.links if not link.is_leaving]
        carrying = sum(PROCESS in link.asked for link in links)
        unknown = sum(not link.asked for link in links)
        others = len(links) - carrying - unknown
        return Held(self._received, carrying, unknown, others)

    def let_go(self) -> None:
        """Ends one connection that brings requests, as its requests end; the one with the fewest now."""
        carrying = [link for link in self._listener.links if PROCESS in link.asked and not link.is_leaving]
        if len(carrying) > 1:
            min(carrying, key=_streams).drain()

    def _receive(self) -> None:
        for _ in range(AT_ONCE):
            try:
                data, fds, *_ = socket.recv_fds(self._handed, _PACKET_BYTES, 1)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self._handed)  # the parent is gone
                return
            # What found no descriptor free here came all the same: the parent counts it.
            self._received += data[:1] == CONNECTION
            if fds:
                self._take(data, socket.socket(fileno=fds[0]))

    def _take(self, kind: bytes, given: socket.socket) -> None:
        if kind[:1] == SIBLING:
            self._on_link(kind[1], given)
            return
        self._listener.take(given)


def _streams(link: Link) -> int:
    return len(link.connection.streams)
