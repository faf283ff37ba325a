"""`/v1/responses`. The wording is that of vLLM 0.32.0, field by field."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import orjson
from pydantic import Field

from extproc.vllm.http.apis.api import Frames
from extproc.vllm.http.apis.fields import Fields, Message, Part
from extproc.vllm.http.apis.forms_asked import StructuredOutputs, name_function, require_call
from extproc.vllm.http.forms import FREE_OBJECT, Call, CallDelta, Form, Function, schema_form
from extproc.vllm.http.order import AnswerHead, Due, FinishedAnswer, Order, Usage
from extproc.vllm.http.prompts import render
from extproc.vllm.http.refusals import Refusal
from extproc.vllm.http.scores import Score, refuse_param
from extproc.vllm.http.store import ResponseStore, StoredResponse
from extproc.vllm.http.tokens import Tokenizer

REPEATED = {"temperature", "top_p", "metadata", "user", "previous_response_id", "top_logprobs"}
INCLUDES_SCORES = "message.output_text.logprobs"


class Item(Fields):
    """One item of a request's input: a message, a call that the model made, or what came of it."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None

    def message(self) -> Message:
        """Returns the item as chat has it."""
        if self.type == "function_call":
            function = {"name": self.name, "arguments": self.arguments}
            call = {"id": self.call_id, "type": "function", "function": function}
            return Message(role="assistant", tool_calls=[call])
        if self.type == "function_call_output":
            return Message(role="tool", content=self.output)
        return Message(role=self.role or "assistant", content=self.content)


class TextFormat(Fields):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None

    def describe(self) -> dict[str, Any]:
        if self.type != "json_schema":
            return {"type": self.type}
        head = {"name": self.name, "schema": self.schema_, "type": self.type}
        return head | {"description": self.description, "strict": self.strict}


class TextConfig(Fields):
    format: TextFormat | None = None
    verbosity: str | None = None

    def describe(self) -> dict[str, Any]:
        described = None if self.format is None else self.format.describe()
        return {"format": described, "verbosity": self.verbosity}


class ResponseTool(Fields):
    """A function; tools of other types have no name and are not called."""

    type: str = "function"
    name: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None

    def describe(self) -> dict[str, Any]:
        head = {"name": self.name, "parameters": self.parameters, "strict": self.strict, "type": self.type}
        rest = {"allowed_callers": None, "async": None, "defer_loading": None}
        return head | rest | {"description": self.description, "output_schema": None}


class ResponseTools(Fields):
    tools: list[ResponseTool]


class ResponseRequest(Fields):
    input: str | list[Item]
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
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    structured_outputs: StructuredOutputs | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    previous_response_id: str | None = None
    store: bool | None = True
    background: bool | None = False

    def messages(self, before: Sequence[Message]) -> list[Message]:
        """Returns the conversation: instructions, what went before, what is new."""
        # Instructions do not carry over from one response to the next.
        told = [Message(role="system", content=self.instructions)] if self.instructions else []
        told += [message for message in before if message.role != "system"]
        if isinstance(self.input, str):
            return [*told, Message(role="user", content=self.input)]
        return [*told, *(item.message() for item in self.input if item.type != "reasoning")]

    def form(self) -> Form | None:
        """Returns what the answer must be; raises `Refusal`."""
        tools = ResponseTools.read({"tools": self.tools or []}).tools
        functions = [
            Function(tool.name, FREE_OBJECT if tool.parameters is None else tool.parameters)
            for tool in tools
            if tool.type == "function"
        ]
        if isinstance(self.tool_choice, dict):
            unknown = refuse_param("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")
            return name_function(functions, self.tool_choice.get("name"), unknown)
        if self.tool_choice == "required":
            if not functions:
                message = "Tool choice 'required' must be specified with 'tools' parameter."
                raise refuse_param(message, "tool_choice")
            return require_call(functions, is_parallel=self.parallel_tool_calls)
        return self._text_form()

    def _text_form(self) -> Form | None:
        asked = self.text.format if self.text is not None else None
        if asked is not None and asked.type != "text":
            return schema_form(FREE_OBJECT if asked.schema_ is None else asked.schema_)
        return None if self.structured_outputs is None else self.structured_outputs.form()

    def repeated(self) -> dict[str, Any]:
        """Returns the fields that a response repeats, as vLLM does."""
        fields = self.model_dump(include=REPEATED, exclude_none=True)
        if self.parallel_tool_calls is not None:
            fields["parallel_tool_calls"] = self.parallel_tool_calls
        if self.text is not None:
            fields["text"] = self.text.describe()
        if self.tools:
            read = ResponseTools.read({"tools": self.tools}).tools
            tools = [
                one.describe() if one.type == "function" else told
                for one, told in zip(read, self.tools, strict=True)
            ]
            fields |= {"tools": tools, "tool_choice": self.tool_choice or "auto"}
        return fields


