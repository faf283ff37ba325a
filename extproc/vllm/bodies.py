"""JSON bodies of requests and answers; broken ones are refused in vLLM 0.32.0's words."""

import json
from typing import Any

import orjson
from aiohttp import web
from pydantic_core import ErrorDetails
from xxhash import xxh3_64_hexdigest

from extproc.vllm.refusals import INVALID, Refusal, refuse_shape

# Where a request keeps the hash of its body, so that a test can prove that the body arrived as sent.
BODY_HASH = "body_xxh3"


async def read_json(request: web.Request) -> Any:
    """Returns the JSON value of a request's body and notes its hash; raises `Refusal`."""
    body = await request.read()
    request[BODY_HASH] = xxh3_64_hexdigest(body)
    return decode_body(body, request.headers.get("content-type", ""))


def decode_body(body: bytes, content_type: str) -> Any:
    """Returns the JSON value of a body; raises `Refusal`."""
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


def send_json(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def _decode_slowly(body: bytes) -> Any:
    try:
        return json.loads(body)
    except json.JSONDecodeError as fault:
        invalid = ErrorDetails(
            type="json_invalid", loc=(fault.pos,), msg="JSON decode error", input={}, ctx={"error": fault.msg}
        )
        raise refuse_shape([invalid]) from None
    except (ValueError, RecursionError):
        raise Refusal("There was an error parsing the body", kind=INVALID) from None
