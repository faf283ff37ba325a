"""Which path is which API of vLLM 0.32, and which fields of its body hold the prompt.

Paths and fields are those of vLLM's routers and request models.
"""

from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote, unquote_plus


@dataclass(frozen=True, slots=True)
class Field:
    """A body field that holds a part of the prompt.

    `role` names the one turn that its text makes; where `has_turns`, the field may hold several
    turns with roles of their own, and `role` is for bare text. Of a system text the parts that begin
    with `leaves_out` are not read. Of each element only the members `reads` are, if it has any, and
    never those `behind`. The field counts for nothing where `tool_choice` is `none` and it is
    `for_choice`.
    """

    name: str
    role: str = ""
    has_turns: bool = False
    leaves_out: str = ""
    reads: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    for_choice: bool = False


Api = tuple[Field, ...]
"""Where a prompt is found, in the order in which the model reads it. Empty: no use of a KV cache."""

# What tells a template how to write the head: gpt-oss and others write how hard to think there, Llama the
# date. Whether to think at all most of them write behind the last message.
_ARGUMENTS = Field("chat_template_kwargs", "template", behind=("enable_thinking", "thinking"))
_TOOLS = Field("tools", "tools")
_CHAT: Api = (
    _ARGUMENTS,
    Field("reasoning_effort", "effort"),
    *(_TOOLS, Field("documents", "documents"), Field("messages", has_turns=True)),
)
_RESPONSES: Api = (
    Field("reasoning", "effort", reads=("effort",)),
    Field("tools", "tools", for_choice=True),
    Field("instructions", "system"),
    Field("input", "user", has_turns=True),
)
# A coding agent's line with a hash of each request; vLLM drops it, as it would defeat the cache.
_BILLING = "x-anthropic-billing-header"
_AGENTS: Api = (
    Field("system", "system", leaves_out=_BILLING),
    Field("messages", has_turns=True, leaves_out=_BILLING),
)
_TOLD = ("name", "description", "input_schema", "strict", "defer_loading")
_ANTHROPIC: Api = (
    *(_ARGUMENTS, Field("output_config", "effort", reads=("effort",))),
    *(Field("tools", "tools", reads=_TOLD), *_AGENTS),
)
_COMPLETION: Api = (Field("prompt", has_turns=True),)
_POOLING: Api = (Field("messages", has_turns=True), Field("input", has_turns=True))
# Each pair of names is one of the spellings that the route takes.
_SCORE: Api = tuple(
    Field(name, has_turns=True)
    for name in ("query", "queries", "data_1", "text_1", "documents", "items", "data_2", "text_2")
)
_EMBED: Api = (Field("texts", has_turns=True), Field("inputs", has_turns=True))
# vLLM's tokens; SGLang's tokens or text.
_GENERATE: Api = tuple(Field(name, has_turns=True) for name in ("token_ids", "input_ids", "text"))
_DECISION: Api = (Field("instructions"), Field("state"))
_NONE: Api = ()
# Told apart by their fields: SageMaker's one path for all APIs, and requests without a path.
_BY_FIELDS: Api = (_TOOLS, *_AGENTS, *_COMPLETION, Field("input", has_turns=True), *_SCORE)

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
        "generate": _GENERATE,
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

# The routes that llm-d's routing sidecar takes in two steps; it hands all others on as they are.
_IN_TWO_STEPS: Final = frozenset(
    {"chat/completions", "completions", "responses", "messages", "generate"}
)

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


def may_split(method: str, path: str) -> bool:
    """Tells whether another endpoint than the one that answers may compute the prompt of a request."""
    return method == "POST" and _route(path) in _IN_TWO_STEPS


def model_in_path(path: str) -> str | None:
    """The model that a path names, for requests without a body: `/v1/realtime?model=a`, `/v1/models/a`."""
    if "model" not in path:
        return None
    named = _route(path).partition("models/")
    if named[1] and not named[0]:
        return unquote(named[2])
    fields = path.partition("?")[2].split("&")
    values = (field.removeprefix("model=") for field in fields if field.startswith("model="))
    value = next(values, None)
    return unquote_plus(value) if value else None


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
