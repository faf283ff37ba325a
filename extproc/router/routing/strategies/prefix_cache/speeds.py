"""How much slower than its pool each endpoint is, by what the engines say of their prefills. Pure.

An engine counts the requests that it prefilled and the time from each one's first step to its first
token. What that should have taken follows from the constants and the tokens that were not cached.
The quotient of the two is no speed: it has the steps of others in it, and constants may be wrong.
But it is the same for all endpoints of a pool that are alike. So each is divided by the median.
"""

from collections.abc import Collection
from statistics import median_low
from typing import Final

from msgspec import Struct

# So many requests count, not so many seconds: a slow endpoint gets few, and must not become unknown.
_REQUESTS: Final = 300.0
_FEWEST_REQUESTS: Final = 50
# Endpoints of one kind differ by less, measured so.
_ALIKE: Final = 1.6
_MOST: Final = 8.0


class Prefills(Struct, frozen=True):
    """What an engine prefilled between two looks at its metrics: requests, tokens not cached, milliseconds."""

    requests: float
    tokens: float
    ms: float


class _Sums:
    __slots__ = ("expected_ms", "measured_ms", "requests")

    def __init__(self) -> None:
        self.requests = self.expected_ms = self.measured_ms = 0.0


class Speeds:
    """Slowness by endpoint, 1 for the median (of two, the faster); only of those that differ from it by much."""

    def __init__(self) -> None:
        self.slow: dict[str, float] = {}
        self._sums: dict[str, _Sums] = {}

    def follow(self, names: Collection[str]) -> None:
        self._sums = {name: self._sums.get(name) or _Sums() for name in names}
        self.slow = {name: factor for name, factor in self.slow.items() if name in names}

    def add(self, name: str, prefills: Prefills, expected_ms: float) -> None:
        """Adds what an endpoint did, and what it should have taken for it."""
        sums = self._sums[name]
        kept = _REQUESTS / (_REQUESTS + prefills.requests)
        sums.requests = kept * sums.requests + prefills.requests
        sums.measured_ms = kept * sums.measured_ms + prefills.ms
        sums.expected_ms = kept * sums.expected_ms + expected_ms
        times = {
            each: sums.measured_ms / sums.expected_ms
            for each, sums in self._sums.items()
            if sums.requests >= _FEWEST_REQUESTS
        }
        middle = median_low(times.values()) if times else 0.0
        factors = {each: ms / middle for each, ms in times.items()} if middle else {}
        self.slow = {
            each: min(max(factor, 1 / _MOST), _MOST)
            for each, factor in factors.items()
            if not 1 / _ALIKE < factor < _ALIKE
        }
