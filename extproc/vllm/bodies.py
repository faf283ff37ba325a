"""JSON bodies of requests and answers; broken ones are refused in vLLM 0.32.0's words."""

import json
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web
from pydantic_core import ErrorDetails

from extproc.vllm.refusals import INVALID, Refusal, UnreadableBody, refuse_shape


async def read_json(request: web.Request) -> Any:
    """Returns the JSON value of a request's body; raises `Refusal`."""
    body = await request.read()
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise Refusal(message, kind=INVALID)
    if not body:
        raise refuse_shape([ErrorDetails(type="missing", loc=(), msg="Field required", input=None)])
    try:
        return orjson.loads(body)
    except ValueError:
        # orjson is stricter than vLLM's parser, and words its complaints differently.
        return _decode_slowly(body)


def send_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    body = orjson.dumps(value)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


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
