"""Endpoints that do what the test says: HTTP/1.1, no model."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

Script = Callable[[bytes], Awaitable[bytes]]
"""From a request's body to its answer's, as slowly as the test likes."""


@asynccontextmanager
async def serve(ports: Sequence[int], script: Script) -> AsyncGenerator[None]:
    """Serves `script` on all ports."""

    async def answer(request: web.BaseRequest) -> web.Response:
        return web.Response(body=await script(await request.read()))

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    try:
        for port in ports:
            await web.TCPSite(runner, "127.0.0.1", port, backlog=4_096).start()
        yield
    finally:
        await runner.cleanup()
