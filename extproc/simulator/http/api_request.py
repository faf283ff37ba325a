"""One request to a serving API, and what it gets, whichever API it came by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One or more prompts (in tokens), each answered `n` times.

    `is_text`: the prompt came as text, not as tokens. `model` is None if the request names none,
    `max_tokens` if it leaves the length to the model; `max_tokens_name` is what its API calls that
    number. `repeated` holds fields of the request that its answer repeats. `is_computed`: a sidecar had
    the prompts computed elsewhere.
    """

    prompts: Sequence[Sequence[int]]
    model: str | None = None
    max_tokens: int | None = None
    max_tokens_name: str = "max_tokens"
    is_text: bool = True
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int = 1
    seed: int = 0
    cache_salt: str = ""
    is_stream: bool = False
    wants_usage: bool = False
    wants_continuous_usage: bool = False
    echoes: bool = False
    repeated: Mapping[str, Any] = field(default_factory=dict)
    is_computed: bool = False

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one request. `created_tokens` are those whose full blocks its prompt added to the cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    created_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What every answer of an API starts with. `created` is in seconds since the epoch."""

    id: str
    model: str
    created: int


@dataclass(frozen=True, slots=True)
class FinishedAnswer:
    """One finished answer. `reason` is vLLM's `finish_reason`: `stop` or `length`."""

    text: str
    reason: str
    echo: str = ""


@dataclass(frozen=True, slots=True)
class NewText:
    """The part of one answer that goes out next, escaped for JSON, and the usage until then.

    `echo` is the prompt's text, escaped as well, and `echoed` its tokens, in what comes first.
    """

    text: bytes
    usage: TokenUsage
    echo: bytes = b""
    echoed: Sequence[int] | None = None
