"""Finds its way in large JSON and makes no object of what it passes over: where values begin and end.

Three things make it quick. A string is passed over by looking for the next quote, which `bytes.find` does at
10 GB/s. Between strings only brackets matter. And where very many short strings stand in a few bytes, msgspec
skips the whole value in C.

It checks no more than it needs to find its way: what it cannot understand the endpoint will judge.
"""

import re
from functools import lru_cache
from itertools import accumulate
from typing import Final

import msgspec
from msgspec import Raw

from extproc.errors import PromptTooComplex
from extproc.router.routing.prompt import json_effort as cost
from extproc.router.routing.prompt.json_effort import LIMITS, TOO_COMPLEX, Effort, ReadLimits

WINDOW: Final = 64 * 1024
QUOTE, _BACKSLASH, _COMMA, COLON = b'"\\,:'
OPEN_ARRAY, CLOSE_ARRAY, OPEN_OBJECT, CLOSE_OBJECT = b"[]{}"
OPENING: Final = frozenset(b"[{")
_CLOSING: Final = frozenset(b"]}")
_BRACKETS: Final = (b"[", b"]", b"{", b"}")
NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
# The most frequent bytes between two strings.
_SEPARATORS: Final = frozenset({b":", b",", b": ", b", "})

_TRY_HOPS: Final = 64
_TRY_QUOTES: Final = 64
_LITTLE_BYTES: Final = 128 * 1024
_PARTING_BYTES: Final = 4 * 1024

_SKIP: Final = msgspec.json.Decoder(Raw)
_TRAILING: Final = re.compile(r"trailing characters \(byte (\d+)\)")
_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_WORD: Final = re.compile(rb"[-+.\w]++")
_BRACKET: Final = re.compile(rb"[\[\]{}]")
# Where a string may be parted: behind twelve characters that start no escape, as two surrogates take up
# twelve; or before a character of several bytes, or an escape that is no second surrogate.
_PARTING: Final = re.compile(rb"[ !#-\[\]-~]{12}|[^\\](?=[\xc2-\xf4]|\\(?!u[dD][c-fC-F]))", re.DOTALL)


class Malformed(ValueError):
    """What stands here is no JSON, or none that a prompt would hold."""


class Cut(Malformed):
    """The body ends before the value does."""


