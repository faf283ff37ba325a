"""A lazy reader of JSON: objects and arrays are opened level by level, strings read as far as needed.

Only `open_object` raises. What is not of the asked kind is empty: a field of an unexpected type must not
cost a request its route, since the endpoint is the one to judge it.
"""

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

import jiter
import msgspec
from msgspec import Raw

from extproc.errors import PromptError

# Beyond this a body that only the slower reader understands is not read: that reader builds every
# value, up to 25 bytes of memory per byte, and holds the serving loop for 20 ms per MiB.
LENIENT_BYTES: Final = 2 * 1024 * 1024

# A separator stands between any two values of JSON. More of them than this is no prompt that a model
# could take, and the values of `[0,0,0,...` would need a gigabyte.
MAX_SEPARATORS: Final = 1_000_000

_ANY: Final = msgspec.json.Decoder()
_STRING: Final = msgspec.json.Decoder(str)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_ARRAY: Final = msgspec.json.Decoder(list[Raw])
_OBJECTS: Final = msgspec.json.Decoder(list[dict[str, Raw]])

# A string without its closing quote, as far as it goes without splitting an escape or a surrogate pair.
_STRING_HEAD: Final = re.compile(
    rb'"(?:[^"\\]++|\\u[dD][89abAB][^"\\]{2}\\u[^"\\]{4}|\\u(?![dD][89abAB])[^"\\]{4}|\\[^u])*+'
)
# The longest spelling of one character: a surrogate pair, as in \ud83d\ude00.
_CHARACTER_BYTES: Final = 12

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
            return _OBJECT.decode(_rewrite_partial(body))
        return _open_strict(body)
    except RecursionError:
        raise PromptError("the body is nested too deeply") from None
    except ValueError:
        raise PromptError("the body is not a JSON object") from None


def members(raw: Raw) -> Object:
    """The members of an object."""
    try:
        return _OBJECT.decode(raw)
    except (ValueError, RecursionError):
        return {}


def elements(raw: Raw) -> list[Raw | Object]:
    """The elements of an array; objects are opened."""
    try:
        return list(_OBJECTS.decode(raw))
    except (ValueError, RecursionError):
        pass
    try:
        return [members(element) or element for element in _ARRAY.decode(raw)]
    except (ValueError, RecursionError):
        return []


def kind(raw: Raw) -> str:
    """The first character of a value, which tells its kind; empty for no value."""
    return bytes(memoryview(raw)[:1]).decode()


def text(raw: Raw, chars: int | None = None) -> str:
    """The first `chars` characters of a string, all of them with `None`. O(chars)."""
    view = memoryview(raw)
    if chars is None or len(view) <= _CHARACTER_BYTES * chars + 2:
        return _string(view)[:chars]
    head = _STRING_HEAD.match(view, 0, _CHARACTER_BYTES * chars + 1)
    # A code point that the limit cut in two is dropped: it comes after the ones asked for.
    return _string(head[0].decode(errors="ignore") + '"')[:chars] if head else ""


def scalar(raw: Raw) -> str:
    """A string, or a number as it is written."""
    if kind(raw) == '"':
        return text(raw)
    return bytes(raw).decode() if kind(raw) in set("-0123456789") else ""


def is_numbers(raw: Raw) -> bool:
    """Whether `raw` is an array of numbers, or of arrays of numbers, by its first element."""
    return _NUMBERS.match(raw) is not None


def numbers(raw: Raw, chars: int | None = None) -> str:
    """The first `chars` characters of the first array of numbers in `raw`, joined by commas. O(chars)."""
    return ",".join(islice(_each_number(raw), chars))[:chars]


def compact(raw: Raw) -> str:
    """The value as it is written, without white space."""
    try:
        return msgspec.json.format(bytes(raw), indent=-1).decode(errors="replace")
    except (ValueError, RecursionError):
        return ""


def _open_strict(body: bytes | memoryview) -> Object:
    if len(body) > 2 * MAX_SEPARATORS and bytes(body).count(b",") > MAX_SEPARATORS:
        raise PromptError("the body has too many values")
    try:
        return _OBJECT.decode(body)
    except ValueError:
        if len(body) > LENIENT_BYTES:
            raise
        return _OBJECT.decode(_rewrite(json.loads(bytes(body), parse_float=_null, parse_constant=_null)))


def _rewrite_partial(body: bytes | memoryview) -> bytes:
    return _rewrite(jiter.from_json(bytes(body[:LENIENT_BYTES]), partial_mode="trailing-strings"))


def _rewrite(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def _null(_: str) -> None:
    """Stands for a number that JSON cannot spell; no prompt is made of those."""


def _string(quoted: memoryview | str) -> str:
    try:
        return _STRING.decode(quoted)
    except ValueError:
        return ""


def _each_number(raw: Raw) -> Iterator[str]:
    opening = _NUMBERS.match(raw)
    position = opening.end() if opening else len(memoryview(raw))
    while number := _NUMBER.match(raw, position):
        yield number[1].decode()
        position = number.end()
