"""A reader of large JSON that makes no object of what it passes over.

What it does is counted in units of effort, about a nanosecond each, and it stops where they are spent:
no body, whatever is in it, holds the serving loop for long or takes memory by the element. Three things
make it quick. A string is passed over by looking for the next quote, which `bytes.find` does at 10 GB/s.
Between strings only brackets matter. And where very many short strings stand in a few bytes, msgspec
skips the whole value in C.

It checks no more than it needs to find its way: what it cannot understand the endpoint will judge.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from math import isfinite
from typing import Final

import jiter
import msgspec
import orjson
from msgspec import Raw
from xxhash import xxh3_64

from extproc.errors import PromptTooComplex


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is read at once, and how much at all; sizes in bytes, effort in about nanoseconds.

    `reserve` is what there is for the prompt itself after finding the members took everything.
    """

    whole_bytes: int = 128 * 1024  # smaller bodies are read at once, with an object for every value
    whole_containers: int = 4_096  # unless they hold more arrays and objects than this
    near_bytes: int = 16 * 1024  # so are the values within a larger body that end this soon
    text_bytes: int = 4 * 1024  # longer strings stay where they are
    window_bytes: int = 64 * 1024
    skip_bytes: int = 2_300_000  # what msgspec may skip in one go
    effort: int = 6_000_000
    reserve: int = 1_500_000


LIMITS: Final = Limits()

# What things cost at most, as measured; `make bench` (hostile) shows the sum for the worst bodies we know.
_SKIP_UNITS: Final = 4  # a byte that msgspec skips: brackets, 480 deep
_FEW_UNITS: Final = 2  # a byte that msgspec skips and whose brackets are counted, without them
_NESTED_UNITS: Final = 12  # an array or object that msgspec skips
_LOAD_UNITS: Final = 100  # a value that becomes an object
_ESCAPE_UNITS: Final = 4  # an escape in a string that msgspec skips
_HOP_UNITS: Final = 400  # a string passed over, or brackets before it
_QUOTE_UNITS: Final = 450  # an escaped quote
_BRACKET_UNITS: Final = 100  # a bracket before a string
_ALONE_UNITS: Final = 250  # a bracket in a long stretch without strings
_LENIENT_UNITS: Final = 10_000  # a value that only Python's own reader takes
_ITEM_UNITS: Final = 4_000  # a member or an element that is looked at
_TRY_HOPS: Final = 64
_TRY_QUOTES: Final = 64

_TOO_COMPLEX: Final = "the body is too large and too complex to be read for routing"
_WINDOW: Final = 64 * 1024
_LEVELS: Final = 16
_QUOTE, _BACKSLASH, _COMMA, _COLON = b'"\\,:'
_OPEN_ARRAY, _CLOSE_ARRAY, _OPEN_OBJECT, _CLOSE_OBJECT = b"[]{}"
_OPENING: Final = frozenset(b"[{")
_CLOSING: Final = frozenset(b"]}")
_BRACKETS: Final = (b"[", b"]", b"{", b"}")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
# What most often stands between two strings.
_SEPARATORS: Final = frozenset({b":", b",", b": ", b", "})

_SKIP: Final = msgspec.json.Decoder(Raw)
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_WORD: Final = re.compile(rb"[-+.\w]++")
DIGITS: Final = re.compile(rb"-?\d")
_BRACKET: Final = re.compile(rb"[\[\]{}]")
_NUMBERS: Final = re.compile(rb"[-+.\deE,\s]++")
# Where a string may be parted: behind twelve characters that start no escape, as two surrogates take up
# twelve; or before a character of several bytes, or an escape that is no second surrogate.
_PARTING: Final = re.compile(rb"[ !#-\[\]-~]{12}|[^\\](?=[\xc2-\xf4]|\\(?!u[dD][c-fC-F]))", re.DOTALL)
_LITTLE_BYTES: Final = 128 * 1024
_PIECE_BYTES: Final = 4 * 1024
_PARTING_BYTES: Final = 4 * 1024
_NAME_BYTES: Final = 4 * 1024
_MODEL: Final = re.compile(
    rb'(?<!\\)"model"[ \t\r\n]{0,64}:[ \t\r\n]{0,64}("[^"\\]{0,1000}+(?:\\.[^"\\]{0,1000}+){0,100}+")',
    re.DOTALL,
)
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


