"""The admin port's own limits: few connections, little patience.

aiohttp waits for ever for a head that never ends, and takes as many connections as there are descriptors;
both are the process's, and the gRPC port needs them.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from extproc.router.service.transport import bind_address
from extproc.router.wire.accepting import find_oldest_idle, unlink_sockets

log = logging.getLogger(__name__)

# From a connection to its first whole head.
_HEAD_S: Final = 5.0
# From a request's head to its answer: the body has to come, too.
_ANSWER_S: Final = 10.0
# Silence on a connection; more than Prometheus leaves between two scrapes.
IDLE_S: Final = 75.0


class ConnectionLimit:
    """Accepts `most` connections at a time, and closes those that make no progress.

    One more takes the place of the oldest that has no request open, first of the address that has most.
    """

    def __init__(
        self, most: int, *, head_s: float = _HEAD_S, answer_s: float = _ANSWER_S, idle_s: float = IDLE_S
    ) -> None:
        self.most = most
        self.head_s = head_s
        self.answer_s = answer_s
        self.idle_s = idle_s
        self.connections: dict[asyncio.BaseTransport, _Connection] = {}

    def protocol(self, served: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """A protocol for one connection; `served` makes the one that serves it once it is let in."""
        return _Connection(self, served())

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Called once a head is whole."""
        connection = self._connection(request)
        if connection is not None:
            connection.await_request()
            connection.is_idle = False
        try:
            async with asyncio.timeout(self.answer_s) as patience:
                if connection is not None:
                    connection.patience = patience
                return await handler(request)
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        finally:
            if connection is not None:
                connection.is_idle = True

    @contextmanager
    def stay(self, request: web.Request) -> Generator[None]:
        """As long as it is open, the request's handler and its connection are waited for without an end."""
        connection = self._connection(request)
        if connection is not None:
            connection.serve_without_limit()
        try:
            yield
        finally:
            if connection is not None:
                connection.await_request()

    def _connection(self, request: web.Request) -> "_Connection | None":
        return self.connections.get(cast("asyncio.BaseTransport", request.transport))


class _Connection(asyncio.Protocol):
    """One connection: what comes goes on to aiohttp's protocol."""

    def __init__(self, limit: ConnectionLimit, inner: asyncio.Protocol) -> None:
        self._limit = limit
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_served = False
        self.host = ""
        self.is_idle = True
        self.patience: asyncio.Timeout | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        limit = self._limit
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if isinstance(peer, tuple) else ""
        if len(limit.connections) >= limit.most:
            guest = find_oldest_idle(limit.connections.values()) or self
            log.warning("the admin port has %d connections: one of %s is closed", limit.most, guest.host)
            guest.leave()
            if guest is self:
                return
        self._is_served = True
        limit.connections[transport] = self
        self._inner.connection_made(transport)
        self._wait(limit.head_s)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.leave()
        if self._is_served:
            self._inner.connection_lost(exc)

    def leave(self) -> None:
        if self._transport is not None:
            self._limit.connections.pop(self._transport, None)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def await_request(self) -> None:
        self._wait(self._limit.idle_s)

    def serve_without_limit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.patience is not None:
            self.patience.reschedule(None)

    def _wait(self, patience_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._timer = asyncio.get_running_loop().call_later(patience_s, self._transport.abort)


@asynccontextmanager
async def serve_admin(
    application: web.Application, listen: str, limit: ConnectionLimit
) -> AsyncGenerator[None]:
    """Serves an application on `listen`, within `limit`; raises `SettingsError` where it cannot listen."""
    bound = await bind_address("server.admin", listen)
    # Lingering: how long the rest of a refused body is read for.
    runner = web.AppRunner(application, access_log=None, keepalive_timeout=IDLE_S, lingering_time=1.0)
    await runner.setup()
    served = cast("Callable[[], asyncio.Protocol]", runner.server)
    loop = asyncio.get_running_loop()
    create = loop.create_unix_server if listen.startswith("unix:") else loop.create_server
    servers = [await create(lambda: limit.protocol(served), sock=each) for each in bound]
    try:
        yield
    finally:
        unlink_sockets(bound)
        for server in servers:
            server.close()
        await runner.cleanup()
