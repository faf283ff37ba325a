"""The admin port's own limits: few connections, little patience.

aiohttp waits for ever for a head that never ends, and takes as many connections as there are
descriptors; both are the process's, and the gRPC port needs them.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from extproc.grpc_server.accepting import find_oldest_idle, unlink_sockets
from extproc.router.service.transport import bind_address

log = logging.getLogger(__name__)

# From a connection to its first whole head.
_HEAD_S: Final = 5.0
# From a request's head to its answer: the body has to come, too.
_ANSWER_S: Final = 10.0
# Silence on a connection; more than Prometheus leaves between two scrapes.
IDLE_S: Final = 75.0


class ConnectionLimit:
    """Accepts `most` connections at a time, and closes those that make no progress.

    One more takes the place of the oldest that has no request open, first of the address that has
    most.
    """

    def __init__(
        self,
        most: int,
        *,
        head_s: float = _HEAD_S,
        answer_s: float = _ANSWER_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self.most = most
        self.head_s = head_s
        self.answer_s = answer_s
        self.idle_s = idle_s
        self.connections: dict[_Connection, None] = {}  # the oldest first

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Called once a head is whole."""
        connection = cast("_Connection", request.protocol)
        connection.wait(self.idle_s)
        connection.is_idle = False
        try:
            async with asyncio.timeout(self.answer_s) as connection.patience:
                return await handler(request)
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        finally:
            connection.is_idle = True

    @contextmanager
    def stay(self, request: web.Request) -> Generator[None]:
        """As long as it is open, the request's handler and its connection are waited for without an end."""
        connection = cast("_Connection", request.protocol)
        connection.wait(None)
        if connection.patience is not None:
            connection.patience.reschedule(None)
        try:
            yield
        finally:
            connection.wait(self.idle_s)


class _Connection(web.RequestHandler):
    """One connection, which is cut after some time of waiting."""

    def __init__(self, limit: ConnectionLimit, server: web.Server, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self._limit = limit
        self._timer: asyncio.TimerHandle | None = None
        self.host = ""
        self.is_idle = True
        self.patience: asyncio.Timeout | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        limit, peer = self._limit, transport.get_extra_info("peername")
        self.host = str(peer[0]) if isinstance(peer, tuple) else ""
        if len(limit.connections) >= limit.most:
            guest = find_oldest_idle(limit.connections)
            host = self.host if guest is None else guest.host
            log.warning("the admin port has %d connections: one of %s is closed", limit.most, host)
            if guest is None:
                cast("asyncio.Transport", transport).abort()
                return
            guest.leave()
        limit.connections[self] = None
        super().connection_made(transport)
        self.wait(limit.head_s)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.wait(None)
        self.leave()
        super().connection_lost(exc)

    def leave(self) -> None:
        self._limit.connections.pop(self, None)
        if self.transport is not None:
            self.transport.abort()

    def wait(self, patience_s: float | None) -> None:
        """Leaves after so many seconds, unless it is called again before; `None`: does not."""
        if self._timer is not None:
            self._timer.cancel()
        if self.transport is not None and patience_s is not None:
            self._timer = asyncio.get_running_loop().call_later(patience_s, self.leave)


@asynccontextmanager
async def serve_admin(
    application: web.Application, listen: str, limit: ConnectionLimit
) -> AsyncGenerator[None]:
    """Serves an application on `listen`, within `limit`; raises `SettingsError` where it cannot listen."""
    bound = await bind_address("server.admin", listen)
    runner = web.AppRunner(application)
    await runner.setup()
    # Lingering: how long the rest of a refused body is read for.
    options = {"access_log": None, "keepalive_timeout": IDLE_S, "lingering_time": 1.0}
    connect = partial(_Connection, limit, cast("web.Server", runner.server), **options)
    loop = asyncio.get_running_loop()
    create = loop.create_unix_server if listen.startswith("unix:") else loop.create_server
    servers = [await create(connect, sock=each) for each in bound]
    try:
        yield
    finally:
        unlink_sockets(bound)
        for server in servers:
            server.close()
        await runner.cleanup()
