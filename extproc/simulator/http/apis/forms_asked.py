"""From a request's fields to the form of its answer; what vLLM 0.32.0 refuses of them, in its words."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from extproc.simulator.http.apis.fields import Fields
from extproc.simulator.http.forms import (
    FREE_OBJECT,
    CallForm,
    Form,
    Function,
    choice_form,
    ebnf_form,
    regex_form,
    schema_form,
)
from extproc.simulator.http.refusals import Refusal
from extproc.simulator.http.scores import refuse_param

EXAMPLE = 'Correct usage: `{"type": "function", "function": {"name": "my_function"}}`'
NO_CONSTRAINT = (
    "You must use one kind of structured outputs constraint but none are specified: {'json': None, "
    "'regex': None, 'choice': None, 'grammar': None, 'json_object': None, 'disable_any_whitespace': False, "
    "'disable_additional_properties': False, 'whitespace_pattern': None, 'structural_tag': None, "
    "'_backend': None, '_backend_was_auto': False}"
)


class JsonSchema(Fields):
    name: str
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")


class ResponseFormat(Fields):
    """What chat and text completions call the form of an answer. Responses say the same with fewer levels."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Fields):
    """vLLM's own constraints."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None

    def form(self) -> Form:
        kinds = [self.json_, self.regex, self.choice]
        if sum(kind is not None for kind in kinds) > 1:
            raise Refusal(
                "You can only use one kind of constraints for structured outputs "
                "('json', 'regex' or 'choice')."
            )
        if self.json_ is not None:
            return schema_form(self.json_)
        if self.regex is not None:
            return regex_form(self.regex)
        if self.choice is not None:
            return choice_form(self.choice)
        if self.json_object:
            return schema_form(FREE_OBJECT)
        if self.grammar is not None:
            return ebnf_form(self.grammar)
        if self.structural_tag is not None:
            raise Refusal("Grammar error: the simulator knows no structural tags")
        raise Refusal(NO_CONSTRAINT)


class FunctionTool(Fields):
    name: str
    parameters: dict[str, Any] | None = None


class ChatTool(Fields):
    type: str = "function"
    function: FunctionTool


class ChatTools(Fields):
    tools: list[ChatTool]


def read_format(response_format: ResponseFormat | None, outputs: StructuredOutputs | None) -> Form | None:
    """Returns the form that a completion asks for; raises `Refusal`."""
    if response_format is not None and response_format.type == "json_schema":
        if response_format.json_schema is None:
            raise refuse_param(
                "When response_format type is 'json_schema', the 'json_schema' field must be provided.",
                "response_format",
            )
        schema = response_format.json_schema.schema_
        return schema_form(FREE_OBJECT if schema is None else schema)
    if response_format is not None and response_format.type == "json_object":
        return schema_form(FREE_OBJECT)
    return None if outputs is None else outputs.form()


def read_chat_tools(
    tools: Sequence[Mapping[str, Any]] | None, choice: object, *, is_parallel: bool | None
) -> Form | None:
    """Returns the form of the calls that a chat completion demands; raises `Refusal`."""
    if tools is not None and not tools:
        raise refuse_param(
            "`tools` must not be an empty array. "
            "Either provide at least one tool or omit the field entirely.",
            "tools",
        )
    functions = (
        [_read_function(tool.function) for tool in ChatTools.read({"tools": tools}).tools] if tools else []
    )
    if choice is None or choice == "none":
        return None
    if not functions:
        raise refuse_param("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, dict):
        return name_function(functions, _read_named(choice), _refuse_unknown())
    if choice not in {"auto", "required"}:
        raise refuse_param(
            f"Invalid value for `tool_choice`: {choice}! "
            'Only named tools, "none", "auto" or "required" are supported.',
            "tool_choice",
        )
    return require_call(functions, is_parallel=is_parallel) if choice == "required" else None


def require_call(functions: Sequence[Function], *, is_parallel: bool | None) -> Form:
    """Returns the form of a call of any function: of two calls, if a client says that it wants several."""
    return CallForm(functions, count=2 if is_parallel else 1)


def name_function(functions: Sequence[Function], name: object, unknown: Refusal) -> Form:
    """Returns the form of a call of one function, or raises `unknown`."""
    found = [function for function in functions if function.name == name]
    if not found:
        raise unknown
    return CallForm(found[:1], ending="stop")


def _read_function(tool: FunctionTool) -> Function:
    return Function(tool.name, FREE_OBJECT if tool.parameters is None else tool.parameters)


def _read_named(choice: Mapping[str, Any]) -> str:
    function = choice.get("function")
    if not isinstance(function, dict):
        message = f"Invalid value for `function`: `{function}` in `tool_choice`! {EXAMPLE}"
        raise refuse_param(message, "tool_choice.function")
    if "name" not in function:
        message = f"Expected field `name` in `function` in `tool_choice`! {EXAMPLE}"
        raise refuse_param(message, "tool_choice.function.name")
    name = function["name"]
    if not isinstance(name, str) or not name:
        message = f"Invalid `name` in `function`: `{name}` in `tool_choice`! {EXAMPLE}"
        raise refuse_param(message, "tool_choice.function.name")
    return name


def _refuse_unknown() -> Refusal:
    return refuse_param(
        "The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice"
    )
