"""Anthropic's messages, also served by vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass

from extproc.bench.processors.processor import (
    EMPTY,
    AnswerPiece,
    ChatQuery,
    HttpApi,
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
        match get_text(payload, "type"):
            case "content_block_delta":
                piece = AnswerPiece(text=_read_text(get_object(payload, "delta")))
            case "message_start":
                piece = AnswerPiece(usage=_read_usage(get_object(get_object(payload, "message"), "usage")))
            case "message_delta":
                piece = AnswerPiece(usage=_read_usage(get_object(payload, "usage")))
            case "message_stop":
                piece = AnswerPiece(is_last=True)
            case "message":
                text = "".join(map(_read_text, get_list(payload, "content")))
                piece = AnswerPiece(text=text, usage=_read_usage(get_object(payload, "usage")))
            case "error":
                piece = AnswerPiece(error=get_error(payload) or "error")
            case _:
                piece = EMPTY
        return piece


def _read_text(part: object) -> str:
    return get_text(part, "text") or get_text(part, "thinking")


def _read_usage(usage: Mapping[str, object]) -> Usage | None:
    """Adds up the input: Anthropic counts what the cache served, or took in, apart from the rest."""
    if not usage:
        return None
    fields = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    counts = [count for field in fields if (count := get_count(usage, field)) is not None]
    return Usage(
        input_tokens=sum(counts) if counts else None,
        output_tokens=get_count(usage, "output_tokens"),
        cached_tokens=get_count(usage, "cache_read_input_tokens"),
    )
