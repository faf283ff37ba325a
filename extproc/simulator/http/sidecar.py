"""The routing sidecar of llm-d, as a middleware: an endpoint that a header names computes the prompt first.

As the real one it has no other plan: what the prefill endpoint answers instead of a prefill goes to
the client, and a connection that fails is a 502.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

PREFILLER: Final = "x-prefiller-host-port"
IS_COMPUTED: Final = web.RequestKey("is_computed", bool)
"""The key of requests whose prompt was computed elsewhere."""

_PATHS: Final = frozenset(
    {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
)
# What a prefill is asked for: one token, at once. The transfer's handle means nothing here.
_ONE_TOKEN: Final = {
    "stream": False,
    "max_tokens": 1,
    "kv_transfer_params": {"do_remote_decode": True},
}
_LEFT_OUT: Final = frozenset({"stream_options", "min_tokens", "max_completion_tokens"})


class Sidecar:
    """Takes the first of several names; `run` must be running."""

    def __init__(self) -> None:
        self._client: aiohttp.ClientSession | None = None

    async def run(self, _app: web.Application) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as self._client:
            yield

    @web.middleware
    async def handle(
        self,
        request: web.Request,
        handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        named = request.headers.get(PREFILLER, "").partition(",")[0]
        if not named or request.method != "POST" or request.path not in _PATHS:
            return await handler(request)
        refused = await self._prefill(f"http://{named}{request.path}", await request.read())
        if refused is not None:
            return refused
        request[IS_COMPUTED] = True
        return await handler(request)

    async def _prefill(self, url: str, content: bytes) -> web.Response | None:
        """Returns what the client gets if it goes wrong."""
        try:
            body = msgspec.json.decode(content, type=dict)
        except ValueError:
            return None  # the engine has the words for it
        asked = {name: value for name, value in body.items() if name not in _LEFT_OUT} | _ONE_TOKEN
        assert self._client is not None  # noqa: S101  # it runs
        try:
            async with self._client.post(url, json=asked) as answer:
                said = await answer.read()
        except aiohttp.ClientError:
            return web.Response(status=502, text="the prefill endpoint cannot be reached")
        if answer.status < 300:
            return None
        return web.Response(status=answer.status, body=said, content_type=answer.content_type)
