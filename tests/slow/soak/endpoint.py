"""A simulated endpoint that keeps a log of its own: each request's beginning and end, as they happen.

`python -m tests.slow.soak.endpoint PORT LOG`; a kill loses nothing that was written.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Final

import orjson
import uvloop
from aiohttp import web

from extproc.simulator.engine.profiles import DEFAULT_PROFILE, find_profile
from extproc.simulator.http.driver import Clock
from extproc.simulator.http.endpoint import ServerOptions, SimulatedEndpoint
from extproc.simulator.http.server import build_app
from extproc.simulator.http.tokens import FourByteTokenizer
from tests.stack.client import CHAT, MODEL

SPEED: Final = 4.0
# Small caches are full in minutes: what grows after that is not a cache.
KV_TOKENS: Final = 16_000
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def keep_log(app: web.Application, log: int) -> None:
    """Writes to the file `log` what becomes of each request for text; without a status, it was cancelled."""

    def write(**fields: object) -> None:
        os.write(log, orjson.dumps({"at": time(), **fields}) + b"\n")

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path != CHAT:
            return await handler(request)
        name, status = request.headers.get("x-request-id", ""), None
        write(begin=name)
        try:
            response = await handler(request)
            status = response.status
        finally:
            write(end=name, status=status)
        return response

    app.middlewares.insert(0, note)


async def serve_endpoint(port: int, log: int) -> None:
    profile = replace(
        find_profile(DEFAULT_PROFILE), kv_tokens=KV_TOKENS, max_model_len=KV_TOKENS // 2
    )
    options = ServerOptions(profile, FourByteTokenizer(), (MODEL,))
    app = build_app(SimulatedEndpoint(f"vllm-{port}", options, Clock(SPEED), time))
    keep_log(app, log)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True, backlog=4_096).start()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await runner.cleanup()


def main() -> None:
    port, path = int(sys.argv[1]), Path(sys.argv[2])
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    uvloop.run(serve_endpoint(port, log))


if __name__ == "__main__":
    main()
