"""What a strategy sees, and what it answers."""

from collections.abc import Iterator
from enum import StrEnum
from random import Random
from typing import Protocol

from msgspec import Struct

from extproc.routing.load import LoadBook
from extproc.routing.ring import Ring


class Reason(StrEnum):
    """Why an endpoint was picked; a metric label and part of the decision metadata."""

    TURN = "turn"  # its turn (round robin) or its lot (random)
    LEAST_LOAD = "least_load"  # fewest requests in flight
    HOME = "home"  # the first endpoint of the prefix's walk
    SPILL = "spill"  # home was over its bound: the next one of the walk that was not
    NO_PREFIX = "no_prefix"  # nothing to hash: least load


class Choice(Struct, frozen=True):
    """Names in order of preference, never empty: the pick, then the fallbacks for a retry."""

    names: tuple[str, ...]
    reason: Reason


class Candidates:
    """The endpoints that may take one request: a pool's ready ones, or the eligible ones among them.

    `eligible` of `None` means all. A whole pool's total and least loaded cost O(1), those of k eligible
    endpoints O(k log k).
    """

    __slots__ = ("_all_names", "_book", "_eligible", "_ring", "in_flight")

    def __init__(
        self, ring: Ring, book: LoadBook, names: tuple[str, ...], eligible: frozenset[str] | None
    ) -> None:
        self._ring = ring
        self._book = book
        self._all_names = names
        self._eligible = eligible
        self.in_flight = book.in_flight

    def __len__(self) -> int:
        return len(self._all_names if self._eligible is None else self._eligible)

    @property
    def names(self) -> tuple[str, ...]:
        """In the pool's own order."""
        if self._eligible is None:
            return self._all_names
        return tuple(name for name in self._all_names if name in self._eligible)

    @property
    def total(self) -> int:
        """In flight on all of them together."""
        if self._eligible is None:
            return self._book.total
        return sum(map(self._book.in_flight, self._eligible))

    def walk(self, key: int) -> Iterator[str]:
        eligible, names = self._eligible, self._ring.walk(key)
        return names if eligible is None else (name for name in names if name in eligible)

    def least_loaded(self, rng: Random) -> Iterator[str]:
        """Fewest in flight first, ties in random order."""
        if self._eligible is None:
            return self._book.least_loaded(rng)
        # Not the book's order with gaps: who stands behind a gap would win the ties of all in it.
        shuffled = rng.sample(sorted(self._eligible), len(self._eligible))
        return iter(sorted(shuffled, key=self.in_flight))


class Strategy(Protocol):
    """A placement policy. May keep state of its own (a counter), never a load: that is the book's."""

    name: str

    def choose(self, key: int | None, candidates: Candidates, count: int) -> Choice:
        """Returns up to `count` of the candidates (there is at least one), best first.

        `key` is the request's routing key, `None` where it has no prefix.
        """
        ...
