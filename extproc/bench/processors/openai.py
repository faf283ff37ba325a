"""OpenAI's chat, completions and responses, and vLLM's and SGLang's servers that speak them."""

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

    `forces_length` adds the `ignore_eos` of vLLM and SGLang. `length_field` is the field that limits the
    answer: newer hosted models want `max_completion_tokens`.
    """

    forces_length: bool = False
    length_field: str = "max_tokens"

    def path(self, ask: ChatQuery) -> str:
        del ask
        return "/v1/chat/completions"

    def body(self, ask: ChatQuery) -> dict[str, object]:
        return {"messages": _list_messages(ask, "messages"), **self._common(ask)}

    def _common(self, ask: ChatQuery) -> dict[str, object]:
        body = {**_list_settings(ask), "model": ask.model, "stream": ask.is_streaming}
        body[self.length_field] = ask.max_tokens
        if ask.is_streaming:
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

    def path(self, ask: ChatQuery) -> str:
        del ask
        return "/v1/completions"

    def body(self, ask: ChatQuery) -> dict[str, object]:
        return {"prompt": join_prompt(ask.messages), **self._common(ask)}


@dataclass(frozen=True, slots=True)
class OpenAIResponses(HttpApi):
    """`/v1/responses`: typed events, the last one carries the whole response."""

    def path(self, ask: ChatQuery) -> str:
        del ask
        return "/v1/responses"

    def body(self, ask: ChatQuery) -> dict[str, object]:
        return {
            "input": _list_messages(ask, "input"),
            **_list_settings(ask),
            "model": ask.model,
            "max_output_tokens": ask.max_tokens,
            "stream": ask.is_streaming,
        }

    def read(self, payload: object) -> AnswerPiece:
        kind = get_text(payload, "type")
        if kind in {"response.output_text.delta", "response.reasoning_text.delta"}:
            return AnswerPiece(text=get_text(payload, "delta"))
        if kind in _FINISHED:
            usage = _read_usage(get_object(get_object(payload, "response"), "usage"))
            return AnswerPiece(usage=usage, is_last=True)
        if kind == "response.failed":
            return AnswerPiece(error=get_error(get_object(payload, "response")) or "response.failed")
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


def _list_messages(ask: ChatQuery, field: str) -> object:
    """Returns a recorded body's own messages, images and tool calls included, or those of the ask."""
    recorded = (ask.body or {}).get(field)
    return recorded or [{"role": m.role, "content": m.content} for m in ask.messages]


def _list_settings(ask: ChatQuery) -> dict[str, object]:
    return {name: value for name, value in (ask.body or {}).items() if name not in _OWN_FIELDS}


def _read_choice(choice: object) -> str:
    """Reads a streamed `delta`, a whole `message`, or a completion's `text`."""
    part = get_object(choice, "delta") or get_object(choice, "message") or choice
    # vLLM says `reasoning`; its older versions and other servers say `reasoning_content`.
    reasoning = get_text(part, "reasoning") or get_text(part, "reasoning_content")
    return reasoning + (get_text(part, "content") or get_text(part, "text"))


def _read_usage(usage: Mapping[str, object]) -> Usage | None:
    if not usage:
        return None
    details = get_object(usage, "prompt_tokens_details") or get_object(usage, "input_tokens_details")
    chat = "prompt_tokens" in usage
    return Usage(
        input_tokens=get_count(usage, "prompt_tokens" if chat else "input_tokens"),
        output_tokens=get_count(usage, "completion_tokens" if chat else "output_tokens"),
        cached_tokens=get_count(details, "cached_tokens"),
    )
