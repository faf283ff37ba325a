"""What a vLLM server refuses, in vLLM's words (measured on 0.32.0), and JSON bodies, broken ones too."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from aiohttp import web
from pydantic_core import ErrorDetails

from extproc.errors import ExtprocError

# The type of errors found before a handler runs: FastAPI's word, not vLLM's.
INVALID = "Bad Request"
# vLLM bounds what it echoes of a bad request.
REPORTED_ERRORS = 10
ECHOED_CHARACTERS = 200


class VllmRefusal(ExtprocError):
    """The simulated server answers a request with an error object instead of tokens."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param

    def describe(self) -> dict[str, Any]:
        """Returns the body: OpenAI's error object with vLLM's type names and the status as code."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            }
        }


class UnreadableBody(VllmRefusal):
    """The body is not JSON in a way that vLLM leaves to its web framework."""

    def describe(self) -> dict[str, Any]:
        return {"detail": self.message}


class UnknownName(VllmRefusal):
    """The request names a model or an adapter that this endpoint does not serve."""

    def __init__(self, name: str, served: Sequence[str]) -> None:
        message = f"The model `{name}` does not exist. Valid aliases: {', '.join(served)}."
        super().__init__(message, status=404, kind="NotFoundError", param="model")


def refuse_value(message: str, param: str, value: object) -> VllmRefusal:
    """Builds vLLM's complaint about one parameter's value."""
    return VllmRefusal(f"{message} (parameter={param}, value={value})", param=param)


def refuse_length(limit: int, tokens: int, *, is_text: bool) -> VllmRefusal:
    """Builds the answer to a prompt that is longer than the model's context, `limit`.

    vLLM stops reading a text one token after the limit, and says so.
    """
    counted = min(tokens, limit + 1) if is_text else tokens
    qualifier = "at least " if counted == limit + 1 else ""
    return refuse_value(
        f"This model's maximum context length is {limit} tokens. However, your prompt contains "
        f"{qualifier}{counted} input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt.",
        "input_tokens",
        counted,
    )


def refuse_shape(errors: Sequence[ErrorDetails]) -> VllmRefusal:
    """Builds the answer to a body that has not the API's shape, from pydantic's errors."""
    count = len(errors)
    lines = [f"{count} validation {'error' if count == 1 else 'errors'}:"]
    lines += [f"  {_describe(error)}" for error in errors[:REPORTED_ERRORS]]
    if count > REPORTED_ERRORS:
        lines.append(f"  ...and {count - REPORTED_ERRORS} more errors")
    return VllmRefusal("\n".join(lines), kind=INVALID, param=_locate(errors[0]))


def _describe(error: ErrorDetails) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "type": error["type"],
        "loc": _locate(error),
        "msg": error["msg"],
        "input": _summarize(error["input"]),
    }
    return fields | ({"ctx": error["ctx"]} if "ctx" in error else {})


def _locate(error: ErrorDetails) -> str:
    # A union's branches (`list[int]`, `str`) are pydantic's business and no field of the request.
    fields = [
        str(part) for part in error["loc"] if "[" not in str(part) and part not in {"str", "int"}
    ]
    return ".".join(["body", *fields])


def _summarize(value: object) -> str:
    if isinstance(value, (dict, list)):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= ECHOED_CHARACTERS else f"{text[:ECHOED_CHARACTERS]}...[truncated]"


def _is_set(value: object) -> bool:
    return value is not None and value is not False and value != []


def _is_form(value: object) -> bool:
    return isinstance(value, dict) and value.get("type", "json_schema") != "text"


def _has_form(value: object) -> bool:
    return isinstance(value, dict) and _is_form(value.get("format"))


def _is_demand(choice: object) -> bool:
    kind = choice.get("type") if isinstance(choice, dict) else choice
    return kind is not None and kind not in ("auto", "none")


_NO_SCORES: Final = "Requested {kind} logprobs of {value}, which is greater than max allowed: 0"
_NO_FORMS: Final = "Grammar error: the simulator writes plain text only"
_NO_STORE: Final = (
    "This vLLM engine does not support `store=True` and therefore does not support the background mode. To "
    "enable these features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching "
    "the vLLM server."
)
# What the simulator does not do: the field, when it is in use, and the answer.
UNSUPPORTED: Final[Mapping[str, tuple[Callable[[object], bool], str]]] = {
    "logprobs": (_is_set, _NO_SCORES.replace("{kind}", "sample")),
    "top_logprobs": (bool, _NO_SCORES.replace("{kind}", "sample")),
    "prompt_logprobs": (_is_set, _NO_SCORES.replace("{kind}", "prompt")),
    "include": (
        lambda value: "message.output_text.logprobs" in str(value),
        "logprobs are not supported",
    ),
    "response_format": (_is_form, _NO_FORMS),
    "structured_outputs": (bool, _NO_FORMS),
    "text": (_has_form, _NO_FORMS),
    "output_config": (_has_form, _NO_FORMS),
    "tool_choice": (
        _is_demand,
        '`tool_choice` must be "auto" or "none": the simulator answers with text',
    ),
    "background": (bool, _NO_STORE),
}


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """Raises `VllmRefusal` for a request that uses a field of `UNSUPPORTED`."""
    for name, (is_used, message) in UNSUPPORTED.items():
        value = body.get(name)
        if is_used(value):
            raise refuse_value(message.replace("{value}", str(value)), name, value)
    if body.get("previous_response_id") is not None:
        raise refuse_response_id(body["previous_response_id"])


def refuse_response_id(name: str) -> VllmRefusal:
    """Builds the answer of a server that stores no responses."""
    message = f"Response with id '{name}' not found."
    return VllmRefusal(message, status=404, kind="invalid_request_error", param="response_id")


async def read_json(request: web.Request) -> Any:
    """Returns the JSON value of a request's body; raises `VllmRefusal`."""
    return decode_body(await request.read(), request.headers.get("content-type", ""))


def decode_body(body: bytes, content_type: str) -> Any:
    """Returns the JSON value of a body, which is never null; raises `VllmRefusal`."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = (
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        )
        raise VllmRefusal(message, kind=INVALID)
    value = _decode(body) if body else None
    if value is None:
        raise refuse_shape([ErrorDetails(type="missing", loc=(), msg="Field required", input=None)])
    return value


def send_json(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    body = msgspec.json.encode(value)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError):
        # msgspec is stricter than vLLM's parser, and words its complaints differently.
        return _decode_slowly(body)


def _decode_slowly(body: bytes) -> Any:
    try:
        return json.loads(body)
    except json.JSONDecodeError as fault:
        invalid = ErrorDetails(
            type="json_invalid",
            loc=(fault.pos,),
            msg="JSON decode error",
            input={},
            ctx={"error": fault.msg},
        )
        raise refuse_shape([invalid]) from None
    except (ValueError, RecursionError):
        raise UnreadableBody("There was an error parsing the body", kind=INVALID) from None
