"""Two texts that begin alike: what stands where they part, and how much of the rest is equal again. Pure."""

# The rules, in their order. The first that holds names the kind, and says where it begins:
#
# 1. The turns have the same lines in another order; or there the same JSON, its keys in another order.
# 2. One text goes on behind what the other has more: a block was inserted, or taken out.
# 3. Only white space differs.
# 4. A medium, by its digest; then a token of the same kind in both, at the same place: a UUID, a time,
#    a date, hexadecimal digits, an id, a number.
# 5. As 2, of a few bytes: a marker that moves. Before 4, a number of one digit more were one.
# 6. Something else, from the begin of its word.
#
# A place is that of the whole token, not of the first digit that differs: so 12:05 and 12:31 part
# where 12:05 and 13:40 do.

import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Final, NamedTuple

from extproc.router.routing.prompt.turns import TURN_START, TURN_TEXT


class PartingKind(StrEnum):
    """What stands where prompts part."""

    TIME = "time"
    DATE = "date"
    UUID = "uuid"
    HEX = "hex"
    ID = "id"
    NUMBER = "number"
    KEY_ORDER = "key_order"
    ORDER = "order"
    WHITE_SPACE = "white_space"
    INSERTED = "inserted"
    MEDIUM = "medium"
    OTHER = "other"


class Difference(NamedTuple):
    """It begins at `start` in both texts; they go on at `left` and at `right`."""

    kind: PartingKind
    start: int
    left: int
    right: int


_TURN: Final = TURN_START.encode()
_DIGEST: Final = TURN_TEXT.encode()  # a medium's digest begins with the same mark
_WEEKDAY: Final = rb"(?:Mon|Tue(?:s)?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_MONTH: Final = (
    rb"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?"
    rb"|Sep(?:t(?:ember)?)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\.?"
)
_DAY: Final = rb"\d{1,2}(?:st|nd|rd|th)?\.?"
_DATE: Final = (
    # No four numbers: these are an IP address.
    rb"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|(?<!\d\.)\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}(?!\.\d)"
    rb"|(?:%b,? +)?(?:%b (?:of )?%b|%b %b)(?:,? \d{4})?|%b \d{4}|%b)"
    % (_WEEKDAY, _DAY, _MONTH, _MONTH, _DAY, _MONTH, _WEEKDAY)
)
_HALF: Final = rb" ?[AaPp]\.?[Mm]\b\.?"
_CLOCK: Final = (
    rb"(?:\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?:%b)?(?:Z|[+-]\d\d:?\d\d| ?UTC| ?GMT)?|\d{1,2}%b)"
    % (_HALF, _HALF)
)
_ALONE: Final = rb"(?<![0-9A-Za-z])(?:%b)(?![0-9A-Za-z])"
_TOKENS: Final = (
    (PartingKind.UUID, re.compile(_ALONE % rb"[\da-fA-F]{8}(?:-[\da-fA-F]{4}){3}-[\da-fA-F]{12}")),
    (
        PartingKind.TIME,
        re.compile(
            _ALONE
            % (rb"(?:(?:%b(?:T|,? +(?:at +)?))?%b(?: \d{4})?|\d{8}T\d{4,6}Z?)" % (_DATE, _CLOCK))
        ),
    ),
    (PartingKind.DATE, re.compile(_ALONE % _DATE)),
    (
        PartingKind.HEX,
        # git cuts a hash to seven digits; of so few one is 0 to 9, or it may be a word.
        re.compile(_ALONE % rb"(?:0x)?(?=\d*[a-fA-F])(?:[\da-fA-F]{8,}|(?=[a-f]*\d)[\da-f]{7})"),
    ),
    (
        PartingKind.ID,
        # In base64 there are other signs, too.
        re.compile(
            _ALONE % rb"(?:(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[\dA-Za-z]{10,}"
            rb"|(?=[\w+/=-]*\d)(?=[\w+/=-]*[a-z])(?=[\w+/=-]*[A-Z])[\w+/=-]{16,})"
        ),
    ),
    (PartingKind.NUMBER, re.compile(rb"\d+(?:[.,]\d+)*")),
)
_WORD: Final = re.compile(rb"[^\s\x1e\x1f]*\Z")
# A token is looked for so far before and behind the place.
_AROUND: Final = 80
# Both go on alike for so long where they are taken to be the same text again.
_ANCHOR: Final = 32
_LEAST_INSERTED: Final = 16
# So far an anchor is looked for, in such steps.
_FAR, _STEP = 4_096, 16
_TRIES: Final = 200
_JSON: Final = json.JSONDecoder()
_MOST_BRACES: Final = 16


def common_bytes(left: bytes, right: bytes, at: int = 0, beside: int = 0) -> int:
    """How many bytes are equal from `at` in the one, `beside` in the other. O(n), by halves."""
    most = min(len(left) - at, len(right) - beside)
    return bisect_left(
        range(1, most + 1),
        True,
        key=lambda size: left[at : at + size] != right[beside : beside + size],
    )


