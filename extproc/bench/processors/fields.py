"""Reading foreign JSON without trusting it: a missing or mistyped field is simply not there."""

from collections.abc import Mapping
from types import MappingProxyType

_NOTHING: Mapping[str, object] = MappingProxyType({})


def get_object(parent: object, field: str) -> Mapping[str, object]:
    value = parent.get(field) if isinstance(parent, Mapping) else None
    return value if isinstance(value, Mapping) else _NOTHING


def get_list(parent: object, field: str) -> list[object]:
    value = parent.get(field) if isinstance(parent, Mapping) else None
    return value if isinstance(value, list) else []


def get_text(parent: object, field: str) -> str:
    value = parent.get(field) if isinstance(parent, Mapping) else None
    return value if isinstance(value, str) else ""


def get_count(parent: object, field: str) -> int | None:
    value = parent.get(field) if isinstance(parent, Mapping) else None
    return value if isinstance(value, int) else None


def get_error(payload: object) -> str | None:
    """Returns the message of `{"error": {"message"}}`, `{"error": "…"}` or vLLM's `{"object": "error"}`."""
    if not isinstance(payload, Mapping):
        return None
    if payload.get("object") == "error" or isinstance(payload.get("error"), str):
        return get_text(payload, "message") or get_text(payload, "error") or "error"
    if payload.get("error"):
        return get_text(get_object(payload, "error"), "message") or "error"
    return None
