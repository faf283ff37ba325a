"""A text that a regular expression matches, drawn at random; with bounded effort whatever it says.

Python's own parser reads the expression. What looks around or back is refused: no text follows from it
step by step.
"""

import re
from collections.abc import Sequence
from random import Random
from typing import Any

from extproc.vllm.http.refusals import Refusal

MOST_CHARACTERS = 4096
# Repetitions beyond the fewest, where an expression allows any number.
EXTRA_REPEATS = 3
LONGEST_PATTERN = 10_000
PRINTABLE = tuple(map(chr, range(0x20, 0x7F)))
# Letters first, since `.` and `[^x]` shall read as text.
ANY = tuple("abcdefghijklmnopqrstuvwxyz0123456789 ABCDEFGHIJKLMNOPQRSTUVWXYZ") + PRINTABLE[1:16]
CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}


def write_match(pattern: str, random: Random) -> str:
    """Returns a text that the whole pattern matches; raises `Refusal` for one that is none, or too much."""
    try:
        if len(pattern) > LONGEST_PATTERN:
            raise Refusal("Grammar error: the regex is too large")
        parsed = _parse(pattern)
        # Never matched against the text: an expression can be made so that this takes forever.
        return "".join(_Writer(random).write(parsed))
    except (re.error, RecursionError, OverflowError) as fault:
        raise Refusal(f'Grammar error: invalid regex "{pattern}": {fault}') from None


def _parse(pattern: str) -> Any:
    parser: Any = vars(re)["_parser"]
    return parser.parse(pattern)


class _Writer:
    """Walks one parsed pattern. Every step counts, so that nested repeats end."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._left = MOST_CHARACTERS
        self._classes: dict[int, Sequence[str]] = {}

    def write(self, items: Any) -> list[str]:
        return [text for code, value in items for text in self._write_one(str(code), value)]

    def _write_one(self, code: str, value: Any) -> Sequence[str]:
        self._left -= 1
        if self._left < 0:
            raise Refusal("Grammar error: the regex matches no short text")
        if code in {"LITERAL", "NOT_LITERAL", "ANY", "IN"}:
            return [self._random.choice(self._list_characters(code, value))]
        if code in {"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"}:
            return self._repeat(*value)
        if code == "SUBPATTERN":
            return self.write(value[3])
        if code == "ATOMIC_GROUP":
            return self.write(value)
        if code == "BRANCH":
            return self.write(self._random.choice(value[1]))
        if code == "AT":
            return ()
        raise Refusal(f"Grammar error: {code.lower()} in a regex is not supported")

    def _repeat(self, fewest: int, most: int, items: Any) -> list[str]:
        times = self._random.randint(fewest, min(most, fewest + EXTRA_REPEATS))
        if times > self._left:
            raise Refusal("Grammar error: the regex matches no short text")
        return [text for _ in range(times) for text in self.write(items)]

    def _list_characters(self, code: str, value: Any) -> Sequence[str]:
        if code == "LITERAL":
            return [chr(value)]
        if code == "ANY":
            return ANY
        if code == "NOT_LITERAL":
            return [one for one in ANY if ord(one) != value]
        if id(value) not in self._classes:
            self._classes[id(value)] = _list_class(value)
        return self._classes[id(value)]


def _list_class(items: Any) -> Sequence[str]:
    is_negated = str(items[0][0]) == "NEGATE"
    allowed: list[str] = []
    for code, value in items[1:] if is_negated else items:
        allowed += _list_member(str(code), value)
    barred = frozenset(allowed)
    found = [one for one in (*ANY, *PRINTABLE) if one not in barred] if is_negated else allowed
    if not found:
        raise Refusal("Grammar error: a character class in a regex is empty")
    return found


def _list_member(code: str, value: Any) -> Sequence[str]:
    if code == "RANGE":
        low, high = value
        return list(map(chr, range(low, min(high, low + 255) + 1)))
    if code == "CATEGORY":
        return [one for one in (*PRINTABLE, "\t", "\n") if re.match(CATEGORIES[str(value)], one)]
    return [chr(value)]