def turn_end(text: bytes, at: int) -> int:
    end = text.find(_TURN, at)
    return len(text) if end < 0 else end


def differ(left: bytes, right: bytes, at: int, start: int) -> Difference:
    """Names what stands `at` the place where they part, in the turn whose text begins at `start`."""
    for found in _rules(left, right, at, start):
        if found is not None:
            return found
    word = _WORD.search(left, max(start, at - _AROUND), at)
    return Difference(PartingKind.OTHER, at if word is None else word.start(), at, at)


def equal_bytes(left: bytes, right: bytes, at: int, beside: int) -> int:
    """How much is equal again behind two places, what differs in between left out.

    A text is found again within four kilobytes, so this costs a millisecond or two at most.
    """
    found = 0
    for _ in range(_TRIES):
        run = common_bytes(left, right, at, beside)
        found += run * (run >= _ANCHOR)
        at, beside = at + run, beside + run
        for start in range(at, min(at + _FAR, len(left) - _ANCHOR + 1), _STEP):
            place = right.find(left[start : start + _ANCHOR], beside, beside + _FAR)
            if place >= 0:
                at, beside = start, place
                break
        else:
            break
    return found


def _rules(left: bytes, right: bytes, at: int, start: int) -> Iterator[Difference | None]:
    yield _reordered(left, right, at, start)
    yield _inserted(left, right, at, start)
    yield _spaced(left, right, at, start)
    mark = left.rfind(_DIGEST, max(start, at - _AROUND), at)
    if mark >= 0:
        yield Difference(PartingKind.MEDIUM, mark, at, at)
    for kind, pattern in _TOKENS:
        one, two = (_spanning(pattern, text, at, start) for text in (left, right))
        if one and two and one[0] == two[0]:
            yield Difference(kind, one[0], one[1], two[1])
    yield _inserted(left, right, at, start, least=1)


def _reordered(left: bytes, right: bytes, at: int, start: int) -> Difference | None:
    ends = turn_end(left, at), turn_end(right, at)
    lines = [text[start:end].split(b"\n") for text, end in zip((left, right), ends, strict=True)]
    if sorted(lines[0]) == sorted(lines[1]):
        return Difference(PartingKind.ORDER, max(start, left.rfind(b"\n", start, at) + 1), *ends)
    brace = at
    for _ in range(_MOST_BRACES):
        brace = left.rfind(b"{", start, brace)
        if brace < 0:
            break
        one, two = (_object(text[brace:end]) for text, end in zip((left, right), ends, strict=True))
        # One that ends before the place is the same in both.
        if one and two and one[0] == two[0] and brace + one[1] > at:
            return Difference(PartingKind.KEY_ORDER, brace, brace + one[1], brace + two[1])
    return None


def _object(text: bytes) -> tuple[Any, int] | None:
    """The value that a text begins with, and its bytes; `None` for one that is cut, or no JSON."""
    said = text.decode("utf-8", "surrogateescape")
    try:
        value, end = _JSON.raw_decode(said)
    except (ValueError, RecursionError):
        return None
    return value, len(said[:end].encode("utf-8", "surrogateescape"))


def _inserted(
    left: bytes, right: bytes, at: int, start: int, least: int = _LEAST_INSERTED
) -> Difference | None:
    for one, two, is_right in ((left, right, True), (right, left, False)):
        needle = one[at : at + 2 * _ANCHOR]
        place = two.find(needle, at + least) if len(needle) == 2 * _ANCHOR else -1
        if place >= 0:
            # What is between may as well begin earlier, where it ends as what stands before it does.
            size, begin = place - at, at
            while begin > start and one[begin - 1 : begin] == two[begin + size - 1 : begin + size]:
                begin -= 1
                if begin == start or one[begin - 1 : begin] == b"\n":
                    return Difference(
                        PartingKind.INSERTED, begin, *((at, place) if is_right else (place, at))
                    )
            return Difference(PartingKind.INSERTED, at, *((at, place) if is_right else (place, at)))
    return None


def _spaced(left: bytes, right: bytes, at: int, start: int) -> Difference | None:
    if not (left[at : at + 1].isspace() or right[at : at + 1].isspace()):
        return None
    left_at, right_at = (len(text) - len(text[at:].lstrip()) for text in (left, right))
    if common_bytes(left, right, left_at, right_at) < _STEP:
        return None
    begin = start + len(left[start:at].rstrip())
    return Difference(PartingKind.WHITE_SPACE, begin, left_at, right_at)


def _spanning(
    pattern: re.Pattern[bytes], text: bytes, at: int, start: int
) -> tuple[int, int] | None:
    end = min(turn_end(text, at), at + _AROUND)
    for found in pattern.finditer(text, max(start, at - _AROUND), end):
        if found.start() <= at <= found.end():
            return found.span()
    return None
