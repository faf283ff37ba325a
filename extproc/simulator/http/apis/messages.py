"""`/v1/messages` and `/v1/messages/count_tokens`, Anthropic's API as vLLM 0.32.0 words it."""

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import field_validator

from extproc.simulator.http.api_request import (
    AnswerHead,
    ApiRequest,
    FinishedAnswer,
    NewText,
    TokenUsage,
)
from extproc.simulator.http.apis.api import Frames, encode_json
from extproc.simulator.http.apis.fields import (
    ChatMessage,
    Fields,
    MessagePart,
    render,
    write_call,
)
from extproc.simulator.http.refusals import INVALID, VllmRefusal
from extproc.simulator.http.tokens import Tokenizer

# vLLM's adapter (`entrypoints/anthropic/serving.py`) drops a coding agent's line from the system text, and
# reads neither sealed thoughts nor what marks and numbers a part.
_BILLING = "x-anthropic-billing-header"
_UNREAD_MEMBERS = {"cache_control", "id", "tool_use_id"}
_TOOL = ("name", "description", "input_schema")

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class CountRequest(Fields):
    model: str
    messages: list[ChatMessage]
    system: str | list[MessagePart] | None = None
    tools: list[dict[str, Any]] | None = None

    def render(self) -> list[str]:
        """The prompt as vLLM makes it: system messages go to the front, and some parts are left out."""
        late = [part for each in self.messages if _is_system(each) for part in _system_parts(each)]
        # A text that is no list is kept whatever it begins with.
        head = self.system or ""
        if isinstance(head, list):
            head = "".join(_system_parts(ChatMessage(role="system", content=head)))
        text = "".join([head, *late])
        first = [ChatMessage(role="system", content=text)] if text else []
        turns = [_readable(each) for each in self.messages if not _is_system(each)]
        tools = [{name: tool.get(name) for name in _TOOL} for tool in self.tools or ()]
        return render([*first, *turns], tools)


class MessageRequest(CountRequest):
    max_tokens: int
    stream: bool | None = False
    cache_salt: str | None = None

    @field_validator("max_tokens")
    @classmethod
    def _check_max_tokens(cls, value: int) -> int:
        if value <= 0:
            raise ValueError("max_tokens must be positive")
        return value


class Messages:
    # vLLM serves this API from its chat completions and keeps their ids.
    id_prefix = "chatcmpl-"

    def read(self, body: object, tokenizer: Tokenizer) -> ApiRequest:
        request = MessageRequest.read(body)
        return ApiRequest(
            prompts=[tokenizer.encode(request.render())],
            model=request.model,
            max_tokens=request.max_tokens,
            cache_salt=request.cache_salt or "",
            is_stream=bool(request.stream),
        )

    def describe(self, refusal: VllmRefusal) -> dict[str, Any]:
        # A body of the wrong shape is refused before this API's own handler sees it.
        if refusal.kind == INVALID:
            return refusal.describe()
        return {"type": "error", "error": {"type": refusal.kind, "message": refusal.message}}

    def frames(self, head: AnswerHead, request: ApiRequest) -> Frames:
        return MessageFrames(head, request)

    def whole(
        self,
        head: AnswerHead,
        _request: ApiRequest,
        choices: Sequence[FinishedAnswer],
        usage: TokenUsage,
    ) -> dict[str, Any]:
        return {
            "id": head.id,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": choices[0].text}],
            "model": head.model,
            "stop_reason": STOP_REASONS[choices[0].reason],
            "usage": _describe_usage(usage),
        }


class MessageFrames:
    def __init__(self, head: AnswerHead, request: ApiRequest) -> None:
        self._head = head
        self._prompt_tokens = request.prompt_tokens
        self._reason = "stop"
        self._is_open = False

    def opening(self) -> bytes:
        message: dict[str, Any] = {
            "id": self._head.id,
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": self._head.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": self._prompt_tokens, "output_tokens": 0},
        }
        return _event("message_start", {"message": message})

    def piece(self, _index: int, new: NewText) -> bytes:
        if not new.text:
            return b""
        opening = b""
        if not self._is_open:
            self._is_open = True
            block = {"type": "text", "text": ""}
            opening = _event("content_block_start", {"content_block": block, "index": 0})
        return opening + (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":'
            b'{"type":"text_delta","text":"%b"},"index":0}\n\n' % new.text
        )

    def last_piece(self, index: int, new: NewText, reason: str) -> bytes:
        self._reason = reason
        return self.piece(index, new)

    def closing(self, usage: TokenUsage) -> bytes:
        delta = {"stop_reason": STOP_REASONS[self._reason], "stop_sequence": None}
        ending = _event("content_block_stop", {"index": 0}) if self._is_open else b""
        return (
            ending
            + _event("message_delta", {"delta": delta, "usage": _describe_usage(usage)})
            + _event("message_stop", {})
        )


def _is_system(message: ChatMessage) -> bool:
    return message.role == "system"


def _system_parts(message: ChatMessage) -> list[str]:
    content = message.content or ""
    texts = [content] if isinstance(content, str) else [part.text or "" for part in content]
    return [text for text in texts if not text.startswith(_BILLING)]


def _readable(message: ChatMessage) -> ChatMessage:
    """The message with what the model reads of its parts, as text."""
    if not isinstance(message.content, list):
        return message
    texts = filter(None, map(_part_text, message.content))
    return message.model_copy(update={"content": "\n".join(texts)})


def _part_text(part: MessagePart) -> str:
    members = part.model_extra or {}
    match part.type:
        case "text" | "thinking":
            return part.text or members.get("thinking") or part.medium
        case "redacted_thinking":
            return ""
        case "tool_use":
            return write_call({"name": members.get("name"), "arguments": members.get("input")})
        case "tool_result":
            return "tool_result:" + "\n".join(_result_texts(members.get("content")))
    return part.medium or part.model_dump_json(exclude=_UNREAD_MEMBERS)


def _result_texts(content: Any) -> Iterator[str]:
    """Of a tool's result its texts and the tools that it refers to; nothing else is read but images."""
    if isinstance(content, str):
        yield content
    for item in content if isinstance(content, list) else ():
        if isinstance(item, dict) and item.get("type") in {"text", "tool_reference"}:
            yield str(item.get("text") or item.get("tool_name") or "")


def count_tokens(body: object, tokenizer: Tokenizer) -> tuple[str, int]:
    """Returns the model's name and the prompt's tokens; raises `VllmRefusal`."""
    request = CountRequest.read(body)
    return request.model, len(tokenizer.encode(request.render()))


def _event(kind: str, members: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (
        kind.encode(),
        encode_json({"type": kind} | members),
    )


def _describe_usage(usage: TokenUsage) -> dict[str, int]:
    cached = usage.cached_tokens or 0
    return {
        # Anthropic counts what came from the cache apart from the input.
        "input_tokens": max(0, usage.prompt_tokens - cached - usage.created_tokens),
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": usage.created_tokens,
        "cache_read_input_tokens": cached,
    }
