"""A lazy reader of JSON objects: members stay as they are written until asked for.

Only `open_object` raises. A member that cannot be read is as good as absent: it must not cost a request
its route, since the endpoint is the one to judge it.
"""

import json
import re
from collections.abc import Iterator
from itertools import islice
from math import isfinite
from typing import Final

import jiter
import msgspec
import orjson
from msgspec import Raw

from extproc.errors import PromptError

# Beyond this a body that only the slower readers understand is not read: they hold the serving loop for
# about 20 ms per MiB.
LENIENT_BYTES: Final = 2 * 1024 * 1024

# A comma stands between any two values of JSON. More of them than this is no prompt that a model could
# take, and the values of `[[],[],[],...` would need a gigabyte.
MAX_COMMAS: Final = 2_000_000

_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_DIGITS: Final = re.compile(rb"-?\d")
_NUMBERS: Final = re.compile(rb"\s*\[\s*(?:\[\s*)?(?=[-\d])")
_NUMBER: Final = re.compile(rb"\s*([-+.\deE]+)\s*,?")

Object = dict[str, Raw]


def open_object(body: bytes | memoryview, *, is_partial: bool = False) -> Object:
    """Opens the one object that `body` is.

    Takes what vLLM takes, which reads with Python's `json`: a byte order mark, UTF-16 and UTF-32, NaN,
    lone surrogates (read as `?`), duplicate keys (the last one counts). `is_partial` says that the end
    is missing: what came is read, up to `LENIENT_BYTES` of it.

    Raises `PromptError` for anything else, and for nesting beyond Python's recursion limit.
    """
    try:
        if is_partial:
            return _open_partial(bytes(body[:LENIENT_BYTES]))
        return _open_whole(body)
    except RecursionError:
        raise PromptError("the body is nested too deeply") from None
    except ValueError:
        raise PromptError("the body is not a JSON object") from None


def value_of(raw: Raw | None) -> object:
    """The member's value; `None` if there is none, or none that can be read."""
    if raw is None:
        return None
    try:
        return orjson.loads(memoryview(raw))
    except ValueError:
        return _lenient_value(bytes(memoryview(raw)[: LENIENT_BYTES + 1]))


def scalar(raw: Raw | None) -> str | None:
    """A string, or a number as it is written."""
    if raw is None:
        return None
    if _DIGITS.match(raw):
        return bytes(raw).decode()
    value = value_of(raw)
    return value if isinstance(value, str) else None


def is_numbers(raw: Raw) -> bool:
    """Whether the member is an array of numbers, or of arrays of numbers, by its first element."""
    return _NUMBERS.match(raw) is not None


def numbers(raw: Raw, chars: int) -> str:
    """The first `chars` characters of the member's first array of numbers, joined by commas. O(chars)."""
    return ",".join(islice(_each_number(raw), chars))[:chars]


def compact(value: object) -> str:
    """The value as JSON without white space; empty if it is nested too deeply."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return ""


def _open_whole(body: bytes | memoryview) -> Object:
    if len(body) > 2 * MAX_COMMAS and bytes(body).count(b",") > MAX_COMMAS:
        raise PromptError("the body has too many values")
    try:
        return _OBJECT.decode(body)
    except ValueError:
        if len(body) > LENIENT_BYTES:
            raise
        return _open_lenient(bytes(body))


def _open_lenient(body: bytes) -> Object:
    value = json.loads(body, parse_float=_finite, parse_constant=_finite)
    return _OBJECT.decode(json.dumps(value, ensure_ascii=False).encode(errors="replace"))


def _open_partial(body: bytes) -> Object:
    return _OBJECT.decode(msgspec.json.encode(jiter.from_json(body, partial_mode="trailing-strings")))


def _lenient_value(written: bytes) -> object:
    """Takes numbers of any size, which orjson refuses. A value cut off for its length is no JSON."""
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return None


def _finite(written: str) -> float | None:
    """`None` stands for what JSON cannot spell: NaN and the infinities."""
    number = float(written)
    return number if isfinite(number) else None


def _each_number(raw: Raw) -> Iterator[str]:
    opening = _NUMBERS.match(raw)
    position = opening.end() if opening else 0
    while number := _NUMBER.match(raw, position):
        yield number[1].decode()
        position = number.end()
