"""The routes that generate text: every serving API through the same handler."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace

from aiohttp import web
from xxhash import xxh3_64_hexdigest

from extproc.simulator.http.answers import Answering
from extproc.simulator.http.api_request import AnswerHead, ApiRequest
from extproc.simulator.http.apis.api import Api
from extproc.simulator.http.apis.chat import Chat
from extproc.simulator.http.apis.completions import Completions
from extproc.simulator.http.apis.messages import Messages
from extproc.simulator.http.apis.responses import Responses
from extproc.simulator.http.endpoint import SimulatedEndpoint
from extproc.simulator.http.refusals import (
    VllmRefusal,
    read_json,
    refuse_response_id,
    refuse_unsupported,
    send_json,
)
from extproc.simulator.http.sidecar import IS_COMPUTED

# The hash of the body as it arrived, so that a test of a gateway can prove that it came as it was
# sent.
BODY_HEADER = "x-simulated-body-xxh3"
EVENT_STREAM = "text/event-stream; charset=utf-8"


def add_serving_routes(app: web.Application, endpoint: SimulatedEndpoint) -> None:
    apis: dict[str, Api] = {
        "/v1/chat/completions": Chat(),
        "/v1/completions": Completions(),
        "/v1/responses": Responses(),
        "/v1/messages": Messages(),
    }
    for path, api in apis.items():
        app.router.add_post(path, ServingRoute(endpoint, api).answer)
    app.router.add_get("/v1/responses/{id}", find_response)
    app.router.add_post("/v1/responses/{id}/cancel", find_response)


async def find_response(request: web.Request) -> web.Response:
    """Finds none: no response is stored."""
    raise refuse_response_id(request.match_info["id"])


class ServingRoute:
    """Answers the requests of one serving API for one endpoint."""

    def __init__(self, endpoint: SimulatedEndpoint, api: Api) -> None:
        self._endpoint = endpoint
        self._api = api

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answers one request, or lets it suffer what the endpoint's faults have in store."""
        self._endpoint.load += 1
        try:
            response = await self._answer(request)
        except ConnectionResetError:
            # The client has left, and the cancellation that says so is on its way.
            raise asyncio.CancelledError from None
        finally:
            self._endpoint.load -= 1
        return response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {BODY_HEADER: xxh3_64_hexdigest(await request.read())}
        try:
            body = await read_json(request)
            closes = await self._suffer()
            call = self._endpoint.complete(self._api.read(body, self._endpoint.options.tokenizer))
            call = replace(call, is_computed=IS_COMPUTED in request)
            refuse_unsupported(body)
            head = self._endpoint.head(call, self._api.id_prefix)
            if call.is_computed:
                await self._endpoint.receive(call, head)
            await self._endpoint.driver.approach(sum(map(len, call.prompts)))
            reply = self._endpoint.begin(call, head)
        except VllmRefusal as refusal:
            return send_json(self._api.describe(refusal), refusal.status, headers)
        exchange = HttpExchange(request, self._api, call, head, reply, headers)
        try:
            if closes:
                return await exchange.break_off(self._endpoint.faults.close_after)
            return await exchange.complete()
        finally:
            reply.close()

    async def _suffer(self) -> bool:
        """Delays, hangs or fails this request on purpose; returns whether its connection shall close."""
        faults = self._endpoint.faults
        fate = faults.draw(self._endpoint.random)
        if faults.delay_s:
            await asyncio.sleep(faults.delay_s)
        if fate.hangs:
            await asyncio.Event().wait()
        if fate.fails:
            raise VllmRefusal(
                "A fault on purpose.", status=faults.error_status, kind="InternalServerError"
            )
        return fate.closes


@dataclass(frozen=True, slots=True)
class HttpExchange:
    """One request that is being answered, whole or as a stream."""

    request: web.Request
    api: Api
    call: ApiRequest
    head: AnswerHead
    reply: Answering
    headers: Mapping[str, str]

    async def complete(self) -> web.StreamResponse:
        if not self.call.is_stream:
            choices = await self.reply.collect()
            answer = self.api.whole(self.head, self.call, choices, self.reply.usage)
            return send_json(answer, headers=self.headers)
        response = await self._open_stream()
        async for piece in self._pieces():
            await response.write(piece)
        return response

    async def break_off(self, pieces: int) -> web.StreamResponse:
        """Closes the connection after some pieces of a stream; before any byte of a whole answer."""
        if self.call.is_stream:
            response = await self._open_stream()
            source = self._pieces()
            for _ in range(pieces):
                await response.write(await anext(source, b""))
        else:
            await self.reply.collect()
        assert self.request.transport is not None  # noqa: S101, the handler is cancelled when it is lost
        self.request.transport.abort()
        return web.Response()

    async def _open_stream(self) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": EVENT_STREAM, **self.headers})
        await response.prepare(self.request)
        return response

    def _pieces(self) -> AsyncIterator[bytes]:
        return self.reply.stream(self.api.frames(self.head, self.call))
