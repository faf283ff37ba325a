"""The asyncio adaptor: accepted connections become links. I/O is here, in `accepting` and `link` alone."""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Sequence
from functools import partial

from extproc.grpc_server.accepting import Acceptor, find_oldest_idle
from extproc.grpc_server.budget import Budget, StreamPlaces, TokenBucket
from extproc.grpc_server.calls import Routes
from extproc.grpc_server.limits import WireLimits
from extproc.grpc_server.link import READ_BYTES, Link


class Listener:
    """Serves gRPC calls by `routes` on one address, over HTTP/2 of our own."""

    def __init__(self, routes: Routes, *, limits: WireLimits, budget: Budget) -> None:
        self.routes = routes
        self.limits = limits
        self.budget = budget
        self.places = StreamPlaces(limits.all_streams)
        self.links: dict[Link, None] = {}  # the oldest first
        self.is_draining = False
        self.port = 0
        # All links read into the same memory: what is read is worked off before the next read.
        self.memory = memoryview(bytearray(READ_BYTES))
        self._acceptor = Acceptor((), self._take)
        self._tls: ssl.SSLContext | None = None
        self._handshakes = TokenBucket(limits.handshakes_per_s, limits.handshakes)
        self._greeting: asyncio.TimerHandle | None = None
        self._ungreeted: dict[Link, None] = {}  # wait for their handshakes
        self._ticking: asyncio.TimerHandle | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def listen(self, sockets: Sequence[socket.socket], tls: ssl.SSLContext | None = None) -> int:
        """Serves connections to these sockets, once started. Returns the port, 0 where there is none."""
        self._acceptor = Acceptor(sockets, self._take)
        self._tls = tls
        ports = [each.getsockname()[1] for each in sockets if each.family != socket.AF_UNIX]
        self.port = ports[0] if ports else 0
        return self.port

    def _take(self, accepted: socket.socket) -> None:
        """Serves a connection that is accepted, from its handshake on; it counts from here."""
        link = Link(self, accepted)
        self.add(link)
        if self.is_draining or not self.has_room(link):
            link.refuse("too many connections")
        elif self._tls is None:
            link.greet(None)
        else:
            link.await_hello(partial(self._hear, link))

    def _hear(self, link: Link) -> None:
        self._ungreeted[link] = None
        if self._greeting is None:
            self._greet()

    def _greet(self) -> None:
        """Begins the handshakes that there is time for, first those of the address of which fewest wait."""
        loop, self._greeting = asyncio.get_running_loop(), None
        while self._ungreeted:
            wait_s = self._handshakes.wait_s(loop.time())
            if wait_s:
                self._greeting = loop.call_later(wait_s, self._greet)
                return
            waiting = Counter(link.host for link in self._ungreeted)
            link = min(self._ungreeted, key=lambda one: waiting[one.host])
            del self._ungreeted[link]
            self._handshakes.spend(1)
            link.greet(self._tls)

    async def start(self) -> None:
        self._acceptor.start()
        self._tick()

    def drain(self) -> None:
        """Takes no new connections and, once the peers have our GOAWAY, no new calls."""
        self.is_draining = True
        self._acceptor.close()
        for link in list(self.links):
            link.drain()

    async def stop(self) -> None:
        self.drain()
        for timer in (self._ticking, self._greeting):
            if timer is not None:
                timer.cancel()
        for link in list(self.links):
            link.abort()
        await self._empty.wait()

    @property
    def waiting(self) -> int:
        """Connections whose TLS handshake they have begun, and we have not."""
        return len(self._ungreeted)

    def add(self, link: Link) -> None:
        self.links[link] = None
        self.places.connections = len(self.links)
        self._empty.clear()

    def discard(self, link: Link) -> None:
        self.links.pop(link, None)
        self._ungreeted.pop(link, None)
        self.places.connections = len(self.links)
        if not self.links:
            self._empty.set()

    def has_room(self, newcomer: Link) -> bool:
        """Whether one more may stay: one without an open stream makes room for it.

        Else a flood of silent connections would shut out a proxy, or a health check. Handshakes
        that never end are among them.
        """
        if len(self.links) <= self.limits.connections:
            return True
        guest = find_oldest_idle(link for link in self.links if link is not newcomer)
        if guest is not None:
            guest.refuse("too many connections, and nothing is open on it")
        return guest is not None

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        for link in list(self.links):
            link.tick(loop.time())
        self._ticking = loop.call_later(self.limits.tick_s, self._tick)
