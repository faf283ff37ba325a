"""JSON as vLLM reads it, where the quick reader refuses."""

import json
from math import isfinite

import orjson


def load_string(written: bytes) -> str | None:
    try:
        value = orjson.loads(written)
    except ValueError:
        value = load_leniently(written)
    return value if isinstance(value, str) else None


def load_leniently(written: bytes) -> object:
    """As vLLM reads, which is as Python's `json` does; `None` for what cannot be read.

    Takes numbers of any size, NaN and the infinities (as `None`), lone surrogates (as `?`).
    """
    try:
        value = json.loads(written, parse_float=_finite, parse_constant=_finite)
        return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    except (ValueError, RecursionError):
        return None


def _finite(written: str) -> float | None:
    number = float(written)
    return number if isfinite(number) else None
