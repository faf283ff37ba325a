"""JSON bodies of requests and answers; broken ones are refused in vLLM 0.32.0's words."""

import json
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web
from pydantic_core import ErrorDetails

from extproc.simulator.http.refusals import INVALID, UnreadableBody, VllmRefusal, refuse_shape


async def read_json(request: web.Request) -> Any:
    """Returns the JSON value of a request's body; raises `VllmRefusal`."""
    return decode_body(await request.read(), request.headers.get("content-type", ""))


def decode_body(body: bytes, content_type: str) -> Any:
    """Returns the JSON value of a body, which is never null; raises `VllmRefusal`."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise VllmRefusal(message, kind=INVALID)
    value = _decode(body) if body else None
    if value is None:
        raise refuse_shape([ErrorDetails(type="missing", loc=(), msg="Field required", input=None)])
    return value


def send_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    body = orjson.dumps(value)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _decode(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except ValueError:
        # orjson is stricter than vLLM's parser, and words its complaints differently.
        return _decode_slowly(body)


def _decode_slowly(body: bytes) -> Any:
    try:
        return json.loads(body)
    except json.JSONDecodeError as fault:
        invalid = ErrorDetails(
            type="json_invalid", loc=(fault.pos,), msg="JSON decode error", input={}, ctx={"error": fault.msg}
        )
        raise refuse_shape([invalid]) from None
    except (ValueError, RecursionError):
        raise UnreadableBody("There was an error parsing the body", kind=INVALID) from None
