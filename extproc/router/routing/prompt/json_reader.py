"""The members of a JSON object, read when they are used; of a very large body as much as a prompt needs.

Only `open_object` raises. A member that cannot be read is as good as absent: it must not cost a
request its route, since the endpoint is the one to judge it.
"""

# How a large body is read, so that nobody's holds the loop or takes memory by the element:
#
# 1. Long media (base64) give way to their digests: what is left of 30 MB of images is a chat.
# 2. msgspec finds the members that a prompt may need, in one pass that makes no objects (3 ms for 2
#    MB of brackets). Of a body beyond `head_bytes` the head is read, as if the client had sent no
#    more; and the model and the salt are looked for among the last members, too.
# 3. A member becomes objects as far as it has not too many values: of 2 MB of empty arrays, 50 ns
#    each, that would take 35 MB. Prompts have few values for their size.
#
# What is cut off is missing from the prompt's end, where the next turn's differs anyhow.

import json
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, islice, repeat
from math import isfinite
from typing import Any, Final, Literal

import jiter
import msgspec
from msgspec import Raw
from msgspec.structs import asdict

from extproc.errors import PromptError, PromptTooComplex
from extproc.router.routing.prompt.apis import FIELDS
from extproc.router.routing.prompt.media import DIGEST, digest_of

# A chat of so many messages has its prefix among them.
MAX_ELEMENTS: Final = 2_048
# How gzip and zstd begin. vLLM reads neither.
_PACKED: Final = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")

TOO_COMPLEX: Final = "the body is too large and too complex to be read for routing"


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """What of a body is read."""

    small_bytes: int = 64 * 1024  # smaller bodies are read as they are
    head_bytes: int = 2 * 1024 * 1024
    tail_bytes: int = 64 * 1024
    medium_bytes: int = 16 * 1024  # base64 of twice that is found wherever it stands
    containers: int = 16_384  # arrays and objects of one member, of 150 ns each
    names: int = 32_768  # colons, of 300 ns each
    values: int = 131_072  # commas, of 25 ns each


LIMITS: Final = ReadLimits()

_ANY: Final = msgspec.json.Decoder()
_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_NAMES: Final = ("model", "cache_salt", *FIELDS)
_MEMBERS: Final = msgspec.json.Decoder(
    msgspec.defstruct("Members", [(name, Raw, Raw()) for name in _NAMES], frozen=True, gc=False)
)
_DIGITS: Final = re.compile(rb"-?\d")
_ARRAY: Final = re.compile(rb"\s*+\[\s*+(?:\[\s*+)?+(?=[-\d])")
_OF_NUMBERS: Final = b"-+.0123456789eE, \t\r\n"
_NUMBERS: Final = re.compile(rb"[-+.\deE, \t\r\n]++")
_BASE64: Final = re.compile(rb"(?:data:(?:[\w/+.;=\\-]{0,100},)?)?(?:[\w+/=-]|\\/)++")
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_VALUE: Final = re.compile(
    rb'[ \t\r\n]{0,64}:[ \t\r\n]{0,64}("[^"\\]{0,1000}+(?:\\.[^"\\]{0,1000}+){0,100}+")', re.DOTALL
)
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
# The escape of half a pair of surrogates, which Python's `json` takes; as many of these are mended.
_HALF_PAIR: Final = re.compile(
    rb"(?<!\\)\\u[dD](?:[89abAB][\da-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][\da-fA-F]{2}\\u[dD])[c-fC-F][\da-fA-F]{2})"
)
_HALVES: Final = 4_096
_BACKSLASH: Final = ord("\\")
_MARK: Final = b"\xef\xbb\xbf"
_ABSENT: Final = Raw()
# How many members of one name are looked at from the end, and behind how many brackets.
_TRIES, _MANY = 8, 4_096


