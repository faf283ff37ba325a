"""What reading a large body may take, in units of about a nanosecond, and what each thing costs at most.

The units are measured; `make bench` (hostile) shows the sum for the worst bodies we know. Also here: the slow
reader, which takes what the quick one refuses, as vLLM does.
"""

import json
from dataclasses import dataclass
from math import isfinite
from typing import Final

import orjson

from extproc.errors import PromptTooComplex

SKIP_UNITS: Final = 4  # a byte that msgspec skips: brackets, 480 deep
FEW_UNITS: Final = 2  # a byte that msgspec skips and whose brackets are counted, without them
NESTED_UNITS: Final = 12  # an array or object that msgspec skips
LOAD_UNITS: Final = 100  # a value that becomes an object
ESCAPE_UNITS: Final = 4  # an escape in a string that msgspec skips
HOP_UNITS: Final = 400  # a string passed over, or brackets before it
QUOTE_UNITS: Final = 450  # an escaped quote
BRACKET_UNITS: Final = 100  # a bracket before a string
ALONE_UNITS: Final = 250  # a bracket in a long stretch without strings
LENIENT_UNITS: Final = 10_000  # a value that only Python's own reader takes
ITEM_UNITS: Final = 4_000  # a member or an element that is looked at

TOO_COMPLEX: Final = "the body is too large and too complex to be read for routing"


@dataclass(frozen=True, slots=True)
class ReadLimits:
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


LIMITS: Final = ReadLimits()


class Effort:
    """Counts what reading takes, in units of about a nanosecond."""

    __slots__ = ("limit", "spent")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.spent = 0

    def keep(self, reserve: int) -> None:
        self.limit = max(self.limit, self.spent + reserve)

    def allows(self, units: int) -> bool:
        return self.spent + units <= self.limit

    def spend(self, units: int) -> None:
        """Raises `PromptTooComplex` when there is nothing left."""
        self.spent += units
        if self.spent > self.limit:
            raise PromptTooComplex(TOO_COMPLEX)


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
