"""The asyncio adaptor: an address to sockets, each a link. With that the only part of the wire with I/O."""

import asyncio
import socket
import ssl
from typing import Final

from extproc.budget import Budget
from extproc.wire.calls import Routes
from extproc.wire.limits import Limits
from extproc.wire.link import READ_BYTES, Link, Refusals

_BACKLOG: Final = 1_024


class Listener:
    """Serves gRPC calls by `routes` on one address, over HTTP/2 of our own."""

    def __init__(self, routes: Routes, *, limits: Limits, budget: Budget) -> None:
        self.routes = routes
        self.limits = limits
        self.budget = budget
        self.links: dict[Link, None] = {}  # the oldest first
        self.refusals = Refusals()
        self.is_draining = False
        # All links read into the same memory: what is read is worked off before the next read.
        self.memory = memoryview(bytearray(READ_BYTES))
        self._server: asyncio.Server | None = None
        self._ticking: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def __repr__(self) -> str:
        return f"<Listener connections={len(self.links)}>"

    async def bind(self, listen: str, tls: ssl.SSLContext | None = None) -> int:
        """Binds `host:port` or `unix:path`; returns the port, 0 for a socket. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        if listen.startswith("unix:"):
            path = listen.removeprefix("unix:")
            self._server = await loop.create_unix_server(
                lambda: Link(self), path, ssl=tls, backlog=_BACKLOG, start_serving=False
            )
            return 0
        host, _, port = listen.rpartition(":")
        self._server = await loop.create_server(
            lambda: Link(self), host.strip("[]"), int(port), ssl=tls, backlog=_BACKLOG, start_serving=False
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def take(self, link: Link, accepted: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Serves a connection that somebody else has accepted. Raises `OSError` where it is gone."""
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(lambda: link, accepted, ssl=tls)

    async def start(self) -> None:
        if self._server is not None:
            await self._server.start_serving()
        self._tick()

    def drain(self) -> None:
        """Takes no new connections and, once the peers know, no new calls."""
        self.is_draining = True
        if self._server is not None:
            self._server.close()
        for link in list(self.links):
            link.drain()

    async def stop(self) -> None:
        """Ends every call and every connection."""
        self.drain()
        if self._ticking is not None:
            self._ticking.cancel()
        for link in list(self.links):
            link.abort()
        await self._empty.wait()

    def add(self, link: Link) -> None:
        self.links[link] = None
        self._empty.clear()

    def discard(self, link: Link) -> None:
        self.links.pop(link, None)
        if not self.links:
            self._empty.set()

    def has_room(self, newcomer: Link) -> bool:
        """Whether one more may stay: the oldest peer that never asked for anything makes room for it.

        Else a flood of silent connections would shut out a proxy, or a health check.
        """
        if len(self.links) <= self.limits.connections:
            return True
        stranger = next((link for link in self.links if link.connection.has_asked_nothing), newcomer)
        if stranger is newcomer:
            return False
        stranger.refuse("too many connections, and it asked for nothing yet")
        return True

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        for link in list(self.links):
            link.tick(loop.time())
        self._ticking = loop.call_later(self.limits.tick_s, self._tick)
