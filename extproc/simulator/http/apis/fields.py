"""The fields of requests that the simulator reads, and the one prompt that messages make.

Other fields are accepted and ignored. Names and limits are vLLM 0.32's; pydantic's errors are
what vLLM itself sends to clients.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Self

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from extproc.router.routing.prompt.media import medium_in
from extproc.simulator.http.api_request import ApiRequest
from extproc.simulator.http.refusals import VllmRefusal, refuse_shape, refuse_value

MOST_ANSWERS = 16_384
END = "<|im_end|>\n"
Token = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Fields(BaseModel):
    model_config = ConfigDict(extra="ignore")

    @classmethod
    def read(cls, body: object) -> Self:
        """Returns a decoded body's fields; raises `VllmRefusal` with every fault of its shape."""
        try:
            return cls.model_validate(body, from_attributes=True)
        except ValidationError as fault:
            raise refuse_shape(fault.errors(include_url=False)) from None


class StreamOptions(Fields):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class MessagePart(Fields):
    """One part of a message: text, a medium, or anything else, which is read as its own JSON."""

    model_config = ConfigDict(extra="allow")
    type: str = "text"
    text: str | None = None

    @property
    def content(self) -> str:
        return (self.medium or self.model_dump_json()) if self.text is None else self.text

    @property
    def medium(self) -> str:
        """A medium's digest in hexadecimal, and as many words as its tokens need; empty for any other part."""
        medium = medium_in({"type": self.type, **(self.model_extra or {})})
        return f"{medium[-16:]}{' pic' * (medium.tokens - 4)}" if medium else ""


class ChatMessage(Fields):
    role: str
    content: str | list[MessagePart] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class SamplingFields(Fields):
    """What chat and text completions have in common."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int = 1
    seed: int | None = None
    temperature: float | None = None
    cache_salt: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    echo: bool | None = False

    def build(self, prompts: Sequence[Sequence[int]], **more: Any) -> ApiRequest:
        """Returns the request; `more` are the fields that only one API has, or names differently."""
        options = self.stream_options or StreamOptions()
        common = {
            "prompts": prompts,
            "model": self.model,
            "max_tokens": self.max_tokens,
            "min_tokens": self.min_tokens,
            "ignore_eos": self.ignore_eos,
            "n": self.n,
            "seed": self.seed or 0,
            "cache_salt": self.cache_salt or "",
            "is_stream": bool(self.stream),
            "wants_usage": options.include_usage,
            "wants_continuous_usage": options.include_usage and options.continuous_usage_stats,
        }
        return ApiRequest(**common | more)

    def check(self) -> None:
        """Raises `VllmRefusal` for values that vLLM refuses."""
        if self.stream_options is not None and not self.stream:
            raise VllmRefusal(
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
                param="stream_options",
            )
        if self.n < 1:
            raise VllmRefusal(f"n must be at least 1, got {self.n}.")
        if self.n > MOST_ANSWERS:
            raise VllmRefusal(
                f"n must be at most {MOST_ANSWERS}, got {self.n}. "
                "To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
            )
        if self.min_tokens < 0:
            raise VllmRefusal(
                f"min_tokens must be greater than or equal to 0, got {self.min_tokens}."
            )
        if self.cache_salt == "":
            message = "Parameter 'cache_salt' must be a non-empty string if provided. (parameter=cache_salt)"
            raise VllmRefusal(message, param="cache_salt")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            message = f"temperature must be in [0, 2], got {self.temperature}."
            raise refuse_value(message, "temperature", self.temperature)


def render(messages: Sequence[ChatMessage], tools: Sequence[Any] | None = None) -> list[str]:
    """Returns the pieces of the prompt for the next answer; raises `VllmRefusal` without messages.

    The template is ChatML: tools and system text first, then turn by turn. The pieces (head, text,
    end of each message) are tokenised one by one.
    """
    if not messages:
        fault = "Cannot apply chat template to an empty conversation. Provide at least one message."
        raise VllmRefusal(fault)
    pieces: list[str] = []
    if tools:
        told = [_order_tool(tool) for tool in tools]
        pieces += [_head("tools"), msgspec.json.encode(told).decode(), END]
    for message in messages:
        calls = [write_call(call.get("function")) for call in message.tool_calls or ()]
        pieces += [_head(message.role), read_content(message.content), *calls, END]
    return [*pieces, _head("assistant")]


def _order_tool(tool: Any) -> Any:
    """The tool with its members in vLLM's order; those that it does not know stand behind."""
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    known = dict.fromkeys(("name", "description", "parameters"))
    return {"type": "function", "function": known | function} | {
        name: value for name, value in tool.items() if name != "function"
    }


def write_call(function: Any) -> str:
    """A call as a template writes it; its arguments come as JSON and are read before."""
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(arguments, str) and arguments:
        with suppress(ValueError):
            arguments = json.loads(arguments)
    call = {"name": (function or {}).get("name"), "arguments": arguments or {}}
    return msgspec.json.encode(call).decode()


def _head(role: str) -> str:
    return f"<|im_start|>{role}\n"


def read_content(content: str | Sequence[MessagePart] | None) -> str:
    """Returns a message's text; parts are joined by newlines, as vLLM does for text-only templates."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.content for part in content)
