"""Simulated endpoints on their ports: one aiohttp application each, all in one process."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from extproc.errors import SettingsError
from extproc.simulator.http.endpoint import SimulatedEndpoint
from extproc.simulator.http.refusals import VllmRefusal, send_json
from extproc.simulator.http.serving import add_serving_routes
from extproc.simulator.http.side_routes import SideRoutes
from extproc.simulator.http.sidecar import Sidecar

MAX_BODY_BYTES = 64 * 1024 * 1024
# The response header with the endpoint's name, for tests of gateways.
ENDPOINT_HEADER = "x-simulated-endpoint"

# vLLM's `--h11-max-incomplete-event-size` and `--h11-max-header-count`, by default.
_MAX_HEADER_BYTES = 4 * 1024 * 1024
_MAX_HEADERS = 256

_ANY_ORIGIN = {"access-control-allow-origin": "*"}
_METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
_PREFLIGHT = "access-control-request-method"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def build_app(endpoint: SimulatedEndpoint, *, has_sidecar: bool = False) -> web.Application:
    """Builds the HTTP face of one endpoint, which works while the application runs.

    With `has_sidecar` it lets the endpoint that a request names compute the prompt first.
    """

    async def sign(request: web.Request, response: web.StreamResponse) -> None:
        response.headers[ENDPOINT_HEADER] = endpoint.name
        if "origin" in request.headers:
            response.headers.update(_ANY_ORIGIN)

    async def work(_app: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(endpoint.run())
        yield
        task.cancel()
        await asyncio.wait([task])

    app = web.Application(
        client_max_size=MAX_BODY_BYTES, middlewares=[answer_preflights, word_refusals]
    )
    if has_sidecar:
        sidecar = Sidecar()
        app.middlewares.append(sidecar.handle)
        app.cleanup_ctx.append(sidecar.run)
    app.on_response_prepare.append(sign)
    app.cleanup_ctx.append(work)
    add_serving_routes(app, endpoint)
    SideRoutes(endpoint).add_to(app)
    return app


@web.middleware
async def answer_preflights(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Lets pages of any origin ask, as vLLM's defaults and Starlette's `CORSMiddleware` do."""
    asked = request.headers
    if request.method != "OPTIONS" or not asked.keys() >= {"origin", _PREFLIGHT}:
        return await handler(request)
    headers = {"access-control-allow-methods": _METHODS, "access-control-max-age": "600"}
    if wanted := asked.get("access-control-request-headers"):
        headers["access-control-allow-headers"] = wanted
    return web.Response(text="OK", headers=headers)


@web.middleware
async def word_refusals(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Words refusals, and aiohttp's own errors, as vLLM's server does."""
    try:
        return await handler(request)
    except VllmRefusal as refusal:
        return send_json(refusal.describe(), refusal.status)
    except ValueError as fault:
        # vLLM answers any of these so, that of a text which UTF-8 cannot spell, too.
        said = VllmRefusal(str(fault).encode(errors="replace").decode())
        return send_json(said.describe(), said.status)
    except web.HTTPMethodNotAllowed as fault:
        response = send_json({"detail": "Method Not Allowed"}, fault.status)
        response.headers["allow"] = ",".join(sorted(fault.allowed_methods))
        return response
    except web.HTTPException as fault:
        return send_json({"detail": fault.reason}, fault.status)


@asynccontextmanager
async def serve_endpoint(
    endpoint: SimulatedEndpoint, host: str, port: int, *, has_sidecar: bool = False
) -> AsyncIterator[int]:
    """Serves an endpoint; yields the port (a free one for 0). Raises `SettingsError` if it is taken.

    When the context ends the port closes at once and requests are given a moment to go.
    """
    runner = web.AppRunner(
        build_app(endpoint, has_sidecar=has_sidecar),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=0.1,
        auto_decompress=False,  # vLLM unpacks no body
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
        max_headers=_MAX_HEADERS,
    )
    await runner.setup()
    try:
        await asyncio.sleep(endpoint.faults.slow_start_s)
        site = web.TCPSite(runner, host, port, reuse_address=True, backlog=4096)
        try:
            await site.start()
        except OSError as fault:
            raise SettingsError(f"cannot listen on {host}:{port}: {fault.strerror}") from None
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def serve_endpoints(
    endpoints: Sequence[SimulatedEndpoint],
    host: str,
    ports: Sequence[int],
    stop: asyncio.Event,
    announce: Callable[[str], None],
    *,
    has_sidecar: bool = False,
) -> None:
    """Serves each endpoint on its port until `stop` is set; raises `SettingsError` if a port is taken."""

    async def serve_one(endpoint: SimulatedEndpoint, port: int) -> None:
        async with serve_endpoint(endpoint, host, port, has_sidecar=has_sidecar) as bound:
            announce(f"{endpoint.name}: http://{host}:{bound}")
            await stop.wait()

    refused: list[Exception] = []
    try:
        async with asyncio.TaskGroup() as group:
            for endpoint, port in zip(endpoints, ports, strict=True):
                group.create_task(serve_one(endpoint, port))
    except* SettingsError as faults:
        refused += faults.exceptions
    if refused:
        # One port is enough to name. Raised here: Python 3.11.2 wraps in a group what `except*`
        # raises.
        raise refused[0]