class Object:
    """A JSON object whose members are read when they are used; nothing here raises.

    `members` are as they were written, `values` are read. `body` has those that are not among them;
    without it there are no others.
    """

    def __init__(
        self,
        members: dict[str, Raw],
        values: dict[str, object] | None = None,
        body: bytes | bytearray = b"",
        limits: ReadLimits = LIMITS,
    ) -> None:
        self._members = members
        self._values = values or {}
        self._body = body
        self._limits = limits
        self.fault: PromptError | None = None
        """Why something was left out that might have been read; so far."""

    def string(self, name: str) -> str | None:
        value = self.value(name)
        return value if isinstance(value, str) else None

    def scalar(self, name: str) -> str | None:
        """A string, or a number as it is written."""
        raw = self._raw(name)
        return bytes(raw).decode() if _DIGITS.match(raw) else self.string(name)

    def value(self, name: str) -> object:
        """Any member; `None` if there is none, or none that can be read."""
        if name not in self._values:
            raw = self._raw(name)
            self._values[name] = self._load(raw) if len(raw) else None
        return self._values[name]

    def written(self, names: Iterable[str]) -> list[bytes]:
        """Members as they were written; empty where there is none, or none but what was read."""
        return [*map(bytes, map(self._members.get, names, repeat(b"")))]

    def numbers(self, name: str, chars: int) -> str | None:
        """The head of an array of numbers, joined by commas; `None` if it does not start as one. O(chars)."""
        raw = self._raw(name)
        found = _ARRAY.match(raw)
        return _head_of_numbers(raw, found.end(), chars) if found else None

    def begin(self, names: Iterable[str], size: int) -> "Object":
        """These members, of each as much as its first bytes are: reading them costs O(size)."""
        members, values = dict[str, Raw](), dict[str, object]()
        for name in names:
            raw = members[name] = self._raw(name)
            if len(raw) > size:
                with suppress(ValueError):
                    values[name] = _read(bytes(memoryview(raw)[:size]), is_cut=True)
        return Object(members, values)

    def _raw(self, name: str) -> Raw:
        raw = self._members.get(name)
        if raw is None:
            if name in self._values:
                return Raw(json.dumps(self._values[name]).encode())
            raw = _decoder_of(name).decode(self._body).value if self._body else _ABSENT
            self._members[name] = raw
        return raw

    def _load(self, raw: Raw) -> object:
        if len(raw) > self._limits.small_bytes:
            return self._load_large(bytes(raw))
        try:
            # Not msgspec: of long chats it takes 1.8 times as long (measured), and ends at other
            # depths and numbers.
            return jiter.from_json(bytes(raw), allow_inf_nan=False)
        except ValueError:
            return load_leniently(bytes(raw))

    def _load_large(self, written: bytes) -> object:
        size = _readable(written, self._limits)
        try:
            if size < len(written):
                self.fault = PromptTooComplex(TOO_COMPLEX)
                return _read(written[:size], is_cut=True)
            return _ANY.decode(written)
        except ValueError:
            return None


def open_object(
    body: bytes | bytearray | memoryview, *, is_partial: bool = False, limits: ReadLimits = LIMITS
) -> Object:
    """Opens the one object that `body` is.

    Takes what vLLM takes, which reads with Python's `json`: a byte order mark, UTF-16 and UTF-32,
    NaN, lone surrogates (read as `?`), duplicate keys (the last one counts). `is_partial` says that
    the end is missing: what came is read, but a last member only if it is a prompt's: half a
    model's name is another model.

    Raises `PromptError` for anything else, and for nesting beyond Python's recursion limit.
    """
    try:
        written = bytes(body) if isinstance(body, memoryview) else body
        if len(written) > limits.small_bytes:
            written = _without_media(_recoded(written, limits), limits)
        if is_partial or len(written) > limits.head_bytes:
            return _open_head(written, limits, is_partial=is_partial)
        if len(written) > limits.small_bytes:
            return _open_large(written, limits)
        return _open_small(written)
    except RecursionError:
        raise PromptError("the body is nested too deeply") from None
    except ValueError:
        if bytes(written[:4]).startswith(_PACKED):
            raise PromptError("the body is compressed; send it as it is") from None
        raise PromptError("the body is not a JSON object") from None


def is_large(body: bytes | bytearray) -> bool:
    """Whether reading it may take milliseconds."""
    return len(body) > LIMITS.small_bytes


def elements(value: object) -> Iterable[object]:
    """The first elements of an array; of anything else, itself."""
    return islice(value, MAX_ELEMENTS) if isinstance(value, list) else (value,)


def compact(value: object) -> str:
    """The value as JSON without white space; empty if it is nested too deeply."""
    try:
        return msgspec.json.encode(value).decode()
    except (RecursionError, TypeError, OverflowError):
        return ""


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


def _open_small(body: bytes | bytearray) -> Object:
    try:
        return Object(_OBJECT.decode(body))
    except ValueError:
        return Object(_OBJECT.decode(json.dumps(load_leniently(bytes(body)))))


def _open_large(body: bytes | bytearray, limits: ReadLimits) -> Object:
    try:
        members: dict[str, Raw] = asdict(_MEMBERS.decode(body))
    except ValueError:
        return _open_head(body, limits, is_partial=False)
    return Object(members, None, body, limits)


def _open_head(body: bytes | bytearray, limits: ReadLimits, *, is_partial: bool) -> Object:
    """The members of the body's head, and the last of all that are texts."""
    size = _readable(body, limits)
    is_cut, members, values = is_partial or size < len(body), dict[str, Raw](), dict[str, object]()
    if not is_partial:
        tail = bytes(body[-limits.tail_bytes :])
        found = (
            (name, _find_last(tail, b'"%b"' % name.encode())) for name in ("model", "cache_salt")
        )
        members = {name: Raw(text) for name, text in found if text}
    try:
        values = _read_object(bytes(body[:size]), is_cut=is_cut)
    except ValueError:
        if size == len(body):
            raise
        if not members:
            raise PromptTooComplex(TOO_COMPLEX) from None
    last = next(reversed(values), None)
    if is_cut and last is not None and last not in FIELDS:
        del values[last]
    for name in members:
        values.pop(name, None)  # the last of two equal keys counts, as the engine reads it
    opened = Object(members, values, limits=limits)
    has_model = "model" in members or "model" in values
    if size < min(len(body), limits.head_bytes) or (is_cut and not is_partial and not has_model):
        opened.fault = PromptTooComplex(TOO_COMPLEX)
    return opened


