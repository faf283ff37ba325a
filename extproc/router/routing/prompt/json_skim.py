"""Reads parts of a large body, without making objects of the others.

What it does is counted in units of effort, and it stops where they are spent: no body, whatever is in it,
holds the serving loop for long or takes memory by the element. Long texts and arrays stay where they are, in
the body.
"""

import re
from collections.abc import Iterator
from typing import Final

import jiter
import orjson
from msgspec import Raw
from xxhash import xxh3_64

from extproc.errors import PromptTooComplex
from extproc.router.routing.prompt import json_effort as cost
from extproc.router.routing.prompt.json_effort import LIMITS, ReadLimits, load_leniently, load_string
from extproc.router.routing.prompt.json_walk import (
    CLOSE_ARRAY,
    CLOSE_OBJECT,
    COLON,
    NO_BRACKETS,
    OPEN_ARRAY,
    OPEN_OBJECT,
    OPENING,
    QUOTE,
    WINDOW,
    Cut,
    Malformed,
    Walk,
    depths,
)

_LEVELS: Final = 16
_PIECE_BYTES: Final = 4 * 1024
_NAME_BYTES: Final = 4 * 1024
DIGITS: Final = re.compile(rb"-?\d")
_NUMBERS: Final = re.compile(rb"[-+.\deE,\s]++")
_MODEL: Final = re.compile(
    rb'(?<!\\)"model"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}("[^"\\]{0,1000}+(?:\\.[^"\\]{0,1000}+){0,100}+")',
    re.DOTALL,
)
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class Text:
    """A long string that stays in the body; read as far as it is used."""

    __slots__ = ("_end", "_skim", "_start", "is_cut")

    def __init__(self, skim: "Skim", start: int, end: int, *, is_cut: bool = False) -> None:
        self._skim = skim
        self._start = start
        self._end = end
        self.is_cut = is_cut

    def head(self, chars: int) -> str:
        """The first characters, in code points."""
        pieces: list[str] = []
        length = 0
        for piece in self._pieces(_PIECE_BYTES):
            pieces.append(piece)
            length += len(piece)
            if length >= chars:
                break
        return "".join(pieces)[:chars]

    def digest(self) -> str:
        """Tells the whole text from others; an image of 30 MB takes milliseconds, once."""
        digest = self._skim.digests.get(self._start)
        if digest is None:
            hasher = xxh3_64()
            self.feed(hasher)
            digest = self._skim.digests[self._start] = hasher.hexdigest()
        return digest

    def feed(self, hasher: xxh3_64) -> None:
        """Gives the whole text, as UTF-8, to `hasher`, as far as it can be read."""
        size = self._end - self._start
        is_plain = not self.is_cut and self._skim.body.find(b"\\", self._start, self._end) < 0
        if is_plain and self._skim.effort.allows(size // 16):
            self._skim.effort.spend(size // 16)
            hasher.update(memoryview(self._skim.body)[self._start : self._end])
            return
        for piece in self._pieces(WINDOW):
            hasher.update(piece.encode())

    def _pieces(self, size: int) -> Iterator[str]:
        try:
            position = self._start
            while position < self._end:
                parting = self._skim.parting(position + size, self._end)
                yield self._skim.decode(position, parting, is_cut=self.is_cut and parting == self._end)
                position = parting
        except (Malformed, PromptTooComplex) as stop:
            self._skim.note(stop)


class Array:
    """A long array that stays where it is; its elements are read one by one, each time it is iterated."""

    __slots__ = ("_skim", "_start")

    def __init__(self, skim: "Skim", start: int) -> None:
        self._skim = skim
        self._start = start

    def __iter__(self) -> Iterator[object]:
        return self._skim.elements(self._start)


class Skim(Walk):
    """The values of one body. `fault` says why something was left out, if anything was."""

    def __init__(self, body: bytes | bytearray, limits: ReadLimits = LIMITS) -> None:
        super().__init__(body, limits)
        self.fault: PromptTooComplex | None = None
        self.has_started = False
        self.digests: dict[int, str] = {}

    def note(self, stop: Exception) -> None:
        if isinstance(stop, PromptTooComplex):
            # Made anew: with its frames it would hold the body until a garbage collection.
            self.fault = PromptTooComplex(str(stop))

    def top(self) -> Iterator[tuple[str, int]]:
        """Yields the name of each of the body's members, and where its value starts.

        Raises `Malformed` if the body is no object, `Cut` if it ends early, `PromptTooComplex`.
        """
        start = self._next(3 if self.body.startswith(b"\xef\xbb\xbf") else 0)
        if self.body[start] != OPEN_OBJECT:
            raise Malformed
        self.has_started = True
        yield from self._members(start)
        self._check_end(self._closed)

    def value(self, start: int, levels: int = _LEVELS) -> object:
        """The value that starts here: long texts as `Text`, long arrays as `Array`, an object as a `dict`.

        Raises what `top` raises.
        """
        first = self.body[start]
        if first == QUOTE:
            return self._string(start)
        if first not in OPENING:
            return self._load(start, self.end(start))
        end = self._near_end(start)
        if end is not None:
            return self._load(start, end)
        return Array(self, start) if first == OPEN_ARRAY else self._object(start, levels)

    def elements(self, start: int) -> Iterator[object]:
        """The elements of the array that starts here, as far as they can be read."""
        try:
            at = self._first(start, CLOSE_ARRAY)
            while at is not None:
                yield self.value(at)
                at = self._following(self.end(at), CLOSE_ARRAY)
        except (Malformed, PromptTooComplex) as stop:
            self.note(stop)

    def numbers(self, start: int, chars: int) -> str | None:
        """The head of the first array of numbers, joined by commas; `None` if none starts here."""
        if self.body[start] != OPEN_ARRAY:
            return None
        position = self._next(start + 1)
        if self.body[position] == OPEN_ARRAY:
            position = self._next(position + 1)
        if not DIGITS.match(self.body, position):
            return None
        end = min(position + 64 * chars + WINDOW, len(self.body))
        text = head_of_numbers(self.body, position, end, chars)
        self.effort.spend(cost.ITEM_UNITS + 8 * len(text))
        return text

    def number(self, start: int) -> str | None:
        """The number that starts here, as it is written."""
        if not DIGITS.match(self.body, start):
            return None
        return self.body[start : self._word_end(start)].decode()

    def decode(self, start: int, end: int, *, is_cut: bool = False) -> str:
        """The text between two places in a string."""
        self.effort.spend(2 * (end - start) + 500)
        written = b'"%b' % bytes(self.body[start:end])
        try:
            text = (
                jiter.from_json(written, partial_mode="trailing-strings")
                if is_cut
                else orjson.loads(written + b'"')
            )
        except ValueError:
            self.effort.spend(cost.LENIENT_UNITS)
            text = load_leniently(written + b'"')
        if not isinstance(text, str):
            raise Malformed
        return text

    def last_model(self) -> str | None:
        """The model, if it is among the last members of the body, which is whole.

        In JSON a quote without a backslash before it starts or ends a string, so `"model":` is a name; and
        it is one of the body's own members if the brackets behind it close nothing but the body.
        """
        tail = bytes(self.body[-WINDOW:])
        for found in reversed(list(_MODEL.finditer(tail))[-8:]):
            brackets = _STRING.sub(b"", tail[found.end() :]).translate(None, NO_BRACKETS)
            if len(brackets) <= 4_096 and _closes_all(brackets):
                return load_string(found[1])
        return None

    def _members(self, start: int) -> Iterator[tuple[str, int]]:
        at = self._first(start, CLOSE_OBJECT)
        while at is not None:
            name_end = self.end(at)
            colon = self._next(name_end)
            if self.body[at] != QUOTE or self.body[colon] != COLON:
                raise Malformed
            value = self._next(colon + 1)
            yield self._name(at, name_end), value
            at = self._following(self.end(value), CLOSE_OBJECT)

    def _name(self, start: int, end: int) -> str:
        # No caller needs a longer one.
        if end - start > _NAME_BYTES:
            return ""
        return self.decode(start + 1, end - 1)

    def _object(self, start: int, levels: int) -> dict[str, object]:
        """The members as far as they can be read; deeper than `levels` there are none."""
        values: dict[str, object] = {}
        try:
            for name, at in self._members(start) if levels else ():
                values[name] = self.value(at, levels - 1)
        except (Malformed, PromptTooComplex) as stop:
            self.note(stop)
        return values

    def _string(self, start: int) -> str | Text:
        try:
            end = self.end(start)
        except Cut:
            return Text(self, start + 1, len(self.body), is_cut=True)
        except PromptTooComplex as stop:
            self.note(stop)
            return Text(self, start + 1, self._reached.get(start, start + 1), is_cut=True)
        if end - start > self.limits.text_bytes:
            return Text(self, start + 1, end - 1)
        return self.decode(start + 1, end - 1)

    def _load(self, start: int, end: int) -> object:
        written = bytes(self.body[start:end])
        # No value without one of these before it. Those within strings count too: they are few.
        values = sum(map(written.count, (b",", b":", b"[", b"{")))
        self.effort.spend(len(written) + cost.LOAD_UNITS * values)
        try:
            return orjson.loads(written)
        except ValueError:
            self.effort.spend(cost.LENIENT_UNITS + 50 * len(written))
            return load_leniently(written)


def head_of_numbers(body: bytes | bytearray | Raw, start: int, end: int, chars: int) -> str:
    """The first `chars` characters of the numbers from `start` on, without white space. O(chars)."""
    size = 4 * chars + 64
    while True:
        written = _NUMBERS.match(body, start, min(start + size, end))
        text = written[0].translate(None, b" \t\r\n").strip(b",").decode() if written else ""
        if written is None or written.end() < start + size or len(text) >= chars:
            return text[:chars]
        size *= 4


def _closes_all(brackets: bytes) -> bool:
    depth, lowest = depths.__wrapped__(brackets[:-1])
    return brackets.endswith(b"}") and depth == 0 <= lowest
