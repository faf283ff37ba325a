"""`/v1/messages` and `/v1/messages/count_tokens`, Anthropic's API as vLLM 0.32.0 words it."""

from collections.abc import Sequence
from typing import Any, Literal

import orjson
from pydantic import Field, field_validator

from extproc.simulator.http.apis.api import Frames
from extproc.simulator.http.apis.fields import Fields, Message, Part
from extproc.simulator.http.apis.forms_asked import name_function, require_call
from extproc.simulator.http.forms import CallDelta, Form, Function, schema_form
from extproc.simulator.http.order import AnswerHead, Due, FinishedAnswer, Order, Usage
from extproc.simulator.http.prompts import read_content, render
from extproc.simulator.http.refusals import INVALID, Refusal
from extproc.simulator.http.tokens import Tokenizer

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class CountRequest(Fields):
    model: str
    messages: list[Message]
    system: str | list[Part] | None = None
    tools: list[dict[str, Any]] | None = None

    def render(self) -> list[str]:
        system = [Message(role="system", content=read_content(self.system))] if self.system else []
        return render([*system, *self.messages], self.tools)


class ToolChoice(Fields):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(Fields):
    type: str = "json_schema"
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class OutputConfig(Fields):
    format: OutputFormat | None = None


class Tool(Fields):
    name: str
    input_schema: dict[str, Any]


class Tools(Fields):
    tools: list[Tool]


class MessageRequest(CountRequest):
    max_tokens: int
    stream: bool | None = False
    cache_salt: str | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None

    def form(self) -> Form | None:
        """Returns what the answer must be; raises `Refusal`."""
        # Tools that Anthropic itself runs have a type of their own, and no schema.
        own = [tool for tool in self.tools or () if tool.get("type", "custom") == "custom"]
        tools = Tools.read({"tools": own}).tools
        functions = [Function(tool.name, tool.input_schema) for tool in tools]
        choice = self.tool_choice
        if choice is not None and functions and choice.type == "any":
            is_parallel = choice.disable_parallel_tool_use is False
            return require_call(functions, is_parallel=is_parallel)
        if choice is not None and functions and choice.type == "tool":
            unknown = Refusal(f"The tool with name '{choice.name}' is not found in the tools list.")
            return name_function(functions, choice.name, unknown)
        output = self.output_config.format if self.output_config is not None else None
        return schema_form(output.schema_) if output is not None and output.schema_ is not None else None

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
            form=request.form(),
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
            "content": _describe_content(choices[0]),
            "model": head.model,
            "stop_reason": _tell_reason(choices[0].reason, calls_tools=bool(choices[0].calls)),
            "usage": _describe_usage(usage),
        }


class MessageFrames:
    def __init__(self, head: AnswerHead, order: Order) -> None:
        self._head = head
        self._prompt_tokens = order.prompt_tokens
        self._reason = "stop"
        # Which block is open, None for none yet, and whether a call is among them.
        self._block: int | None = None
        self._calls_tools = False

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

    def piece(self, _index: int, due: Due) -> bytes:
        if due.deltas:
            return b"".join(map(self._tell, due.deltas))
        if self._calls_tools or not due.text:
            return b""
        opening = b""
        if self._block is None:
            opening = self._open(0, {"type": "text", "text": ""})
        return opening + (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":'
            b'{"type":"text_delta","text":"%b"},"index":0}\n\n' % due.text
        )

    def last_piece(self, index: int, due: Due, reason: str) -> bytes:
        self._reason = reason
        return self.piece(index, due)

    def closing(self, usage: Usage) -> bytes:
        reason = _tell_reason(self._reason, calls_tools=self._calls_tools)
        delta = {"stop_reason": reason, "stop_sequence": None}
        return (
            self._close()
            + _event("message_delta", {"delta": delta, "usage": _describe_usage(usage)})
            + _event("message_stop", {})
        )

    def _tell(self, delta: CallDelta) -> bytes:
        if delta.name:
            self._calls_tools = True
            block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
            return self._close() + self._open(delta.call, block)
        news = {"type": "input_json_delta", "partial_json": delta.arguments}
        return _event("content_block_delta", {"delta": news, "index": self._block})

    def _open(self, index: int, block: dict[str, Any]) -> bytes:
        self._block = index
        return _event("content_block_start", {"content_block": block, "index": index})

    def _close(self) -> bytes:
        return b"" if self._block is None else _event("content_block_stop", {"index": self._block})


def count_tokens(body: object, tokenizer: Tokenizer) -> tuple[str, int]:
    """Returns the model's name and the prompt's tokens; raises `Refusal`."""
    request = CountRequest.read(body)
    return request.model, len(tokenizer.encode(request.render()))


def _tell_reason(reason: str, *, calls_tools: bool) -> str:
    # vLLM ends the call of a named tool with `stop`; Anthropic knows one word for both.
    return "tool_use" if calls_tools and reason == "stop" else STOP_REASONS[reason]


def _describe_content(choice: FinishedAnswer) -> list[dict[str, Any]]:
    if not choice.calls:
        return [{"type": "text", "text": choice.text}]
    return [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": orjson.loads(call.arguments)}
        for call in choice.calls
    ]


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