def _read_object(written: bytes, *, is_cut: bool) -> dict[str, object]:
    found = _read(written, is_cut=is_cut)
    if not isinstance(found, dict):
        raise ValueError("no object")  # noqa: TRY004  # as the readers do
    return found


def _read(written: bytes, *, is_cut: bool) -> object:
    """Raises `ValueError`. Where the end is missing, texts are read as far as they came."""
    mode: Literal["trailing-strings", False] = "trailing-strings" if is_cut else False
    try:
        return jiter.from_json(written, partial_mode=mode)
    except ValueError:
        if b"\\ud" not in written and b"\\uD" not in written:
            raise
        return jiter.from_json(_HALF_PAIR.sub(b"?", written, count=_HALVES), partial_mode=mode)


def _readable(written: bytes | bytearray, limits: ReadLimits) -> int:
    """How much of it may become objects: its head, halved until that has not too many values."""
    size = min(len(written), limits.head_bytes)
    while size > limits.small_bytes and (
        written.count(b"[", 0, size) + written.count(b"{", 0, size) > limits.containers
        or written.count(b":", 0, size) > limits.names
        or written.count(b",", 0, size) > limits.values
    ):
        size //= 2
    return size


def _find_last(tail: bytes, name: bytes) -> bytes | None:
    """The text of the body's own member of this name, if it is among the last ones: `tail` ends the body.

    In JSON a quote without a backslash before it starts or ends a string, so `"model":` is a name;
    and it is one of the body's own members if the brackets behind it close nothing but the body.
    """
    brackets, behind, at = b"", len(tail), len(tail)
    for _ in range(_TRIES):
        at = tail.rfind(name, 0, at)
        found = (
            _VALUE.match(tail, at + len(name)) if at > 0 and tail[at - 1] != _BACKSLASH else None
        )
        if at < 0:
            break
        if found is not None:
            brackets = (
                _STRING.sub(b"", tail[found.end() : behind]).translate(None, _NO_BRACKETS)
                + brackets
            )
            if _close_all(brackets):
                return found[1]
            behind = at
    return None


def _close_all(brackets: bytes) -> bool:
    """Whether they close the body, and nothing that was open in it."""
    if len(brackets) > _MANY or not brackets.endswith(b"}"):
        return False
    depths = accumulate((1 if bracket in b"[{" else -1 for bracket in brackets[:-1]), initial=0)
    return min(last := [*depths]) == last[-1] == 0


def _recoded(body: bytes | bytearray, limits: ReadLimits) -> bytes | bytearray:
    """The body as UTF-8, without a mark. Only the wider encodings hold zeros this early."""
    if body.startswith(_MARK):
        return body[len(_MARK) :]
    if b"\0" not in body[:4]:
        return body
    if len(body) > limits.head_bytes:
        raise ValueError("too large to be written anew")
    return body.decode(json.detect_encoding(body), "surrogatepass").encode(errors="replace")


def _without_media(body: bytes | bytearray, limits: ReadLimits) -> bytes | bytearray:
    """The body with the digest of each long base64 text in its place, behind `DIGEST`.

    A stretch without a quote is within a string, or between two; then it starts with no letter.
    """
    step, pieces, done, at = limits.medium_bytes, list[bytes | bytearray](), 0, limits.medium_bytes
    while at <= len(body):
        if body.find(b'"', at - step, at) < 0:
            start, end = body.rfind(b'"', done, at - step) + 1, body.find(b'"', at)
            if end < 0:
                break  # cut off: the next time it may end elsewhere
            limit = min(start + 256, end)
            found = _BASE64.match(body, start, limit) if start > done else None
            if found and found.end() >= limit - 1 and body[end - 1] != _BACKSLASH:
                digest = digest_of(memoryview(body)[start:end])
                pieces += [body[done:start], b"\\u%04x%b" % (ord(DIGEST), digest.encode())]
                done = end
            at = end
        at += step
    return b"".join([*pieces, body[done:]]) if pieces else body


@lru_cache(maxsize=64)  # names that an operator's keys have
def _decoder_of(name: str) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(
        msgspec.defstruct("Member", [("value", Raw, Raw())], rename={"value": name})
    )


def _head_of_numbers(raw: Raw, start: int, chars: int) -> str:
    """The first `chars` characters of the numbers from `start` on, without white space. O(chars)."""
    view, size = memoryview(raw)[start:], 4 * chars + 64
    while True:
        written, bracket, _ = bytes(view[:size]).partition(b"]")
        # Mostly there is nothing else in it: that takes a fifth of what the expression does.
        is_all = not written.translate(None, _OF_NUMBERS)
        found = None if is_all else _NUMBERS.match(written)
        numbers = written if is_all else found[0] if found else b""
        text = numbers.translate(None, b" \t\r\n").strip(b",").decode()
        if bracket or not is_all or size >= len(view) or len(text) >= chars:
            return text[:chars]
        size *= 4
