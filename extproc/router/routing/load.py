"""The load book: how many requests are in flight on each endpoint of a pool.

The only mutable state of a pool beside its current snapshot. Counting, and finding the least
loaded, are O(1) whatever the number of endpoints: members stand in levels, one level per number in
flight.

Our own requests are counted one by one; what other gateways have there comes as sums, see `share`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import chain, islice
from random import Random
from typing import Final

# Half of a pool is closed at most, so this many draws that all meet a closed one are rare.
_DRAWS: Final = 8
# Endpoints with more in flight stand in one level: a peer may claim any number, and each has a list.
_HIGHEST: Final = 4_096


class LoadBook:
    """Counts requests in flight by endpoint name: ours, and those of other gateways.

    Members are the endpoints that may be picked. One that leaves keeps its count until its requests
    end, and finds it again if it comes back; `total` counts members only. `on_less` is called each
    time that fewer are in flight somewhere, whosever they were.
    """

    __slots__ = ("_elsewhere", "_in_flight", "_levels", "_lowest", "_places", "on_less", "total")

    def __init__(self) -> None:
        self.total = 0  # of members only
        self.on_less: Callable[[], None] | None = None
        self._in_flight: dict[str, int] = {}
        self._elsewhere: dict[str, int] = {}  # so many of them are other gateways'
        self._levels: list[list[str]] = [[]]
        self._places: dict[str, int] = {}
        self._lowest = 0

    def in_flight(self, name: str) -> int:
        return self._in_flight.get(name, 0)

    def counts(self) -> dict[str, int]:
        """In flight by name: every member, and every past member that still has requests."""
        return dict.fromkeys(self._places, 0) | self._in_flight

    def ours(self) -> dict[str, int]:
        """As `counts`, without what other gateways have in flight."""
        elsewhere = self._elsewhere
        return {name: count - elsewhere.get(name, 0) for name, count in self.counts().items()}

    def elsewhere(self) -> dict[str, int]:
        """What other gateways have in flight, where anything is: of members, and of who was one."""
        return dict(self._elsewhere)

    def set_members(self, names: Iterable[str]) -> None:
        wanted = dict.fromkeys(names)
        for name in [name for name in self._places if name not in wanted]:
            self._leave_level(name, self.in_flight(name))
            self.total -= self.in_flight(name)
        for name in [name for name in wanted if name not in self._places]:
            self._enter_level(name, self.in_flight(name))
            self.total += self.in_flight(name)
        self._settle()

    def acquire(self, name: str) -> None:
        self._move(name, 1)

    def release(self, name: str) -> None:
        """Counts one request less; releasing what was never taken is the caller's bug (`KeyError`)."""
        if self.in_flight(name) <= self._elsewhere.get(name, 0):
            raise KeyError(name)
        self._move(name, -1)

    def set_peer_count(self, name: str, count: int) -> None:
        """Takes how many requests other gateways have in flight on `name`, all of them together."""
        step = count - self._elsewhere.get(name, 0)
        if not step:
            return
        if count:
            self._elsewhere[name] = count
        else:
            del self._elsewhere[name]
        self._move(name, step)

    def least_loaded(self, rng: Random, closed: Collection[str] = ()) -> Iterator[str]:
        """Yields every member but the `closed`, fewest in flight first, ties in random order."""
        for level in filter(None, islice(self._levels, self._lowest, None)):
            if closed:
                yield from _without(level, closed, rng)
                continue
            offset = int(rng.random() * len(level))
            yield from level[offset:]
            yield from level[:offset]

    def _move(self, name: str, step: int) -> None:
        before = self._in_flight.get(name, 0)
        after = before + step
        if after:
            self._in_flight[name] = after
        else:
            del self._in_flight[name]
        if name in self._places:
            self._leave_level(name, before)
            self._enter_level(name, after)
            self.total += step
            if not self._levels[self._lowest]:
                self._settle()
            while step < 0 and not self._levels[-1]:
                self._levels.pop()  # what a burst left
        if step < 0 and self.on_less is not None:
            self.on_less()

    def _enter_level(self, name: str, level: int) -> None:
        levels, level = self._levels, min(level, _HIGHEST)
        while level >= len(levels):
            levels.append([])
        names = levels[level]
        self._places[name] = len(names)
        names.append(name)
        self._lowest = min(self._lowest, level)

    def _leave_level(self, name: str, level: int) -> None:
        # The last one takes the leaver's place, so nothing shifts.
        names = self._levels[min(level, _HIGHEST)]
        place = self._places.pop(name)
        last = names.pop()
        if last != name:
            names[place] = last
            self._places[last] = place

    def _settle(self) -> None:
        while self._lowest < len(self._levels) - 1 and not self._levels[self._lowest]:
            self._lowest += 1


def _without(level: list[str], closed: Collection[str], rng: Random) -> Iterator[str]:
    """Yields the names of a level but the closed, from one of them on, each with the same chance.

    Not from any place on, with gaps: who stands behind a gap would be first twice as often.
    """
    for _ in range(_DRAWS):
        offset = int(rng.random() * len(level))
        if level[offset] not in closed:
            names: Iterable[str] = chain(islice(level, offset, None), islice(level, offset))
            return (name for name in names if name not in closed)
    names = [name for name in level if name not in closed]
    return iter(rng.sample(names, len(names)))
