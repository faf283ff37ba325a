"""OpenAI's chat, completions and responses, vLLM and SGLang that speak them, and Anthropic's messages."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from extproc.bench.datasets.conversation import TurnMessage, join_prompt
from extproc.bench.processors.processor import (
    EMPTY,
    AnswerPiece,
    ChatQuery,
    HttpApi,
    Json,
    Usage,
    gather_text,
    get_count,
    get_error,
    get_list,
    get_object,
    get_text,
)

_LENGTHS = frozenset({"max_tokens", "max_completion_tokens", "max_output_tokens"})
_TEXTS = frozenset({"response.output_text.delta", "response.reasoning_text.delta"})
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
        return self._fill(query, {"messages": _list_messages(query.messages)})

    def _fill(self, query: ChatQuery, prompt: Json) -> dict[str, object]:
        body = {**_start(query, prompt), "model": query.model, "stream": query.is_streaming}
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
        choices = get_list(payload, "choices")
        return AnswerPiece(
            text="".join(map(_read_choice, choices)),
            other="".join(map(_read_other, choices)),
            usage=_read_usage(get_object(payload, "usage")),
            # Some servers close without `[DONE]`.
            is_last=any(get_text(choice, "finish_reason") for choice in choices),
        )


@dataclass(frozen=True, slots=True)
class OpenAICompletions(OpenAIChat):
    """`/v1/completions`."""

    def path(self, query: ChatQuery) -> str:
        del query
        return "/v1/completions"

    def body(self, query: ChatQuery) -> dict[str, object]:
        return self._fill(query, {"prompt": join_prompt(query.messages)})


@dataclass(frozen=True, slots=True)
class OpenAIResponses(HttpApi):
    """`/v1/responses`: typed events, the last one carries the whole response."""

    def path(self, query: ChatQuery) -> str:
        del query
        return "/v1/responses"

    def body(self, query: ChatQuery) -> dict[str, object]:
        return {
            **_start(query, {"input": _list_messages(query.messages)}),
            "model": query.model,
            "max_output_tokens": query.max_tokens,
            "stream": query.is_streaming,
        }

    def read(self, payload: object) -> AnswerPiece:
        kind = get_text(payload, "type")
        if kind.endswith(".delta"):
            delta = get_text(payload, "delta")
            # The others are arguments, a refusal, a summary, audio, and what is yet to come.
            return AnswerPiece(text=delta) if kind in _TEXTS else AnswerPiece(other=delta)
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
        output = get_list(payload, "output")
        parts = [part for item in output for part in get_list(item, "content")]
        text = "".join(get_text(part, "text") for part in parts)
        other = "".join(get_text(item, "name") + get_text(item, "arguments") for item in output)
        usage, error = _read_usage(get_object(payload, "usage")), get_error(payload)
        return AnswerPiece(text=text, other=other, usage=usage, error=error)


def _list_messages(messages: Iterable[TurnMessage]) -> list[Json]:
    return [{"role": m.role, "content": m.content} for m in messages]


def _start(query: ChatQuery, prompt: Json) -> Json:
    """Returns a recorded body as it is, without its limit of the answer; else the query's `prompt`."""
    if query.body is None:
        return prompt
    return {name: value for name, value in query.body.items() if name not in _LENGTHS}


_OTHER = ("tool_calls", "function_call", "refusal", "audio", "reasoning_details")


def _find_part(choice: object) -> object:
    """A streamed `delta`, a whole `message`, or a completion."""
    return get_object(choice, "delta") or get_object(choice, "message") or choice


def _read_other(choice: object) -> str:
    part = _find_part(choice)
    if not isinstance(part, Mapping):
        return ""
    return "".join(gather_text(part.get(field)) for field in _OTHER)


def _read_choice(choice: object) -> str:
    part = _find_part(choice)
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
        prompt: Json = {"messages": _list_messages(turns), **({"system": system} if system else {})}
        return {
            **_start(query, prompt),
            "model": query.model,
            "max_tokens": query.max_tokens,
            "stream": query.is_streaming,
        }

    def read(self, payload: object) -> AnswerPiece:
        match get_text(payload, "type"):
            case "content_block_delta":
                delta = get_object(payload, "delta")
                piece = AnswerPiece(text=_read_block(delta), other=get_text(delta, "partial_json"))
            case "content_block_start":
                # A tool's name is what the model wrote; text and thinking come in the deltas.
                piece = AnswerPiece(other=get_text(get_object(payload, "content_block"), "name"))
            case "message_start":
                piece = AnswerPiece(
                    usage=_sum_usage(get_object(get_object(payload, "message"), "usage"))
                )
            case "message_delta":
                piece = AnswerPiece(usage=_sum_usage(get_object(payload, "usage")))
            case "message_stop":
                piece = AnswerPiece(is_last=True)
            case "message":
                blocks = get_list(payload, "content")
                piece = AnswerPiece(
                    text="".join(map(_read_block, blocks)),
                    other="".join(gather_text(get_object(block, "input")) for block in blocks),
                    usage=_sum_usage(get_object(payload, "usage")),
                )
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
