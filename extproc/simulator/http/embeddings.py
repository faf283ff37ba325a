"""`/v1/embeddings`: vectors that say nothing, but are the same for the same prompt."""

from array import array
from base64 import b64encode
from collections.abc import Sequence
from math import sqrt
from random import Random
from struct import pack
from typing import Any, Literal

import xxhash

from extproc.simulator.http.api_request import AnswerHead, ApiRequest
from extproc.simulator.http.apis.completions import read_prompts
from extproc.simulator.http.apis.fields import Fields, Token
from extproc.simulator.http.refusals import VllmRefusal
from extproc.simulator.http.tokens import Tokenizer

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
        repeated={"dimensions": _check_dimensions(request), "encoding_format": request.encoding_format},
    )


def describe_embeddings(request: ApiRequest, head: AnswerHead) -> dict[str, Any]:
    dimensions, form = request.repeated["dimensions"], request.repeated["encoding_format"]
    data = [
        {"index": index, "object": "embedding", "embedding": _encode(embed(prompt, dimensions), form)}
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

    A shorter one points where the head of a longer one does, as in models that are trained for that.
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