class Malformed(ValueError):
    """What stands here is no JSON, or none that a prompt would hold."""


class Cut(Malformed):
    """The body ends before the value does."""


class Effort:
    """Counts what reading takes, in units of about a nanosecond."""

    __slots__ = ("limit", "spent")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0

    def __repr__(self) -> str:
        return f"<Effort {self.spent} of {self.limit}>"

    def keep(self, reserve: int) -> None:
        """Leaves at least this much to spend."""
        self.limit = max(self.limit, self.spent + reserve)

    def allows(self, units: int) -> bool:
        return self.spent + units <= self.limit

    def spend(self, units: int) -> None:
        """Raises `PromptTooComplex` when there is nothing left."""
        self.spent += units
        if self.spent > self.limit:
            raise PromptTooComplex(_TOO_COMPLEX)


class Text:
    """A long string that stays where it is, in the body; read as far as asked for."""

    __slots__ = ("_end", "_skim", "_start", "is_cut")

    def __init__(self, skim: "Skim", start: int, end: int, *, is_cut: bool = False) -> None:
        self._skim = skim
        self._start = start
        self._end = end
        self.is_cut = is_cut

    def __repr__(self) -> str:
        return f"<Text of {self._end - self._start} bytes>"

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
        for piece in self._pieces(_WINDOW):
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


