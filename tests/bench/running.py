"""Runs against scripted servers: what several tests share."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp.web

from extproc.bench.spec.tree import Spec
from tests.bench.scripted import DONE, USAGE, chunk

Handler = Callable[[aiohttp.web.Request], Awaitable[aiohttp.web.Response]]


class Silence:
    def update(self, snapshot: object) -> None:
        pass


@asynccontextmanager
async def serving(**handlers: Handler) -> AsyncIterator[int]:
    """Serves `name=handler` at `/name`, and `chat` at the chat path."""
    app = aiohttp.web.Application()
    for name, handler in handlers.items():
        path = {"chat": "/v1/chat/completions", "models": "/v1/models"}.get(name, f"/{name}")
        app.router.add_route("*", path, handler)
    runner = aiohttp.web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = aiohttp.web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def answer(request: aiohttp.web.Request) -> aiohttp.web.Response:
    await request.read()
    headers = {"x-served-by": "10.0.0.1:8000"}
    return aiohttp.web.Response(body=chunk("bab ") + USAGE + DONE, headers=headers)


def build_spec(port: int, traffic: dict[str, object], **fields: Any) -> Spec:
    shape = {"dataset": {"name": "random", "input_tokens": 8}, **traffic}
    base = {"endpoint": "127.0.0.1", "port": port, "target": {"model": "m"}}
    return Spec.model_validate({**base, "performance": {"traffic-shape": shape}, **fields})
