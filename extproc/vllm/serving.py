"""The routes that generate text: every serving API through the same handler."""

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from extproc.vllm.apis.api import Api
from extproc.vllm.apis.chat import Chat
from extproc.vllm.apis.completions import Completions
from extproc.vllm.apis.messages import Messages
from extproc.vllm.apis.responses import Responses
from extproc.vllm.ask import Ask, Head
from extproc.vllm.bodies import read_json, send_json
from extproc.vllm.endpoint import SimulatedEndpoint
from extproc.vllm.refusals import Refusal
from extproc.vllm.reply import Reply

APIS: dict[str, type[Api]] = {
    "/v1/chat/completions": Chat,
    "/v1/completions": Completions,
    "/v1/responses": Responses,
    "/v1/messages": Messages,
}


def add_serving_routes(app: web.Application, endpoint: SimulatedEndpoint) -> None:
    for path, api in APIS.items():
        app.router.add_post(path, Serving(endpoint, api()).answer)


class Serving:
    """Answers the requests of one serving API for one endpoint."""

    def __init__(self, endpoint: SimulatedEndpoint, api: Api) -> None:
        self._endpoint = endpoint
        self._api = api

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answers one request, or lets it suffer what the endpoint's faults have in store."""
        self._endpoint.load += 1
        try:
            body = await read_json(request)
            closes = await self._suffer()
            ask = self._api.read(body, self._endpoint.options.tokenizer)
            head = self._endpoint.head(ask, self._api.id_prefix)
            reply = self._endpoint.begin(ask, head)
            try:
                if ask.is_stream:
                    return await self._stream(request, ask, head, reply, closes=closes)
                return await self._send_whole(request, ask, head, reply, closes=closes)
            finally:
                reply.close()
        except Refusal as refusal:
            return send_json(self._api.describe(refusal), refusal.status)
        finally:
            self._endpoint.load -= 1

    async def _suffer(self) -> bool:
        """Delays, hangs or fails this request on purpose; returns whether its connection shall close."""
        faults = self._endpoint.faults
        fate = faults.draw(self._endpoint.random)
        if faults.delay_s:
            await asyncio.sleep(faults.delay_s)
        if fate.hangs:
            await asyncio.Event().wait()
        if fate.fails:
            raise Refusal("A fault on purpose.", status=faults.error_status, kind="InternalServerError")
        return fate.closes

    async def _send_whole(
        self, request: web.Request, ask: Ask, head: Head, reply: Reply, *, closes: bool
    ) -> web.StreamResponse:
        choices = await reply.collect()
        if closes:
            _cut(request)
        return send_json(self._api.whole(head, ask, choices, reply.usage))

    async def _stream(
        self, request: web.Request, ask: Ask, head: Head, reply: Reply, *, closes: bool
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        pieces = reply.stream(self._api.frames(head, ask))
        if closes:
            await self._send_some(response, pieces)
            _cut(request)
            return response
        async for piece in pieces:
            await response.write(piece)
        return response

    async def _send_some(self, response: web.StreamResponse, pieces: AsyncIterator[bytes]) -> None:
        left = self._endpoint.faults.close_after
        while left:
            await response.write(await anext(pieces))
            left -= 1


def _cut(request: web.Request) -> None:
    """Closes a connection in the middle of an answer."""
    if request.transport is not None:
        request.transport.abort()
