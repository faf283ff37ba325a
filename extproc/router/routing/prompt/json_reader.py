"""The members of a JSON object, read lazily: a small body at once, a large one by `json_skim`.

Only `open_object` raises. A member that cannot be read is as good as absent: it must not cost a request
its route, since the endpoint is the one to judge it.
"""

import json
import re
from collections.abc import Callable, Container, Iterable
from itertools import islice
from typing import Final, Protocol, TypeVar

import jiter
import msgspec
import orjson
from msgspec import Raw

from extproc.errors import PromptError, PromptTooComplex
from extproc.router.routing.prompt.json_effort import LIMITS, ReadLimits, load_leniently
from extproc.router.routing.prompt.json_skim import DIGITS, Array, Skim, Text, head_of_numbers
from extproc.router.routing.prompt.json_walk import Cut, Malformed

# Beyond this a body in UTF-16 or UTF-32 is not read: it would have to be written anew.
RECODED_BYTES: Final = 2 * 1024 * 1024

# A chat of so many messages has its prefix among them.
MAX_ELEMENTS: Final = 4_096

# A name or a number that counts whole; of a longer one this many characters do.
NAME_CHARS: Final = 64 * 1024

T = TypeVar("T")

_OBJECT: Final = msgspec.json.Decoder(dict[str, Raw])
_NUMBERS: Final = re.compile(rb"\s*+\[\s*+(?:\[\s*+)?+(?=[-\d])")


class Object(Protocol):
    """A JSON object whose members are read when they are used; nothing here raises."""

    @property
    def fault(self) -> PromptError | None:
        """Why something was left out that might have been read; so far."""

    @property
    def effort(self) -> int:
        """What reading took so far, as `json_skim` counts it; none for a small body."""

    def string(self, name: str) -> str | None: ...

    def scalar(self, name: str) -> str | None:
        """A string, or a number as it is written."""

    def value(self, name: str) -> object:
        """Any member; `None` if there is none, or none that can be read. Long ones may be lazy."""

    def written(self, name: str) -> bytes:
        """A member as it was written; empty if there is none, or in a large body."""

    def numbers(self, name: str, chars: int) -> str | None:
        """The head of an array of numbers, joined by commas; `None` if it does not start as one. O(chars)."""


def open_object(
    body: bytes | bytearray | memoryview,
    *,
    is_partial: bool = False,
    texts: Container[str] = (),
    limits: ReadLimits = LIMITS,
) -> Object:
    """Opens the one object that `body` is.

    Takes what vLLM takes, which reads with Python's `json`: a byte order mark, UTF-16 and UTF-32, NaN,
    lone surrogates (read as `?`), duplicate keys (the last one counts). `is_partial` says that the end
    is missing: what came is read, but a last member only if it is one of `texts`: half a model's name is
    another model.

    Raises `PromptError` for anything else, and for nesting beyond Python's recursion limit. A large body
    is read only as far as its prompt needs, and as `limits` allow.
    """
    try:
        written = bytes(body) if isinstance(body, memoryview) else body
        if is_large(written, limits):
            return _open_large(written, limits, is_partial=is_partial)
        return _open_partial(bytes(written), texts) if is_partial else _open_whole(written)
    except RecursionError:
        raise PromptError("the body is nested too deeply") from None
    except ValueError:
        raise PromptError("the body is not a JSON object") from None


def elements(value: object) -> Iterable[object]:
    """The first elements of an array; of anything else, itself."""
    return islice(value, MAX_ELEMENTS) if isinstance(value, list | Array) else (value,)


def compact(value: object, chars: int | None) -> str:
    """The value as JSON without white space; empty if it is nested too deeply.

    At least its first `chars` characters are those of the whole.
    """

    def written(part: object) -> object:
        if isinstance(part, Text):
            return part.head(NAME_CHARS if chars is None else chars)
        return list(elements(part))

    try:
        return orjson.dumps(value, default=written).decode()
    except TypeError:
        return ""


