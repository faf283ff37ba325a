"""An aiohttp application on a port of 127.0.0.1, for as long as a block lasts."""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def hosting(
    served: web.Application | Mapping[str, Handler],
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """Serves an application, or handlers by path or, as `GET /path`, by method too; yields the address."""
    app = served if isinstance(served, web.Application) else web.Application()
    if not isinstance(served, web.Application):
        for name, handler in served.items():
            method, _, path = name.rpartition(" ")
            app.router.add_route(method or "*", path, handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls, reuse_address=True).start()
        yield f"127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
