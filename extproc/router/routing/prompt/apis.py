"""Which path is which API of vLLM 0.32, and which fields of its body hold the prompt.

Paths and fields are those of vLLM's routers and request models.
"""

from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Field:
    """A body field that holds a part of the prompt.

    `role` names the one turn that its text makes; where `has_turns`, the field may hold several
    turns with roles of their own, and `role` is for bare text. Text parts of the system that begin
    with `leaves_out` are not read.
    """

    name: str
    role: str = ""
    has_turns: bool = False
    leaves_out: str = ""


Api = tuple[Field, ...]
"""Where a prompt is found, in the order in which the model reads it. Empty: no use of a KV cache."""

_TOOLS = Field("tools", "tools")
_CHAT: Api = (_TOOLS, Field("documents", "documents"), Field("messages", has_turns=True))
_RESPONSES: Api = (_TOOLS, Field("instructions", "system"), Field("input", "user", has_turns=True))
# A coding agent's line with a hash of each request; vLLM drops it, as it would defeat the cache.
_BILLING = "x-anthropic-billing-header"
_ANTHROPIC: Api = (
    _TOOLS,
    Field("system", "system", leaves_out=_BILLING),
    Field("messages", has_turns=True, leaves_out=_BILLING),
)
_COMPLETION: Api = (Field("prompt", has_turns=True),)
_POOLING: Api = (Field("messages", has_turns=True), Field("input", has_turns=True))
# Each pair of names is one of the spellings that the route takes.
_SCORE: Api = tuple(
    Field(name, has_turns=True)
    for name in ("query", "queries", "data_1", "text_1", "documents", "items", "data_2", "text_2")
)
_EMBED: Api = (Field("texts", has_turns=True), Field("inputs", has_turns=True))
# The second is SGLang's spelling.
_TOKENS: Api = (Field("token_ids", has_turns=True), Field("input_ids", has_turns=True))
_DECISION: Api = (Field("instructions"), Field("state"))
_NONE: Api = ()
# Told apart by their fields: SageMaker's one path for all APIs, and requests without a path.
_BY_FIELDS: Api = (*_ANTHROPIC, *_COMPLETION, Field("input", has_turns=True), *_SCORE)

APIS: Final = MappingProxyType(
    {
        "chat/completions": _CHAT,
        "chat/completions/batch": _CHAT,
        "chat": _CHAT,
        "completions": _COMPLETION,
        "responses": _RESPONSES,
        "messages": _ANTHROPIC,
        "embeddings": _POOLING,
        "embed": _EMBED,
        "pooling": _POOLING,
        "classify": _POOLING,
        "score": _SCORE,
        "rerank": _SCORE,
        "generative_scoring": _SCORE,
        "generate": _TOKENS,
        "systemone": _DECISION,
        "invocations": _BY_FIELDS,
    }
)

FIELDS: Final = frozenset(field.name for api in APIS.values() for field in api)
"""Every name that a part of a prompt may have."""

# The GenAI semantic conventions' names for the operations of paths, where they have one.
_CHATS: Final = ("chat/completions", "chat/completions/batch", "chat", "responses", "messages")
_OPERATIONS: Final = {
    **dict.fromkeys(_CHATS, "chat"),
    **dict.fromkeys(("completions", "generate"), "text_completion"),
    **dict.fromkeys(("embeddings", "embed"), "embeddings"),
}

# vLLM's routes that take no model and no prompt.
_BODYLESS: Final = frozenset(
    {"abort_requests", "cancel", "health", "load", "metrics", "models", "ping", "version"}
)


def api_of(path: str) -> Api:
    """Returns the API that `path` names, whatever stands before its version; empty if there is none."""
    if not path:
        return _BY_FIELDS
    return APIS.get(_route(path), _NONE)


def operation_of(path: str) -> str:
    """Returns the operation that `path` names (`gen_ai.operation.name`); empty if it has none."""
    return _OPERATIONS.get(_route(path), "")


def reads_body(method: str, path: str) -> bool:
    """Tells whether the body of a request may matter to its routing, by the model that it names at least."""
    return (
        method.upper() in {"POST", "PUT", "PATCH"}
        and _route(path).rpartition("/")[2] not in _BODYLESS
    )


_SHORT: Final = 256


def _route(path: str) -> str:
    """A client chooses the path, up to 60 kB by Envoy's limit: only short ones are cached."""
    return _short_route(path) if len(path) <= _SHORT else _find_route(path)


def _find_route(path: str) -> str:
    """`/llama/v1/chat/completions?x=1` → `chat/completions`; without a version, the last segment."""
    segments = [segment for segment in path.partition("?")[0].split("/") if segment]
    for index in range(len(segments) - 1, -1, -1):
        if segments[index] in {"v1", "v2"}:
            return "/".join(segments[index + 1 :])
    return segments[-1] if segments else ""


_short_route = lru_cache(maxsize=64)(_find_route)  # called twice a request
