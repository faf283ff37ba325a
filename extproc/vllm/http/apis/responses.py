"""`/v1/responses`. The wording is that of vLLM 0.32.0, field by field."""

from collections.abc import Sequence
from typing import Any

import orjson

from extproc.vllm.http.apis.api import Frames
from extproc.vllm.http.apis.fields import Fields, Message
from extproc.vllm.http.order import AnswerHead, FinishedAnswer, Order, Usage
from extproc.vllm.http.prompts import render
from extproc.vllm.http.refusals import Refusal
from extproc.vllm.http.tokens import Tokenizer

REPEATED = {"temperature", "top_p", "metadata", "user"}


class ResponseRequest(Fields):
    input: str | list[Message]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    ignore_eos: bool = False
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    cache_salt: str | None = None
    stream: bool | None = False
    tools: list[dict[str, Any]] | None = None


class Responses:
    id_prefix = "resp_"

    def read(self, body: object, tokenizer: Tokenizer) -> Order:
        request = ResponseRequest.read(body)
        messages = request.input
        if isinstance(messages, str):
            messages = [Message(role="user", content=messages)]
        if request.instructions:
            messages = [Message(role="system", content=request.instructions), *messages]
        return Order(
            prompts=[tokenizer.encode(render(messages, request.tools))],
            model=request.model,
            max_tokens=request.max_output_tokens,
            max_tokens_name="max_output_tokens",
            ignore_eos=request.ignore_eos,
            seed=request.seed or 0,
            cache_salt=request.cache_salt or "",
            is_stream=bool(request.stream),
            repeated=request.model_dump(include=REPEATED, exclude_none=True),
        )

    def describe(self, refusal: Refusal) -> dict[str, Any]:
        return refusal.describe()

    def frames(self, head: AnswerHead, order: Order) -> Frames:
        return ResponseFrames(head, order)

    def whole(
        self, head: AnswerHead, order: Order, choices: Sequence[FinishedAnswer], usage: Usage
    ) -> dict[str, Any]:
        return describe_response(head, order, choices[0], usage)


class ResponseFrames:
    """Typed events with running numbers; the text is needed again at the end."""

    def __init__(self, head: AnswerHead, order: Order) -> None:
        self._head = head
        self._order = order
        self._item_id = name_item(head)
        self._number = 0
        self._text = b""
        self._reason = "stop"
        position = {"content_index": 0, "item_id": self._item_id, "output_index": 0}
        self._position = position
        delta = orjson.dumps({"item_id": self._item_id, "logprobs": [], "output_index": 0})[1:-1]
        self._delta = b'event: response.output_text.delta\ndata: {"content_index":0,"delta":"%b",' + delta

    def opening(self) -> bytes:
        response = describe_response(self._head, self._order, None, None)
        item = {"id": self._item_id, "content": [], "role": "assistant", "status": "in_progress"}
        part: dict[str, Any] = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return (
            self._event("response.created", {"response": response})
            + self._event("response.in_progress", {"response": response})
            + self._event(
                "response.output_item.added",
                {"item": item | {"type": "message", "phase": None}, "output_index": 0},
            )
            + self._event("response.content_part.added", self._position | {"part": part})
        )

    def piece(self, _index: int, text: bytes, _usage: Usage) -> bytes:
        self._text += text
        end = b',"sequence_number":%d,"type":"response.output_text.delta"}\n\n' % self._number
        self._number += 1
        return self._delta.replace(b"%b", text, 1) + end

    def last_piece(self, index: int, text: bytes, reason: str, usage: Usage) -> bytes:
        self._reason = reason
        return self.piece(index, text, usage)

    def closing(self, usage: Usage) -> bytes:
        text: str = orjson.loads(b'"%b"' % self._text)
        response = describe_response(self._head, self._order, FinishedAnswer(text, self._reason), usage)
        item = response["output"][0]
        return (
            self._event("response.output_text.done", self._position | {"logprobs": [], "text": text})
            + self._event("response.content_part.done", self._position | {"part": item["content"][0]})
            + self._event("response.output_item.done", {"item": item, "output_index": 0})
            + self._event("response.completed", {"response": response})
        )

    def _event(self, kind: str, members: dict[str, Any]) -> bytes:
        # OpenAI's events have their members in alphabetical order.
        members |= {"sequence_number": self._number, "type": kind}
        data = orjson.dumps({name: members[name] for name in sorted(members)})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def name_item(head: AnswerHead) -> str:
    return head.id.replace("resp_", "msg_", 1)


def describe_response(
    head: AnswerHead, order: Order, choice: FinishedAnswer | None, usage: Usage | None
) -> dict[str, Any]:
    """Returns the response object; without a choice, that of a response in progress."""
    is_cut = choice is not None and choice.reason == "length"
    status = "in_progress" if choice is None else "incomplete" if is_cut else "completed"
    return {
        "id": head.id,
        "created_at": head.created,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": None,
        "metadata": None,
        "model": head.model,
        "object": "response",
        "output": [] if choice is None else [_describe_item(head, choice)],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "none",
        "tools": [],
        "top_p": 1.0,
        "background": False,
        "max_output_tokens": order.max_tokens,
        "max_tool_calls": None,
        "previous_response_id": None,
        "prompt": None,
        "reasoning": None,
        "service_tier": "auto",
        "status": status,
        "text": None,
        "top_logprobs": None,
        "truncation": "disabled",
        "usage": None if usage is None else _describe_usage(usage),
        "user": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    } | dict(order.repeated)


def _describe_item(head: AnswerHead, choice: FinishedAnswer) -> dict[str, Any]:
    part: dict[str, Any] = {"annotations": [], "text": choice.text, "type": "output_text", "logprobs": None}
    return {
        "id": name_item(head),
        "content": [part],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "phase": None,
    }


def _describe_usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens or 0,
            "cache_write_tokens": usage.created_tokens,
            "input_tokens_per_turn": [],
            "cached_tokens_per_turn": [],
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {
            "reasoning_tokens": 0,
            "tool_output_tokens": 0,
            "output_tokens_per_turn": [],
            "tool_output_tokens_per_turn": [],
        },
        "total_tokens": usage.total_tokens,
    }
