"""`/v1/messages` and `/v1/messages/count_tokens`, Anthropic's API as vLLM 0.32.0 words it."""

from collections.abc import Sequence
from typing import Any

import orjson
from pydantic import field_validator

from extproc.vllm.http.apis.api import Frames
from extproc.vllm.http.apis.fields import Fields, Message, Part
from extproc.vllm.http.order import AnswerHead, FinishedAnswer, Order, Usage
from extproc.vllm.http.prompts import read_content, render
from extproc.vllm.http.refusals import INVALID, Refusal
from extproc.vllm.http.tokens import Tokenizer

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class CountRequest(Fields):
    model: str
    messages: list[Message]
    system: str | list[Part] | None = None
    tools: list[dict[str, Any]] | None = None

    def render(self) -> list[str]:
        system = [Message(role="system", content=read_content(self.system))] if self.system else []
        return render([*system, *self.messages], self.tools)


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

    def read(self, body: object, tokenizer: Tokenizer) -> Order:
        request = MessageRequest.read(body)
        return Order(
            prompts=[tokenizer.encode(request.render())],
            model=request.model,
            max_tokens=request.max_tokens,
            cache_salt=request.cache_salt or "",
            is_stream=bool(request.stream),
        )

    def describe(self, refusal: Refusal) -> dict[str, Any]:
        # A body of the wrong shape is refused before this API's own handler sees it.
        if refusal.kind == INVALID:
            return refusal.describe()
        return {"type": "error", "error": {"type": refusal.kind, "message": refusal.message}}

    def frames(self, head: AnswerHead, order: Order) -> Frames:
        return MessageFrames(head, order)

    def whole(
        self, head: AnswerHead, _order: Order, choices: Sequence[FinishedAnswer], usage: Usage
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
    def __init__(self, head: AnswerHead, order: Order) -> None:
        self._head = head
        self._prompt_tokens = order.prompt_tokens
        self._reason = "stop"

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
        block = {"content_block": {"type": "text", "text": ""}, "index": 0}
        return _event("message_start", {"message": message}) + _event("content_block_start", block)

    def piece(self, _index: int, text: bytes, _usage: Usage) -> bytes:
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":'
            b'{"type":"text_delta","text":"%b"},"index":0}\n\n' % text
        )

    def last_piece(self, index: int, text: bytes, reason: str, usage: Usage) -> bytes:
        self._reason = reason
        return self.piece(index, text, usage)

    def closing(self, usage: Usage) -> bytes:
        delta = {"stop_reason": STOP_REASONS[self._reason], "stop_sequence": None}
        return (
            _event("content_block_stop", {"index": 0})
            + _event("message_delta", {"delta": delta, "usage": _describe_usage(usage)})
            + _event("message_stop", {})
        )


def count_tokens(body: object, tokenizer: Tokenizer) -> tuple[str, int]:
    """Returns the model's name and the prompt's tokens; raises `Refusal`."""
    request = CountRequest.read(body)
    return request.model, len(tokenizer.encode(request.render()))


def _event(kind: str, members: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind} | members))


def _describe_usage(usage: Usage) -> dict[str, int]:
    cached = usage.cached_tokens or 0
    return {
        # Anthropic counts what came from the cache apart from the input.
        "input_tokens": max(0, usage.prompt_tokens - cached - usage.created_tokens),
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": usage.created_tokens,
        "cache_read_input_tokens": cached,
    }