class Responses:
    """`store` holds what may be gone on with."""

    id_prefix = "resp_"

    def __init__(self, store: ResponseStore | None = None) -> None:
        self.store = ResponseStore() if store is None else store

    def read(self, body: object, tokenizer: Tokenizer) -> Order:
        request = ResponseRequest.read(body)
        if request.background and not request.store:
            raise refuse_param("background can only be used when `store` is true", "background")
        form = request.form()
        before: Sequence[Message] = ()
        if request.previous_response_id is not None:
            before = self.store.find(request.previous_response_id).told
        messages = request.messages(before)
        wants_scores = INCLUDES_SCORES in (request.include or ())
        return Order(
            prompts=[tokenizer.encode(render(messages, request.tools))],
            model=request.model,
            max_tokens=request.max_output_tokens,
            max_tokens_name="max_output_tokens",
            ignore_eos=request.ignore_eos,
            seed=request.seed or 0,
            cache_salt=request.cache_salt or "",
            is_stream=bool(request.stream),
            repeated=request.repeated(),
            form=form,
            scores=(request.top_logprobs or 0) if wants_scores else None,
            told=messages,
            keeps=request.store is not False,
        )

    def keep(self, order: Order, body: Mapping[str, Any]) -> None:
        """Stores a response that is complete, if its client did not say otherwise."""
        if not order.keeps:
            return
        # What a model calls its client sends again, with what came of it.
        told = [
            *order.told,
            *(
                Message(role="assistant", content=item["content"][0]["text"])
                for item in body["output"]
                if item["type"] == "message"
            ),
        ]
        characters = sum(len(message.model_dump_json()) for message in told)
        self.store.add(body["id"], StoredResponse(body, told, characters))

    def describe(self, refusal: Refusal) -> dict[str, Any]:
        return refusal.describe()

    def frames(self, head: AnswerHead, order: Order) -> Frames:
        return ResponseFrames(head, order, self.keep)

    def whole(
        self, head: AnswerHead, order: Order, choices: Sequence[FinishedAnswer], usage: Usage
    ) -> dict[str, Any]:
        body = describe_response(head, order, choices[0], usage)
        self.keep(order, body)
        return body


