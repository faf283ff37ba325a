"""The routes beside generation: models, adapters, tokens, health, metrics, cache, and faults."""

from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError

from extproc.simulator.http.apis.messages import count_tokens
from extproc.simulator.http.embeddings import describe_embeddings, read_embedding
from extproc.simulator.http.endpoint import SimulatedEndpoint
from extproc.simulator.http.faults import Faults
from extproc.simulator.http.refusals import read_json, refuse_shape, send_json

VERSION = "0.32.0"


class SideRoutes:
    """Handlers for one endpoint. Those that vLLM keeps for development are always there."""

    def __init__(self, endpoint: SimulatedEndpoint) -> None:
        self._endpoint = endpoint
        self._options = endpoint.options

    def add_to(self, app: web.Application) -> None:
        app.add_routes(
            [
                web.get("/health", self.health),
                web.get("/ping", self.health),
                web.post("/ping", self.health),
                web.get("/load", self.load),
                web.get("/version", self.version),
                web.get("/metrics", self.metrics),
                web.get("/v1/models", self.models),
                web.get("/kv_event_sources", self.kv_event_sources),
                web.post("/v1/messages/count_tokens", self.count_tokens),
                web.post("/v1/embeddings", self.embeddings),
                web.post("/reset_prefix_cache", self.reset_prefix_cache),
                web.get("/simulate/fail", self.faults),
                web.post("/simulate/fail", self.replace_faults),
            ]
        )

    async def health(self, _request: web.Request) -> web.Response:
        is_well = self._endpoint.is_alive and not self._endpoint.faults.is_sick
        return web.Response(status=200 if is_well else 503)

    async def load(self, _request: web.Request) -> web.Response:
        return send_json({"server_load": self._endpoint.load})

    async def version(self, _request: web.Request) -> web.Response:
        return send_json({"version": VERSION})

    async def metrics(self, _request: web.Request) -> web.Response:
        text = generate_latest(self._endpoint.registry)
        return web.Response(body=text, headers={"content-type": CONTENT_TYPE_LATEST})

    async def models(self, _request: web.Request) -> web.Response:
        base, *_ = self._options.models
        cards = [self._card(name, base, None) for name in self._options.models]
        cards += [self._card(name, name, base) for name in self._options.adapters]
        return send_json({"object": "list", "data": cards})

    async def kv_event_sources(self, _request: web.Request) -> web.Response:
        publisher = self._endpoint.publisher
        return send_json({} if publisher is None else {"0": publisher.describe()})

    async def count_tokens(self, request: web.Request) -> web.Response:
        model, tokens = count_tokens(await read_json(request), self._options.tokenizer)
        self._endpoint.find_model(model)
        return send_json({"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}})

    async def embeddings(self, request: web.Request) -> web.Response:
        call = read_embedding(await read_json(request), self._options.tokenizer)
        head = self._endpoint.head(call, "embd-")
        reply = self._endpoint.begin(call, head)
        try:
            await reply.collect()
        finally:
            reply.close()
        return send_json(describe_embeddings(call, head))

    async def reset_prefix_cache(self, _request: web.Request) -> web.Response:
        return send_json({"success": self._endpoint.reset_prefix_cache()})

    async def faults(self, _request: web.Request) -> web.Response:
        return send_json(self._endpoint.faults.model_dump())

    async def replace_faults(self, request: web.Request) -> web.Response:
        try:
            self._endpoint.faults = Faults.model_validate(await read_json(request))
        except ValidationError as fault:
            raise refuse_shape(fault.errors(include_url=False)) from None
        return await self.faults(request)

    def _card(self, name: str, root: str, parent: str | None) -> dict[str, Any]:
        created = int(self._endpoint.epoch_s())
        permission = {
            "id": self._endpoint.name_request("modelperm-"),
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": root,
            "parent": parent,
            "max_model_len": None if parent else self._options.profile.max_model_len,
            "permission": [permission],
        }