class Skim:
    """Finds its way in one body. `fault` says why something was left out, if anything was."""

    def __init__(self, body: bytes | bytearray, limits: Limits = LIMITS) -> None:
        self.body = body
        self.limits = limits
        self.effort = Effort(limits.effort)
        self.fault: PromptTooComplex | None = None
        self.has_started = False
        self.digests: dict[int, str] = {}
        self._view = memoryview(body)
        # Behind the last container of which every item was taken.
        self._closed = 0
        # Of long values: where they end, or how far that was looked for. Taking the items of a broken value
        # may find another end, which is not noted: what is read must not depend on what was read before.
        self._ends: dict[int, int] = {}
        self._cuts: set[int] = set()
        self._near_ends: dict[int, int | None] = {}
        self._reached: dict[int, int] = {}

    def note(self, stop: Exception) -> None:
        if isinstance(stop, PromptTooComplex):
            # Made anew: with its frames it would hold the body until a garbage collection.
            self.fault = PromptTooComplex(str(stop))

    def top(self) -> Iterator[tuple[str, int]]:
        """Yields the name of each of the body's members, and where its value starts.

        Raises `Malformed` if the body is no object, `Cut` if it ends early, `PromptTooComplex`.
        """
        start = self._next(3 if self.body.startswith(b"\xef\xbb\xbf") else 0)
        if self.body[start] != _OPEN_OBJECT:
            raise Malformed
        self.has_started = True
        yield from self._members(start)
        self._check_end(self._closed)

    def value(self, start: int, levels: int = _LEVELS) -> object:
        """The value that starts here: long texts as `Text`, long arrays as `Array`, an object as a `dict`.

        Raises what `top` raises.
        """
        first = self.body[start]
        if first == _QUOTE:
            return self._string(start)
        if first not in _OPENING:
            return self._load(start, self.end(start))
        end = self._near_end(start)
        if end is not None:
            return self._load(start, end)
        return Array(self, start) if first == _OPEN_ARRAY else self._object(start, levels)

    def elements(self, start: int) -> Iterator[object]:
        """The elements of the array that starts here, as far as they can be read."""
        try:
            at = self._first(start, _CLOSE_ARRAY)
            while at is not None:
                yield self.value(at)
                at = self._following(self.end(at), _CLOSE_ARRAY)
        except (Malformed, PromptTooComplex) as stop:
            self.note(stop)

    def numbers(self, start: int, chars: int) -> str | None:
        """The head of the first array of numbers, joined by commas; `None` if none starts here."""
        if self.body[start] != _OPEN_ARRAY:
            return None
        position = self._next(start + 1)
        if self.body[position] == _OPEN_ARRAY:
            position = self._next(position + 1)
        if not DIGITS.match(self.body, position):
            return None
        end = min(position + 64 * chars + _WINDOW, len(self.body))
        text = head_of_numbers(self.body, position, end, chars)
        self.effort.spend(_ITEM_UNITS + 8 * len(text))
        return text

    def number(self, start: int) -> str | None:
        """The number that starts here, as it is written."""
        if not DIGITS.match(self.body, start):
            return None
        return self.body[start : self._word_end(start)].decode()

    def end(self, start: int) -> int:
        """Where the value that starts here ends."""
        if start in self._cuts:
            raise Cut
        try:
            return self._end(start)
        except Cut:
            self.effort.spend((len(self.body) - start) // 16)
            self._cuts.add(start)
            raise

    def _end(self, start: int) -> int:
        first = self.body[start]
        if first == _QUOTE:
            return self._ends.get(start) or self._string_end(start)
        if first in _OPENING:
            return self._ends.get(start) or self._container_end(start)
        return self._word_end(start)

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
            self.effort.spend(_LENIENT_UNITS)
            text = load_leniently(written + b'"')
        if not isinstance(text, str):
            raise Malformed
        return text

    def last_model(self) -> str | None:
        """The model, if it is among the last members of the body, which is whole.

        In JSON a quote without a backslash before it starts or ends a string, so `"model":` is a name; and
        it is one of the body's own members if the brackets behind it close nothing but the body.
        """
        tail = bytes(self.body[-_WINDOW:])
        for found in reversed(list(_MODEL.finditer(tail))[-8:]):
            brackets = _STRING.sub(b"", tail[found.end() :]).translate(None, _NO_BRACKETS)
            if len(brackets) <= 4_096 and _closes_all(brackets):
                return load_string(found[1])
        return None

    def parting(self, near: int, end: int) -> int:
        """Where a string may be parted, from `near` on and not behind `end`."""
        limit = min(end, near + _PARTING_BYTES)
        found = _PARTING.search(self.body, near, limit) if near < end else None
        if found is None and limit < end:
            raise Malformed
        return found.end() if found else end

    def _next(self, position: int) -> int:
        """The first place that holds no white space."""
        if position < len(self.body) and self.body[position] > 32:
            return position
        while True:
            found = _SPACE.match(self.body, position, position + _WINDOW)
            end = found.end() if found else position
            self.effort.spend(2 * (end - position))
            if end < position + _WINDOW:
                break
            position = end
        if end >= len(self.body):
            raise Cut
        return end

    def _check_end(self, position: int) -> None:
        try:
            self._next(position)
        except Cut:
            return
        raise Malformed

    def _members(self, start: int) -> Iterator[tuple[str, int]]:
        at = self._first(start, _CLOSE_OBJECT)
        while at is not None:
            name_end = self.end(at)
            colon = self._next(name_end)
            if self.body[at] != _QUOTE or self.body[colon] != _COLON:
                raise Malformed
            value = self._next(colon + 1)
            yield self._name(at, name_end), value
            at = self._following(self.end(value), _CLOSE_OBJECT)

    def _first(self, start: int, closing: int) -> int | None:
        """Where the first item between two brackets starts; `None` if there is none."""
        position = self._next(start + 1)
        if self.body[position] != closing:
            return position
        self._closed = position + 1
        return None

    def _following(self, end: int, closing: int) -> int | None:
        """Where the item after the one that ends at `end` starts."""
        self.effort.spend(_ITEM_UNITS)
        position = self._next(end)
        if self.body[position] == _COMMA:
            return self._next(position + 1)
        if self.body[position] != closing:
            raise Malformed
        self._closed = position + 1
        return None

    def _name(self, start: int, end: int) -> str:
        # Nobody asks for a longer one.
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
        self.effort.spend(len(written) + _LOAD_UNITS * values)
        try:
            return orjson.loads(written)
        except ValueError:
            self.effort.spend(_LENIENT_UNITS + 50 * len(written))
            return load_leniently(written)

    def _word_end(self, start: int) -> int:
        found = _WORD.match(self.body, start, start + _WINDOW)
        if found is None or found.end() == start + _WINDOW:
            raise Malformed
        self.effort.spend(2 * (found.end() - start))
        if found.end() == len(self.body):
            raise Cut
        return found.end()

    def _string_end(self, start: int) -> int:
        position = start + 1
        for _ in range(_TRY_QUOTES):
            end = self.body.find(b'"', position)
            if end < 0:
                raise Cut
            if self.body[end - 1] != _BACKSLASH or not self._is_escaped(position, end):
                break
            position = end + 1
            self.effort.spend(_QUOTE_UNITS)
        else:
            end = self._quoted_end(start, position)
        if end - start > self.limits.text_bytes:
            self.effort.spend((end - start) // 16)
            self._ends[start] = end + 1
        return end + 1

    def _quoted_end(self, start: int, position: int) -> int:
        """Where a string with many quotes in it ends; msgspec passes over them, piece by piece."""
        if start in self._reached:
            raise PromptTooComplex(_TOO_COMPLEX)
        while position < len(self.body):
            parting = self.parting(position + self.limits.window_bytes, len(self.body))
            escapes = self.body.count(b"\\", position, parting)
            try:
                self.effort.spend((parting - position) // 2 + _ESCAPE_UNITS * escapes)
            except PromptTooComplex:
                self._reached[start] = position
                raise
            written = b'"%b' % bytes(self.body[position:parting])
            passed = _passed(written)
            if passed is not None:
                return position + written.rindex(b'"', 0, passed) - 1
            position = parting
        raise Cut

    def _is_escaped(self, start: int, quote: int) -> bool:
        """Whether an odd number of backslashes stands before the quote."""
        for size in (16, 1_024, _WINDOW):
            before = self.body[max(start, quote - size) : quote]
            count = len(before) - len(before.rstrip(b"\\"))
            if count < size:
                return count % 2 == 1
            self.effort.spend(size)
        raise Malformed

    def _near_end(self, start: int) -> int | None:
        # Kept apart from `_ends`, which of a broken value may know what msgspec does not.
        if start not in self._near_ends:
            self._near_ends[start] = self._skipped(start, self.limits.near_bytes)
        return self._near_ends[start]

    def _container_end(self, start: int) -> int:
        rest = len(self.body) - start
        end = self._skipped(start, rest) if rest <= _LITTLE_BYTES else self._near_end(start)
        end = end or self._hop(start, _TRY_HOPS)
        if end is None and rest <= self.limits.skip_bytes:
            end = self._skipped_at_once(start, rest)
        if end is None and self.body[start] == _OPEN_ARRAY and self._is_dense(start):
            end = self._stride(start)
        if end is None:
            end = self._hop(start, len(self.body)) or len(self.body)
        self._ends[start] = end
        return end

    def _is_dense(self, start: int) -> bool:
        """Whether strings are so short that msgspec passes over them at less than a hop costs."""
        near_bytes = self.limits.near_bytes
        return self.body.count(b'"', start, start + near_bytes) > near_bytes // 64

    def _stride(self, start: int) -> int:
        """Where an array of small elements ends, such as that of many tools."""
        at = self._first(start, _CLOSE_ARRAY)
        while at is not None:
            is_open = self.body[at] in _OPENING
            end = (self._near_end(at) or self._hop(at, len(self.body))) if is_open else self.end(at)
            at = self._following(end or len(self.body), _CLOSE_ARRAY)
        return self._closed

    def _skipped(self, start: int, limit: int) -> int | None:
        """Where msgspec says that the value ends; `None` if that is not within `limit` bytes."""
        limit = min(start + limit, len(self.body))
        passed = _passed(self._view[start:limit])
        if passed is None:
            self.effort.spend(_SKIP_UNITS * (limit - start))
            return None
        self.effort.spend(self._skip_units(start, start + passed))
        return start + passed

    def _skipped_at_once(self, start: int, size: int) -> int | None:
        """Likewise of the whole rest, if that may be spent; counts brackets only where they decide."""
        units = _SKIP_UNITS * size
        if not self.effort.allows(units):
            units = self._skip_units(start, start + size)
        if not self.effort.allows(units):
            return None
        self.effort.spend(units)
        passed = _passed(self._view[start : start + size])
        return None if passed is None else start + passed

    def _skip_units(self, start: int, end: int) -> int:
        nested = self.body.count(b"[", start, end) + self.body.count(b"{", start, end)
        return _FEW_UNITS * (end - start) + _NESTED_UNITS * nested

    def _hop(self, start: int, hops: int) -> int | None:
        """Where the array or object ends, found from string to string; `None` after `hops` of them."""
        body, find, text_bytes = self.body, self.body.find, self.limits.text_bytes
        position, depth = start, 0
        for _ in range(hops):
            quote = find(b'"', position)
            if not 0 < quote - position <= 64:
                depth, end = self._pass(position, quote if quote >= 0 else len(body), depth)
                if end is not None:
                    return end
                if quote < 0:
                    raise Cut
            elif (between := bytes(body[position:quote])) not in _SEPARATORS:
                brackets = between.translate(None, _NO_BRACKETS)
                self.effort.spend(_HOP_UNITS + _BRACKET_UNITS * len(brackets))
                change, lowest = _depths(brackets)
                if depth + lowest <= 0:
                    return position + _closing(between, depth)
                depth += change
            self.effort.spend(_HOP_UNITS)
            position = find(b'"', quote + 1) + 1
            if position - quote > text_bytes or position < 2 or body[position - 2] == _BACKSLASH:
                position = self.end(quote)
        return None

    def _pass(self, start: int, end: int, depth: int) -> tuple[int, int | None]:
        """Counts brackets where there are no strings: the depth behind, and where it got to nothing."""
        for at in range(start, end, _WINDOW):
            limit = min(at + _WINDOW, end)
            self.effort.spend((limit - at) // 4)
            if all(self.body.find(bracket, at, limit) < 0 for bracket in _BRACKETS):
                continue
            self.effort.spend(limit - at)
            for found in _BRACKET.finditer(self.body, at, limit):
                self.effort.spend(_ALONE_UNITS)
                depth += 1 if self.body[found.start()] in _OPENING else -1
                if depth == 0:
                    return 0, found.end()
        return depth, None


def _passed(written: bytes | bytearray | memoryview) -> int | None:
    """How long the value is that `written` starts with, the white space behind it included."""
    try:
        _SKIP.decode(written)
    except RecursionError:
        return None
    except ValueError as error:
        found = _TRAILING.search(str(error))
        # It counts from one, and names what stands behind the value.
        return int(found[1]) - 1 if found else None
    return len(written)


def head_of_numbers(body: bytes | bytearray | Raw, start: int, end: int, chars: int) -> str:
    """The first `chars` characters of the numbers from `start` on, without white space. O(chars)."""
    size = 4 * chars + 64
    while True:
        written = _NUMBERS.match(body, start, min(start + size, end))
        text = written[0].translate(None, b" \t\r\n").strip(b",").decode() if written else ""
        if written is None or written.end() < start + size or len(text) >= chars:
            return text[:chars]
        size *= 4


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


# Few and short: what stands between the strings of a body looks much the same all over.
@lru_cache(maxsize=256)
def _depths(brackets: bytes) -> tuple[int, int]:
    """By how much brackets change the depth, and how far down they go on the way."""
    depths = tuple(accumulate(1 if bracket in _OPENING else -1 for bracket in brackets))
    return (depths[-1], min(depths)) if depths else (0, 0)


def _closing(between: bytes, depth: int) -> int:
    """How far into `between` the depth gets to nothing."""
    changes = ((char in _OPENING) - (char in _CLOSING) for char in between)
    depths = accumulate(changes, initial=depth)
    return next(passed for passed, depth in enumerate(depths) if passed and depth == 0)


def _closes_all(brackets: bytes) -> bool:
    depth, lowest = _depths.__wrapped__(brackets[:-1])
    return brackets.endswith(b"}") and depth == 0 <= lowest