class Walk:
    """Places in one body. May raise `Malformed`, `Cut` where the body ends early, and `PromptTooComplex`."""

    def __init__(self, body: bytes | bytearray, limits: ReadLimits = LIMITS) -> None:
        self.body = body
        self.limits = limits
        self.effort = Effort(limits.effort)
        self._view = memoryview(body)
        # Behind the last container of which every item was taken.
        self._closed = 0
        # Of long values: where they end, or how far that was looked for. Taking the items of a broken value
        # may find another end, which is not noted: what is read must not depend on what was read before.
        self._ends: dict[int, int] = {}
        self._cuts: set[int] = set()
        self._near_ends: dict[int, int | None] = {}
        self._reached: dict[int, int] = {}

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
        if first == QUOTE:
            return self._ends.get(start) or self._string_end(start)
        if first in OPENING:
            return self._ends.get(start) or self._container_end(start)
        return self._word_end(start)

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
            found = _SPACE.match(self.body, position, position + WINDOW)
            end = found.end() if found else position
            self.effort.spend(2 * (end - position))
            if end < position + WINDOW:
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

    def _first(self, start: int, closing: int) -> int | None:
        """Where the first item between two brackets starts; `None` if there is none."""
        position = self._next(start + 1)
        if self.body[position] != closing:
            return position
        self._closed = position + 1
        return None

    def _following(self, end: int, closing: int) -> int | None:
        """Where the item after the one that ends at `end` starts."""
        self.effort.spend(cost.ITEM_UNITS)
        position = self._next(end)
        if self.body[position] == _COMMA:
            return self._next(position + 1)
        if self.body[position] != closing:
            raise Malformed
        self._closed = position + 1
        return None

    def _word_end(self, start: int) -> int:
        found = _WORD.match(self.body, start, start + WINDOW)
        if found is None or found.end() == start + WINDOW:
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
            self.effort.spend(cost.QUOTE_UNITS)
        else:
            end = self._quoted_end(start, position)
        if end - start > self.limits.text_bytes:
            self.effort.spend((end - start) // 16)
            self._ends[start] = end + 1
        return end + 1

    def _quoted_end(self, start: int, position: int) -> int:
        """Where a string with many quotes in it ends; msgspec passes over them, piece by piece."""
        if start in self._reached:
            raise PromptTooComplex(TOO_COMPLEX)
        while position < len(self.body):
            parting = self.parting(position + self.limits.window_bytes, len(self.body))
            escapes = self.body.count(b"\\", position, parting)
            try:
                self.effort.spend((parting - position) // 2 + cost.ESCAPE_UNITS * escapes)
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
        for size in (16, 1_024, WINDOW):
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
        if end is None and self.body[start] == OPEN_ARRAY and self._is_dense(start):
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
        at = self._first(start, CLOSE_ARRAY)
        while at is not None:
            is_open = self.body[at] in OPENING
            end = (self._near_end(at) or self._hop(at, len(self.body))) if is_open else self.end(at)
            at = self._following(end or len(self.body), CLOSE_ARRAY)
        return self._closed

    def _skipped(self, start: int, limit: int) -> int | None:
        """Where msgspec says that the value ends; `None` if that is not within `limit` bytes."""
        limit = min(start + limit, len(self.body))
        passed = _passed(self._view[start:limit])
        if passed is None:
            self.effort.spend(cost.SKIP_UNITS * (limit - start))
            return None
        self.effort.spend(self._skip_units(start, start + passed))
        return start + passed

    def _skipped_at_once(self, start: int, size: int) -> int | None:
        """Likewise of the whole rest, if that may be spent; counts brackets only where they decide."""
        units = cost.SKIP_UNITS * size
        if not self.effort.allows(units):
            units = self._skip_units(start, start + size)
        if not self.effort.allows(units):
            return None
        self.effort.spend(units)
        passed = _passed(self._view[start : start + size])
        return None if passed is None else start + passed

    def _skip_units(self, start: int, end: int) -> int:
        nested = self.body.count(b"[", start, end) + self.body.count(b"{", start, end)
        return cost.FEW_UNITS * (end - start) + cost.NESTED_UNITS * nested

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
                brackets = between.translate(None, NO_BRACKETS)
                self.effort.spend(cost.HOP_UNITS + cost.BRACKET_UNITS * len(brackets))
                change, lowest = depths(brackets)
                if depth + lowest <= 0:
                    return position + _closing(between, depth)
                depth += change
            self.effort.spend(cost.HOP_UNITS)
            position = find(b'"', quote + 1) + 1
            if position - quote > text_bytes or position < 2 or body[position - 2] == _BACKSLASH:
                position = self.end(quote)
        return None

    def _pass(self, start: int, end: int, depth: int) -> tuple[int, int | None]:
        """Counts brackets where there are no strings: the depth behind, and where it got to nothing."""
        for at in range(start, end, WINDOW):
            limit = min(at + WINDOW, end)
            self.effort.spend((limit - at) // 4)
            if all(self.body.find(bracket, at, limit) < 0 for bracket in _BRACKETS):
                continue
            self.effort.spend(limit - at)
            for found in _BRACKET.finditer(self.body, at, limit):
                self.effort.spend(cost.ALONE_UNITS)
                depth += 1 if self.body[found.start()] in OPENING else -1
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


# Few and short: what stands between the strings of a body looks much the same all over.
@lru_cache(maxsize=256)
def depths(brackets: bytes) -> tuple[int, int]:
    """By how much brackets change the depth, and how far down they go on the way."""
    depths = tuple(accumulate(1 if bracket in OPENING else -1 for bracket in brackets))
    return (depths[-1], min(depths)) if depths else (0, 0)


def _closing(between: bytes, depth: int) -> int:
    """How far into `between` the depth gets to nothing."""
    changes = ((char in OPENING) - (char in _CLOSING) for char in between)
    depths = accumulate(changes, initial=depth)
    return next(passed for passed, depth in enumerate(depths) if passed and depth == 0)
