"""The routes beside generation: models, embeddings, tokens, health, metrics, cache, and faults.

Embeddings are vectors that say nothing, but are the same for the same prompt.
"""

from array import array
from base64 import b64encode
from collections.abc import Sequence
from math import sqrt
from random import Random
from struct import pack
from typing import Any, Literal

import xxhash
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import ValidationError

from extproc.simulator.http.api_request import AnswerHead, ApiRequest
from extproc.simulator.http.apis.completions import read_prompts
from extproc.simulator.http.apis.fields import Fields, Token
from extproc.simulator.http.apis.messages import count_tokens
from extproc.simulator.http.endpoint import SimulatedEndpoint
from extproc.simulator.http.faults import Faults
from extproc.simulator.http.refusals import VllmRefusal, read_json, refuse_shape, send_json
from extproc.simulator.http.tokens import Tokenizer

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
        return send_json(
            {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}
        )

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


DIMENSIONS = 64
# Whoever names a size gets it, as from a model that was made for it.
MOST_DIMENSIONS = 8192


class EmbeddingRequest(Fields):
    input: list[Token] | list[list[Token]] | str | list[str]
    model: str | None = None
    dimensions: int | None = None
    encoding_format: Literal["float", "base64"] = "float"
    cache_salt: str | None = None


def read_embedding(body: object, tokenizer: Tokenizer) -> ApiRequest:
    """Returns the engine's work for a body: each input's prompt, and one token that is thrown away."""
    request = EmbeddingRequest.read(body)
    return ApiRequest(
        prompts=read_prompts(request.input, tokenizer),
        model=request.model,
        max_tokens=1,
        cache_salt=request.cache_salt or "",
        repeated={
            "dimensions": _check_dimensions(request),
            "encoding_format": request.encoding_format,
        },
    )


def describe_embeddings(request: ApiRequest, head: AnswerHead) -> dict[str, Any]:
    dimensions, form = request.repeated["dimensions"], request.repeated["encoding_format"]
    data = [
        {
            "index": index,
            "object": "embedding",
            "embedding": _encode(embed(prompt, dimensions), form),
        }
        for index, prompt in enumerate(request.prompts)
    ]
    usage = {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }
    return {
        "id": head.id,
        "object": "list",
        "created": head.created,
        "model": head.model,
        "data": data,
        "usage": usage,
    }


def embed(prompt: Sequence[int], dimensions: int = DIMENSIONS) -> list[float]:
    """Returns a vector of length one that depends on the prompt alone.

    A shorter one points where the head of a longer one does, as in models that are trained for
    that.
    """
    draw = Random(xxhash.xxh3_64_intdigest(array("Q", prompt).tobytes()))  # noqa: S311, no secret
    vector = [draw.gauss(0, 1) for _ in range(dimensions)]
    norm = sqrt(sum(value * value for value in vector))
    return [value / norm for value in vector]


def _encode(vector: Sequence[float], form: str) -> list[float] | str:
    """Returns numbers, or the base64 of little-endian 32-bit floats, which Node's client requests."""
    if form == "float":
        return list(vector)
    return b64encode(pack(f"<{len(vector)}f", *vector)).decode()


def _check_dimensions(request: EmbeddingRequest) -> int:
    size = DIMENSIONS if request.dimensions is None else request.dimensions
    if not 1 <= size <= MOST_DIMENSIONS:
        raise VllmRefusal(
            f"Model {request.model or 'simulated'!r} only supports dimensions in range "
            f"[1, {MOST_DIMENSIONS}], got {size}."
        )
    return size
