"""What a request asks of the engine, whichever API it came by, and what it got."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: one or more prompts (in tokens), each answered `n` times.

    `model` is None if the request names none. `max_tokens` is None if the client leaves the length
    to the model; `max_tokens_name` is what its API calls that number.
    """

    prompts: Sequence[Sequence[int]]
    model: str | None = None
    max_tokens: int | None = None
    max_tokens_name: str = "max_tokens"
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int = 1
    seed: int = 0
    cache_salt: str = ""
    is_stream: bool = False
    wants_usage: bool = False
    wants_continuous_usage: bool = False
    echoes: bool = False

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request. `created_tokens` are those whose full blocks its prompt added to the cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    created_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Head:
    """What every answer of an API starts with. `created` is in seconds since the epoch."""

    id: str
    model: str
    created: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One finished answer. `reason` is vLLM's `finish_reason`: `stop` or `length`."""

    text: str
    reason: str
