"""`/v1/embeddings`: vectors that say nothing, but are the same for the same prompt."""

from array import array
from collections.abc import Sequence
from math import sqrt
from random import Random
from typing import Any

import xxhash

from extproc.vllm.http.apis.completions import read_prompts
from extproc.vllm.http.apis.fields import Fields, Token
from extproc.vllm.http.order import AnswerHead, Order
from extproc.vllm.http.tokens import Tokenizer

DIMENSIONS = 64


class EmbeddingRequest(Fields):
    input: list[Token] | list[list[Token]] | str | list[str]
    model: str | None = None
    dimensions: int | None = None
    cache_salt: str | None = None


def read_embedding(body: object, tokenizer: Tokenizer) -> Order:
    """Returns what the body asks of the engine: each input's prompt, and one token that is thrown away."""
    request = EmbeddingRequest.read(body)
    return Order(
        prompts=read_prompts(request.input, tokenizer),
        model=request.model,
        max_tokens=1,
        cache_salt=request.cache_salt or "",
    )


def describe_embeddings(order: Order, head: AnswerHead) -> dict[str, Any]:
    data = [
        {"index": index, "object": "embedding", "embedding": embed(prompt)}
        for index, prompt in enumerate(order.prompts)
    ]
    usage = {
        "prompt_tokens": order.prompt_tokens,
        "total_tokens": order.prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }
    return {
        "id": head.id,
        "object": "list",
        "created": head.created,
        "model": head.model,
        "data": data,
        "usage": usage,
    }


def embed(prompt: Sequence[int]) -> list[float]:
    """Returns a vector of length one that depends on the prompt alone."""
    draw = Random(xxhash.xxh3_64_intdigest(array("Q", prompt).tobytes()))  # noqa: S311, no secret
    vector = [draw.gauss(0, 1) for _ in range(DIMENSIONS)]
    norm = sqrt(sum(value * value for value in vector))
    return [value / norm for value in vector]
