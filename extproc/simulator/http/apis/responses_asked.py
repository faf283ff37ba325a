"""What a request to `/v1/responses` asks for, field by field as vLLM 0.32.0 reads it."""

from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import Field

from extproc.simulator.http.apis.fields import Fields, Message, Part
from extproc.simulator.http.apis.forms_asked import StructuredOutputs, name_function, require_call
from extproc.simulator.http.forms import FREE_OBJECT, Form, Function, schema_form
from extproc.simulator.http.scores import refuse_param

_REPEATED: Final = {"temperature", "top_p", "metadata", "user", "previous_response_id", "top_logprobs"}


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
        fields = self.model_dump(include=_REPEATED, exclude_none=True)
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