class ResponseFrames:
    """Typed events with running numbers; the text is needed again at the end.

    `keep` is told of the response when it is complete.
    """

    def __init__(
        self, head: AnswerHead, order: Order, keep: Callable[[Order, Mapping[str, Any]], None]
    ) -> None:
        self._head = head
        self._order = order
        self._keep = keep
        self._item_id = name_item(head)
        self._number = 0
        self._text = b""
        self._is_open = False
        self._calls: list[Call] = []
        self._scores: list[Score] | None = None if order.scores is None else []
        self._reason = "stop"
        self._position = {"content_index": 0, "item_id": self._item_id, "output_index": 0}

    def opening(self) -> bytes:
        response = describe_response(self._head, self._order, None, None)
        return self._event("response.created", {"response": response}) + self._event(
            "response.in_progress", {"response": response}
        )

    def piece(self, _index: int, due: Due) -> bytes:
        if due.deltas:
            return b"".join(map(self._tell, due.deltas))
        if self._calls or not due.text:
            return b""
        opening = b"" if self._is_open else self._open_text()
        self._text += due.text
        if self._scores is not None and due.scores:
            self._scores += due.scores
        scores = b"[]" if not due.scores else orjson.dumps(self._list_scores(due.scores))
        delta = (
            b'event: response.output_text.delta\ndata: {"content_index":0,"delta":"%b","item_id":"%b",'
            b'"logprobs":%b,"output_index":0,"sequence_number":%d,"type":"response.output_text.delta"}\n\n'
            % (due.text, self._item_id.encode(), scores, self._number)
        )
        self._number += 1
        return opening + delta

    def last_piece(self, index: int, due: Due, reason: str) -> bytes:
        self._reason = reason
        return self.piece(index, due)

    def closing(self, usage: Usage) -> bytes:
        text: str = orjson.loads(b'"%b"' % self._text)
        choice = FinishedAnswer(text, self._reason, self._calls, self._scores)
        response = describe_response(self._head, self._order, choice, usage)
        self._keep(self._order, response)
        ends = self._close_call() if self._calls else self._close_text(response["output"][0], text)
        return ends + self._event("response.completed", {"response": response})

    def _open_text(self) -> bytes:
        self._is_open = True
        item = {"id": self._item_id, "content": [], "role": "assistant", "status": "in_progress"}
        part: dict[str, Any] = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return self._event(
            "response.output_item.added",
            {"item": item | {"type": "message", "phase": None}, "output_index": 0},
        ) + self._event("response.content_part.added", self._position | {"part": part})

    def _close_text(self, item: dict[str, Any], text: str) -> bytes:
        scores = [] if self._scores is None else self._list_scores(self._scores)
        opening = b"" if self._is_open else self._open_text()
        return (
            opening
            + self._event("response.output_text.done", self._position | {"logprobs": scores, "text": text})
            + self._event("response.content_part.done", self._position | {"part": item["content"][0]})
            + self._event("response.output_item.done", {"item": item, "output_index": 0})
        )

    def _tell(self, delta: CallDelta) -> bytes:
        if delta.name:
            ending = self._close_call() if self._calls else b""
            self._calls.append(Call(delta.id, delta.name, ""))
            item = describe_call_item(self._calls[-1], is_whole=False)
            place = {"item": item, "output_index": delta.call}
            return ending + self._event("response.output_item.added", place)
        call = self._calls[-1]
        self._calls[-1] = replace(call, arguments=call.arguments + delta.arguments)
        position = {"delta": delta.arguments, "item_id": name_call_item(call), "output_index": delta.call}
        return self._event("response.function_call_arguments.delta", position)

    def _close_call(self) -> bytes:
        call = self._calls[-1]
        place: dict[str, Any] = {"output_index": len(self._calls) - 1}
        item = {"item": describe_call_item(call, is_whole=True)}
        done = {"arguments": call.arguments, "item_id": name_call_item(call), "name": call.name}
        return self._event("response.function_call_arguments.done", place | done) + self._event(
            "response.output_item.done", place | item
        )

    def _list_scores(self, scores: Sequence[Score]) -> list[dict[str, Any]]:
        return list_scores(scores, self._order.scores or 0)

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
        "output": [] if choice is None else _list_items(head, choice, order.scores or 0),
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


def _list_items(head: AnswerHead, choice: FinishedAnswer, count: int) -> list[dict[str, Any]]:
    if choice.calls:
        return [describe_call_item(call, is_whole=True) for call in choice.calls]
    part: dict[str, Any] = {
        "annotations": [],
        "text": choice.text,
        "type": "output_text",
        "logprobs": None if choice.scores is None else list_scores(choice.scores, count),
    }
    message = {
        "id": name_item(head),
        "content": [part],
        "role": "assistant",
        "status": "completed",
        "type": "message",
        "phase": None,
    }
    return [message]


def list_scores(scores: Sequence[Score], count: int) -> list[dict[str, Any]]:
    """Returns the `logprobs` of an output text, with the members of each in this API's order."""

    def put(one: dict[str, Any]) -> dict[str, Any]:
        return {"token": one["token"], "bytes": one["bytes"], "logprob": one["logprob"]}

    described = [one.describe(count) for one in scores]
    return [put(one) | {"top_logprobs": [put(other) for other in one["top_logprobs"]]} for one in described]


def name_call_item(call: Call) -> str:
    return call.id.replace("chatcmpl-tool-", "fc_", 1)


def describe_call_item(call: Call, *, is_whole: bool) -> dict[str, Any]:
    return {
        "arguments": call.arguments,
        "call_id": call.id,
        "name": call.name,
        "type": "function_call",
        "id": name_call_item(call),
        "async": None,
        "caller": None,
        "namespace": None,
        "status": "completed" if is_whole else "in_progress",
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