class WholeObject:
    """The members of a small body, each as it is written."""

    fault = None
    effort = 0

    def __init__(self, members: dict[str, Raw]) -> None:
        self._members = members
        self._read: dict[str, object] = {}

    def string(self, name: str) -> str | None:
        value = self.value(name)
        return value if isinstance(value, str) else None

    def scalar(self, name: str) -> str | None:
        raw = self._members.get(name)
        if raw is None or not DIGITS.match(raw):
            return self.string(name)
        return bytes(raw).decode()

    def value(self, name: str) -> object:
        raw = self._members.get(name)
        if raw is None:
            return None
        if name not in self._read:
            self._read[name] = _load(raw)
        return self._read[name]

    def written(self, name: str) -> bytes:
        return bytes(self._members.get(name, b""))

    def numbers(self, name: str, chars: int) -> str | None:
        raw = self._members.get(name)
        found = _NUMBERS.match(raw) if raw is not None else None
        return head_of_numbers(raw, found.end(), len(raw), chars) if raw and found else None


def _load(raw: Raw) -> object:
    try:
        return orjson.loads(memoryview(raw))
    except ValueError:
        return load_leniently(bytes(raw))


class LargeObject:
    """The members of a large body, each by where it starts."""

    def __init__(self, skim: Skim, starts: dict[str, int], model: str | None = None) -> None:
        self._skim = skim
        self._starts = starts
        self._model = model

    @property
    def fault(self) -> PromptError | None:
        return self._skim.fault

    @property
    def effort(self) -> int:
        return self._skim.effort.spent

    def string(self, name: str) -> str | None:
        if name == "model" and self._model is not None:
            return self._model
        value = self.value(name)
        if isinstance(value, Text):
            return None if value.is_cut else value.head(NAME_CHARS)
        return value if isinstance(value, str) else None

    def scalar(self, name: str) -> str | None:
        number = self._read(name, self._skim.number)
        return self.string(name) if number is None else number

    def value(self, name: str) -> object:
        return self._read(name, self._skim.value)

    def written(self, _name: str) -> bytes:
        return b""

    def numbers(self, name: str, chars: int) -> str | None:
        return self._read(name, lambda start: self._skim.numbers(start, chars))

    def _read(self, name: str, read: Callable[[int], T | None]) -> T | None:
        start = self._starts.get(name)
        try:
            return None if start is None else read(start)
        except (Malformed, PromptTooComplex) as stop:
            self._skim.note(stop)
            return None


def is_large(body: bytes | bytearray, limits: ReadLimits = LIMITS) -> bool:
    """Whether an object for every value would take too long: 64 KB of brackets take 6 ms, and again."""
    size = len(body)
    if size > limits.whole_bytes:
        return True
    # Within so few bytes there are never too many.
    return size > limits.near_bytes and body.count(b"[") + body.count(b"{") > limits.whole_containers


def _open_whole(body: bytes | bytearray) -> WholeObject:
    try:
        return WholeObject(_OBJECT.decode(body))
    except ValueError:
        return WholeObject(_OBJECT.decode(json.dumps(load_leniently(bytes(body)))))


def _open_partial(body: bytes, texts: Container[str]) -> WholeObject:
    read = jiter.from_json(body, partial_mode="trailing-strings")
    members = _OBJECT.decode(msgspec.json.encode(read))
    last = next(reversed(members), None)
    if last is not None and last not in texts:
        del members[last]
    return WholeObject(members)


def _open_large(body: bytes | bytearray, limits: ReadLimits, *, is_partial: bool) -> LargeObject:
    skim = Skim(_recoded(body), limits)
    starts: dict[str, int] = {}
    model = None
    try:
        # It keeps what came before a stop.
        starts.update(skim.top())
    except Cut:
        if not is_partial or not skim.has_started:
            raise
    except PromptTooComplex as stop:
        skim.note(stop)
        model = None if is_partial else skim.last_model()
    skim.effort.keep(limits.reserve)
    return LargeObject(skim, starts, model)


def _recoded(body: bytes | bytearray) -> bytes | bytearray:
    """The body as UTF-8. Only the wider encodings hold zeros this early."""
    if b"\0" not in body[:4]:
        return body
    if len(body) > RECODED_BYTES:
        raise Malformed
    return body.decode(json.detect_encoding(body), "surrogatepass").encode(errors="replace")
