"""The queue of one pool: requests that are held until there is room for them. Pure: the clock comes in.

Why. A full pool answers 429 at once and an empty one 503, though a request may end in a moment, and an
autoscaler may be starting the first endpoint just because somebody asks.

The rules:

- **Whom.** Who is refused because the pool is full, or has no ready endpoint at all. Not who asks for what no
  endpoint has.
- **Order.** Higher priorities first, and those of one priority as they came. Whoever leaves is admitted by
  `admission`, with what is in flight at that moment, as if it had just come. What admission cannot tell apart
  (one priority, client, adapter, subset) is a *lane*: where its first is refused, so are the others. Who is
  kept out by its client's share therefore stands in nobody's way.
- **Nobody is handed a place.** Whatever may have made room (an end here, or one that a peer tells of; new
  endpoints; another limit) only stirs the queue. Once for all of it the firsts are asked, until nobody is let
  in; each that is counts at once. So one end lets one in, and no end is lost.
- **Who comes** is asked behind those who wait, and not at all if one of its lane waits.
- **Bounds.** So many requests, and so many bytes of bodies, here or in the proxy that waits. Where there is
  no room, the last of the lowest priority makes way for a higher one; else who comes is refused, as without
  a queue.
- **Ends.** A request leaves once: let in; refused, when its time is over or the queue is shut; or its client
  left. One whose time is over is asked a last time, and so gets the refusal that holds now.
- **From zero.** When an empty pool gets endpoints, the gateway hears of them elsewhere, and perhaps later: an
  address that it does not know yet is answered 503. So the queue stays as it is for `settle_s`.

What was tried: a place handed on at each end loses places where a client leaves at the same moment, and gives
one away where a limit was lowered; a timer for each request keeps thousands that are long answered.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from extproc.router.budget import Budget
from extproc.router.histogram import Histogram

Later = Callable[[float, Callable[[], None]], object]

# How often the queue is looked at while somebody waits: times end, and an endpoint that was left out is back.
TICK_S: Final = 0.1
# Of a queue with many lanes only so many are asked at a time, and only so many requests looked at for them.
_ASKED: Final = 64
_LOOKED_AT: Final = 1_024
# So many leave in one turn of the loop: thousands would keep it from everybody else.
_AT_ONCE: Final = 32

STAY_BUCKETS: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
"""Seconds."""


class QueueEnd(StrEnum):
    SERVED = "served"  # let in
    REFUSED = "refused"  # its time was over, or the queue was shut
    ABORTED = "aborted"  # its client left, or its gateway


class Lane(NamedTuple):
    """What admission tells requests apart by."""

    priority: int = 0
    client: int = 0
    adapter: str = ""
    subset: tuple[str, ...] | None = None


class Waiter:
    """One request that is held. `ask` lets it try to leave; with `True` for the last time."""

    __slots__ = ("ask", "lane", "number", "since_s", "size_bytes", "until_s")

    def __init__(self, lane: Lane, size_bytes: int = 0) -> None:
        self.lane = lane
        self.size_bytes = size_bytes
        self.ask: Callable[[bool], None] = lambda _: None  # until whoever waits has said how it is asked
        self.number = 0
        self.since_s = self.until_s = 0.0


@dataclass(slots=True)
class QueueLimits:
    """How long requests are held, how many, and how long yet after the first endpoint has come."""

    wait_s: float = 30.0
    requests: int = 1_000
    settle_s: float = 1.0
    wait_s_by_objective: Mapping[str, float] = field(default_factory=dict)

    def longest_s(self, objective: str, ttl_s: float | None) -> float:
        """How long a request of `objective` may wait; its own `ttl_s` makes that shorter, never longer."""
        wait_s = self.wait_s_by_objective.get(objective, self.wait_s)
        return wait_s if ttl_s is None else min(wait_s, ttl_s)


class Queue:
    """Requests of one pool in the order in which they may leave.

    `budget` bounds the bytes of their bodies, and may be shared with other queues. `clock` counts seconds;
    `later` calls something after so many of them, with 0 when whoever calls now is done.
    """

    def __init__(
        self, limits: QueueLimits, budget: Budget, *, clock: Callable[[], float], later: Later
    ) -> None:
        self.limits = limits
        self.stays = {end: Histogram(STAY_BUCKETS) for end in QueueEnd}
        self._budget = budget
        self._clock = clock
        self._later = later
        self._waiting: dict[int, dict[int, Waiter]] = {}  # by priority, then in the order of their numbers
        self._lanes = Counter[Lane]()
        self._number = 0
        self._is_stirred = self._is_ticking = self._is_shut = False
        self._settled_s = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[Waiter]:
        for priority in sorted(self._waiting, reverse=True):
            yield from self._waiting[priority].values()

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter.number in self._waiting.get(waiter.lane.priority, ())

    def precedes(self, lane: Lane) -> bool:
        """Asks those who wait, if anything changed; whether one of `lane` still does."""
        if not self._waiting:
            return False
        if self._is_stirred:
            self.admit()
        return lane in self._lanes or (bool(self._waiting) and self._clock() < self._settled_s)

    def is_over(self, waiter: Waiter) -> bool:
        """Whether its time has ended: it was neither let in, nor made to go before."""
        return 0 < waiter.until_s <= self._clock()

    def enter(self, waiter: Waiter, wait_s: float | None = None) -> bool:
        """Holds a request from now on, if there is room for it; whether there is.

        `wait_s` is what `QueueLimits.longest_s` allows it; `None`: what all are allowed.
        """
        if self._is_shut or not self._make_room(waiter):
            return False
        self._number += 1
        waiter.number, waiter.since_s = self._number, self._clock()
        waiter.until_s = waiter.since_s + (self.limits.wait_s if wait_s is None else wait_s)
        self._waiting.setdefault(waiter.lane.priority, {})[waiter.number] = waiter
        self._lanes[waiter.lane] += 1
        self._start_ticking()
        return True

    def leave(self, waiter: Waiter, end: QueueEnd) -> None:
        """Hears that a request is held no more; what is not held (any more) is left alone."""
        if waiter not in self:
            return
        waiting = self._waiting[waiter.lane.priority]
        del waiting[waiter.number]
        if not waiting:
            del self._waiting[waiter.lane.priority]
        self._lanes[waiter.lane] -= 1
        if not self._lanes[waiter.lane]:
            del self._lanes[waiter.lane]
        self._budget.give(waiter.size_bytes)
        self.stays[end].count(self._clock() - waiter.since_s)

    def stir(self) -> None:
        """Hears that there may be room; soon, those who wait are asked."""
        if self._waiting and not self._is_stirred:
            self._is_stirred = True
            self._later(0.0, self.admit)

    def settle(self) -> None:
        if self._waiting:
            self._settled_s = self._clock() + self.limits.settle_s
            self._later(self.limits.settle_s, self.stir)

    def admit(self) -> None:
        """Asks those who wait, as long as one is let in."""
        self._is_stirred = False
        if self._clock() < self._settled_s:
            return
        refused, left = set[Lane](), 0
        while left < _AT_ONCE and len(refused) < min(len(self._lanes), _ASKED):
            waiter = next((one for one in islice(self, _LOOKED_AT) if one.lane not in refused), None)
            if waiter is None:
                return
            waiter.ask(False)
            if waiter in self:
                refused.add(waiter.lane)
            else:
                left += 1
        if left == _AT_ONCE:
            self.stir()

    def shut(self) -> None:
        """Refuses all who wait, and holds nobody any more."""
        self._is_shut = True
        for waiter in self:
            waiter.until_s = 0.0
        self._expire()

    def _make_room(self, waiter: Waiter) -> bool:
        if waiter.size_bytes > self._budget.limit_bytes:
            return False
        while len(self) >= self.limits.requests or not self._budget.take(waiter.size_bytes):
            lowest = min(self._waiting, default=waiter.lane.priority)
            if lowest >= waiter.lane.priority:
                return False
            self._dismiss(next(reversed(self._waiting[lowest].values())))
        return True

    def _dismiss(self, waiter: Waiter) -> None:
        waiter.ask(True)
        self.leave(waiter, QueueEnd.REFUSED)  # if nobody did

    def _expire(self) -> None:
        now = self._clock()
        over = [*islice((waiter for waiter in self if waiter.until_s <= now), _AT_ONCE)]
        for waiter in over:
            self._dismiss(waiter)
        if len(over) == _AT_ONCE:
            self._later(0.0, self._expire)

    def _start_ticking(self) -> None:
        if not self._is_ticking:
            self._is_ticking = True
            self._later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._is_ticking = False
        self._expire()
        self.admit()
        if self._waiting:
            self._start_ticking()
