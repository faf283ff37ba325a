"""OpenAI's chat, completions and responses, vLLM and SGLang that speak them, and Anthropic's messages."""

from collections.abc import Mapping
from dataclasses import dataclass

from extproc.bench.datasets.conversation import join_prompt
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

_OWN_FIELDS = frozenset({"messages", "prompt", "input", "max_tokens", "max_completion_tokens"})
_FINISHED = frozenset({"response.completed", "response.incomplete"})


@dataclass(frozen=True, slots=True)
class OpenAIChat(HttpApi):
    """`/v1/chat/completions`.

    `forces_length` adds the `ignore_eos` of vLLM and SGLang. `length_field` is the field that
    limits the answer: newer hosted models want `max_completion_tokens`.
    """

    forces_length: bool = False
    length_field: str = "max_tokens"

    def path(self, query: ChatQuery) -> str:
        del query
        return "/v1/chat/completions"

    def body(self, query: ChatQuery) -> dict[str, object]:
        return {"messages": _list_messages(query, "messages"), **self._common(query)}

    def _common(self, query: ChatQuery) -> dict[str, object]:
        body = {**_list_settings(query), "model": query.model, "stream": query.is_streaming}
        body[self.length_field] = query.max_tokens
        if query.is_streaming:
            body["stream_options"] = {"include_usage": True}
        if self.forces_length:
            body["ignore_eos"] = True
        return body

    def read(self, payload: object) -> AnswerPiece:
        error = get_error(payload)
        if error is not None:
            return AnswerPiece(error=error)
        text = "".join(map(_read_choice, get_list(payload, "choices")))
        return AnswerPiece(text=text, usage=_read_usage(get_object(payload, "usage")))


@dataclass(frozen=True, slots=True)
class OpenAICompletions(OpenAIChat):
    """`/v1/completions`."""

    def path(self, query: ChatQuery) -> str:
        del query
        return "/v1/completions"

    def body(self, query: ChatQuery) -> dict[str, object]:
        return {"prompt": join_prompt(query.messages), **self._common(query)}


@dataclass(frozen=True, slots=True)
class OpenAIResponses(HttpApi):
    """`/v1/responses`: typed events, the last one carries the whole response."""

    def path(self, query: ChatQuery) -> str:
        del query
        return "/v1/responses"

    def body(self, query: ChatQuery) -> dict[str, object]:
        return {
            "input": _list_messages(query, "input"),
            **_list_settings(query),
            "model": query.model,
            "max_output_tokens": query.max_tokens,
            "stream": query.is_streaming,
        }

    def read(self, payload: object) -> AnswerPiece:
        kind = get_text(payload, "type")
        if kind in {"response.output_text.delta", "response.reasoning_text.delta"}:
            return AnswerPiece(text=get_text(payload, "delta"))
        if kind in _FINISHED:
            usage = _read_usage(get_object(get_object(payload, "response"), "usage"))
            return AnswerPiece(usage=usage, is_last=True)
        if kind == "response.failed":
            return AnswerPiece(
                error=get_error(get_object(payload, "response")) or "response.failed"
            )
        if kind == "error":
            return AnswerPiece(error=get_text(payload, "message") or "error")
        if get_text(payload, "object") == "response":
            return self._read_whole(payload)
        error = get_error(payload)
        return EMPTY if error is None else AnswerPiece(error=error)

    def _read_whole(self, payload: object) -> AnswerPiece:
        parts = [part for item in get_list(payload, "output") for part in get_list(item, "content")]
        text = "".join(get_text(part, "text") for part in parts)
        error = get_error(payload)
        return AnswerPiece(text=text, usage=_read_usage(get_object(payload, "usage")), error=error)


def _list_messages(query: ChatQuery, field: str) -> object:
    """Returns a recorded body's own messages, images and tool calls included, or the query's."""
    return (query.body or {}).get(field) or [
        {"role": m.role, "content": m.content} for m in query.messages
    ]


def _list_settings(query: ChatQuery) -> dict[str, object]:
    return {name: value for name, value in (query.body or {}).items() if name not in _OWN_FIELDS}


def _read_choice(choice: object) -> str:
    """Reads a streamed `delta`, a whole `message`, or a completion's `text`."""
    part = get_object(choice, "delta") or get_object(choice, "message") or choice
    # vLLM says `reasoning`; its older versions and other servers say `reasoning_content`.
    reasoning = get_text(part, "reasoning") or get_text(part, "reasoning_content")
    return reasoning + (get_text(part, "content") or get_text(part, "text"))


def _read_usage(usage: Mapping[str, object]) -> Usage | None:
    if not usage:
        return None
    details = get_object(usage, "prompt_tokens_details") or get_object(
        usage, "input_tokens_details"
    )
    chat = "prompt_tokens" in usage
    return Usage(
        input_tokens=get_count(usage, "prompt_tokens" if chat else "input_tokens"),
        output_tokens=get_count(usage, "completion_tokens" if chat else "output_tokens"),
        cached_tokens=get_count(details, "cached_tokens"),
    )


@dataclass(frozen=True, slots=True)
class AnthropicMessages(HttpApi):
    """`/v1/messages`; system messages go into the `system` field."""

    def path(self, query: ChatQuery) -> str:
        del query
        return "/v1/messages"

    def headers(self, api_key: str | None) -> dict[str, str]:
        version = {"anthropic-version": "2023-06-01"}
        return {**version, "x-api-key": api_key} if api_key else version

    def body(self, query: ChatQuery) -> dict[str, object]:
        system = "\n\n".join(m.content for m in query.messages if m.role == "system")
        turns = [m for m in query.messages if m.role != "system"]
        body: dict[str, object] = {
            "model": query.model,
            "max_tokens": query.max_tokens,
            "messages": [{"role": m.role, "content": m.content} for m in turns],
            "stream": query.is_streaming,
        }
        return {**body, "system": system} if system else body

    def read(self, payload: object) -> AnswerPiece:
        match get_text(payload, "type"):
            case "content_block_delta":
                piece = AnswerPiece(text=_read_block(get_object(payload, "delta")))
            case "message_start":
                piece = AnswerPiece(
                    usage=_sum_usage(get_object(get_object(payload, "message"), "usage"))
                )
            case "message_delta":
                piece = AnswerPiece(usage=_sum_usage(get_object(payload, "usage")))
            case "message_stop":
                piece = AnswerPiece(is_last=True)
            case "message":
                text = "".join(map(_read_block, get_list(payload, "content")))
                piece = AnswerPiece(text=text, usage=_sum_usage(get_object(payload, "usage")))
            case "error":
                piece = AnswerPiece(error=get_error(payload) or "error")
            case _:
                piece = EMPTY
        return piece


def _read_block(part: object) -> str:
    return get_text(part, "text") or get_text(part, "thinking")


def _sum_usage(usage: Mapping[str, object]) -> Usage | None:
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
