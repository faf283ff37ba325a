"""Anthropic's messages, also served by vLLM."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from extproc.bench.processors.processor import (
    EMPTY,
    AnswerPiece,
    ChatQuery,
    HttpApi,
    Json,
    Usage,
    get_count,
    get_error,
    get_list,
    get_object,
    get_text,
)


@dataclass(frozen=True, slots=True)
class AnthropicMessages(HttpApi):
    """`/v1/messages`; system messages go into the `system` field."""

    def path(self, ask: ChatQuery) -> str:
        del ask
        return "/v1/messages"

    def headers(self, api_key: str | None) -> dict[str, str]:
        version = {"anthropic-version": "2023-06-01"}
        return {**version, "x-api-key": api_key} if api_key else version

    def body(self, ask: ChatQuery) -> dict[str, object]:
        system = "\n\n".join(m.content for m in ask.messages if m.role == "system")
        body: dict[str, object] = {
            "model": ask.model,
            "max_tokens": ask.max_tokens,
            "messages": [{"role": m.role, "content": m.content} for m in ask.messages if m.role != "system"],
            "stream": ask.is_streaming,
        }
        return {**body, "system": system} if system else body

    def read(self, payload: object) -> AnswerPiece:
        reader = _READERS.get(get_text(payload, "type"))
        return EMPTY if reader is None else reader(payload)


def _read_delta(payload: object) -> AnswerPiece:
    delta = get_object(payload, "delta")
    return AnswerPiece(text=get_text(delta, "text") or get_text(delta, "thinking"))


def _read_start(payload: object) -> AnswerPiece:
    return AnswerPiece(usage=_read_usage(get_object(get_object(payload, "message"), "usage")))


def _read_totals(payload: object) -> AnswerPiece:
    return AnswerPiece(usage=_read_usage(get_object(payload, "usage")))


def _read_stop(payload: object) -> AnswerPiece:
    del payload
    return AnswerPiece(is_last=True)


def _read_error(payload: object) -> AnswerPiece:
    return AnswerPiece(error=get_error(payload) or "error")


def _read_whole(payload: object) -> AnswerPiece:
    parts = get_list(payload, "content")
    text = "".join(get_text(part, "text") or get_text(part, "thinking") for part in parts)
    return AnswerPiece(text=text, usage=_read_usage(get_object(payload, "usage")))


def _read_usage(usage: Mapping[str, object]) -> Usage | None:
    """Adds up the input: Anthropic counts what the cache served, or took in, apart from the rest."""
    if not usage:
        return None
    cached = get_count(usage, "cache_read_input_tokens")
    return Usage(
        input_tokens=_sum_input(usage),
        output_tokens=get_count(usage, "output_tokens"),
        cached_tokens=cached,
    )


def _sum_input(usage: Json) -> int | None:
    fields = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    counts = [count for field in fields if (count := get_count(usage, field)) is not None]
    return sum(counts) if counts else None


_READERS: Mapping[str, Callable[[object], AnswerPiece]] = MappingProxyType(
    {
        "content_block_delta": _read_delta,
        "message_start": _read_start,
        "message_delta": _read_totals,
        "message_stop": _read_stop,
        "message": _read_whole,
        "error": _read_error,
    }
)
