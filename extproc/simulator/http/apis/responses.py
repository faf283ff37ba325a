"""`/v1/responses`, without a store. The wording is that of vLLM 0.32.0."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from extproc.simulator.http.api_request import (
    AnswerHead,
    ApiRequest,
    FinishedAnswer,
    NewText,
    TokenUsage,
)
from extproc.simulator.http.apis.api import Api, Frames, encode_json
from extproc.simulator.http.apis.fields import ChatMessage, Fields, MessagePart, render
from extproc.simulator.http.tokens import Tokenizer

_REPEATED: Final = {"temperature", "top_p", "metadata", "user", "parallel_tool_calls"}


class InputItem(Fields):
    """One item of a request's input: a message, a call that the model made, or its result."""

    type: str = "message"
    role: str | None = None
    content: str | list[MessagePart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[MessagePart] | None = None

    def message(self) -> ChatMessage:
        """Returns the item as chat has it."""
        if self.type == "function_call":
            function = {"name": self.name, "arguments": self.arguments}
            call = {"id": self.call_id, "type": "function", "function": function}
            return ChatMessage(role="assistant", tool_calls=[call])
        if self.type == "function_call_output":
            return ChatMessage(role="tool", content=self.output)
        return ChatMessage(role=self.role or "assistant", content=self.content)


class ResponseTool(Fields):
    """A function; tools of other types have no name."""

    type: str = "function"
    name: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None

    def describe(self) -> dict[str, Any]:
        head = {
            "name": self.name,
            "parameters": self.parameters,
            "strict": self.strict,
            "type": self.type,
        }
        rest = {"allowed_callers": None, "async": None, "defer_loading": None}
        return head | rest | {"description": self.description, "output_schema": None}


class ResponseRequest(Fields):
    input: str | list[InputItem]
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
    tools: list[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    def messages(self) -> list[ChatMessage]:
        """Returns the conversation: instructions, then the input."""
        system = (
            [ChatMessage(role="system", content=self.instructions)] if self.instructions else []
        )
        if isinstance(self.input, str):
            return [*system, ChatMessage(role="user", content=self.input)]
        return [*system, *(item.message() for item in self.input if item.type != "reasoning")]

    def repeated(self) -> dict[str, Any]:
        """Returns the fields that a response repeats, as vLLM does."""
        fields = self.model_dump(include=_REPEATED, exclude_none=True)
        if self.tools:
            tools = [tool.describe() for tool in self.tools]
            fields |= {"tools": tools, "tool_choice": self.tool_choice or "auto"}
        return fields


class Responses(Api):
    id_prefix = "resp_"

    def read(self, body: object, tokenizer: Tokenizer) -> ApiRequest:
        request = ResponseRequest.read(body)
        is_closed = request.tool_choice == "none"
        tools = [] if is_closed else [tool.model_dump() for tool in request.tools or ()]
        return ApiRequest(
            prompts=[tokenizer.encode(render(request.messages(), tools))],
            model=request.model,
            max_tokens=request.max_output_tokens,
            max_tokens_name="max_output_tokens",
            ignore_eos=request.ignore_eos,
            seed=request.seed or 0,
            cache_salt=request.cache_salt or "",
            is_stream=bool(request.stream),
            repeated=request.repeated(),
        )

    def frames(self, head: AnswerHead, request: ApiRequest) -> Frames:
        return ResponseFrames(head, request)

    def whole(
        self,
        head: AnswerHead,
        request: ApiRequest,
        choices: Sequence[FinishedAnswer],
        usage: TokenUsage,
    ) -> dict[str, Any]:
        return describe_response(head, request, choices[0], usage)


class ResponseFrames:
    """Typed events with running numbers; the text is needed again at the end."""

    def __init__(self, head: AnswerHead, request: ApiRequest) -> None:
        self._head = head
        self._request = request
        self._item_id = _name_item(head)
        self._number = 0
        self._text = b""
        self._reason = "stop"
        self._position = {"content_index": 0, "item_id": self._item_id, "output_index": 0}

    def opening(self) -> bytes:
        response = describe_response(self._head, self._request, None, None)
        return self._event("response.created", {"response": response}) + self._event(
            "response.in_progress", {"response": response}
        )

    def piece(self, _index: int, new: NewText) -> bytes:
        if not new.text:
            return b""
        opening = b"" if self._text else self._open_text()
        self._text += new.text
        delta = (
            b'event: response.output_text.delta\ndata: {"content_index":0,"delta":"%b","item_id":"%b",'
            b'"logprobs":[],"output_index":0,"sequence_number":%d,"type":"response.output_text.delta"}\n\n'
            % (new.text, self._item_id.encode(), self._number)
        )
        self._number += 1
        return opening + delta

    def last_piece(self, index: int, new: NewText, reason: str) -> bytes:
        self._reason = reason
        return self.piece(index, new)

    def closing(self, usage: TokenUsage) -> bytes:
        text: str = msgspec.json.decode(b'"%b"' % self._text)
        choice = FinishedAnswer(text, self._reason)
        response = describe_response(self._head, self._request, choice, usage)
        item = response["output"][0]
        done = {"logprobs": [], "text": text}
        return (
            (b"" if self._text else self._open_text())
            + self._event("response.output_text.done", self._position | done)
            + self._event(
                "response.content_part.done", self._position | {"part": item["content"][0]}
            )
            + self._event("response.output_item.done", {"item": item, "output_index": 0})
            + self._event("response.completed", {"response": response})
        )

    def _open_text(self) -> bytes:
        item = {"id": self._item_id, "content": [], "role": "assistant", "status": "in_progress"}
        part: dict[str, Any] = {
            "annotations": [],
            "text": "",
            "type": "output_text",
            "logprobs": [],
        }
        return self._event(
            "response.output_item.added",
            {"item": item | {"type": "message", "phase": None}, "output_index": 0},
        ) + self._event("response.content_part.added", self._position | {"part": part})

    def _event(self, kind: str, members: dict[str, Any]) -> bytes:
        # OpenAI's events have their members in alphabetical order.
        members |= {"sequence_number": self._number, "type": kind}
        data = encode_json({name: members[name] for name in sorted(members)})
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _name_item(head: AnswerHead) -> str:
    return head.id.replace("resp_", "msg_", 1)


def describe_response(
    head: AnswerHead, request: ApiRequest, choice: FinishedAnswer | None, usage: TokenUsage | None
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
        "max_output_tokens": request.max_tokens,
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
    } | dict(request.repeated)


def _describe_item(head: AnswerHead, choice: FinishedAnswer) -> dict[str, Any]:
    part: dict[str, Any] = {
        "annotations": [],
        "text": choice.text,
        "type": "output_text",
        "logprobs": None,
    }
    return {
        "id": _name_item(head),
        "content": [part],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "phase": None,
    }


def _describe_usage(usage: TokenUsage) -> dict[str, Any]:
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
