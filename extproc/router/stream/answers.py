"""What we answer to a client ourselves, in the words of its API: refusals, and the list of models."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from msgspec import json

from extproc.errors import RequestError
from extproc.router.routing.endpoint import ModelCard
from extproc.router.stream.events import Answer
from extproc.router.stream.names import DROPPED, RETRY_AFTER

# The types of errors in Anthropic's API reference, by status; the shipped Envoys say the same.
_ANTHROPIC: Final[Mapping[int, str]] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
    }
)


_SAID: Final = ("root", "parent", "max_model_len")


def refuse(error: RequestError, path: str = "") -> Answer:
    """Says `error` as `{"error": {"message", "type", "param", "code"}}`, OpenAI's way.

    Under `/v1/messages` Anthropic's: `{"type": "error", "error": {"type", "message"}}`.
    """
    # A client's model name may hold what UTF-8 cannot: a lone surrogate.
    message = error.message.encode(errors="replace").decode()
    values = {RETRY_AFTER: error.retry_after_s, DROPPED: error.dropped}
    headers = {name: str(value) for name, value in values.items() if value is not None}
    if (
        "/v1/messages" in path.partition("?")[0]
    ):  # or behind a prefix: `/llama/v1/messages?beta=true`
        other = "invalid_request_error" if error.status < 500 else "api_error"
        body = {
            "type": "error",
            "error": {"type": _ANTHROPIC.get(error.status, other), "message": message},
        }
    else:
        body = {
            "error": {
                "message": message,
                "type": error.kind,
                "param": error.param,
                "code": error.code,
            }
        }
    return Answer(error.status, json.encode(body), error.code or "bad_request", headers, error.pool)


def list_models(cards: Sequence[ModelCard]) -> Answer:
    """The list as vLLM writes it; what no endpoint says is left out."""
    data = [
        {"id": card.id, "object": "model", "created": card.created, "owned_by": "extproc"}
        | {name: value for name in _SAID if (value := getattr(card, name)) is not None}
        for card in cards
    ]
    return Answer(200, json.encode({"object": "list", "data": data}), "models")
