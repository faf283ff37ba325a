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
- **Several workers** have a queue each. Whose turn it is among all of them, `order` says; without one, and
  for what only some of the endpoints may take, a queue goes by itself.
- **From zero.** When an empty pool gets endpoints, the gateway hears of them elsewhere, and perhaps later: an
  address that it does not know yet is answered 503. So the queue stays as it is for `settle_s`.

What was tried: a place handed on at each end loses places where a client leaves at the same moment, and gives
one away where a limit was lowered; a timer for each request keeps thousands that are long answered.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from extproc.router.budget import Budget
from extproc.router.routing.order import FIRSTS, Later, Line, Order, Place

# How often the queue is looked at while somebody waits: times end, and an endpoint that was left out is back.
TICK_S: Final = 0.1
# Of a queue with many lanes only so many are asked at a time, and only so many requests looked at for them.
_ASKED: Final = 64
_LOOKED_AT: Final = 1_024
# So many leave in one turn of the loop: thousands would keep it from everybody else.
_AT_ONCE: Final = 32

STAY_BUCKETS: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
"""Seconds."""


class End(StrEnum):
    """How a request left a queue; a metric label."""

    SERVED = "served"  # let in
    REFUSED = "refused"  # its time was over, or the queue was shut
    ABORTED = "aborted"  # its client left, or its gateway


class Lane(NamedTuple):
    """What admission tells requests apart by. `is_free`: any endpoint of the pool may take it."""

    priority: int = 0
    client: int = 0
    adapter: str = ""
    subset: tuple[str, ...] | None = None
    is_free: bool = True


class Waiter:
    """One request that is held. `ask` lets it try to leave; with `True` for the last time."""

    __slots__ = ("ask", "lane", "number", "place", "since_s", "size_bytes", "until_s")

    def __init__(self, lane: Lane, size_bytes: int = 0) -> None:
        self.lane = lane
        self.size_bytes = size_bytes
        self.ask: Callable[[bool], None] = _nobody
        self.number = 0
        self.place: Place = (0, 0)
        self.since_s = self.until_s = 0.0

    def __repr__(self) -> str:
        return f"<Waiter {self.number} of {self.lane}>"


def _nobody(_: bool) -> None:
    """Until whoever waits has said how it is asked."""


@dataclass(slots=True)
class Stays:
    """How long requests were held, of one kind of end."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(STAY_BUCKETS) + 1))
    sum_s: float = 0.0

    def add(self, stay_s: float) -> None:
        self.counts[bisect_left(STAY_BUCKETS, stay_s)] += 1
        self.sum_s += stay_s


@dataclass(slots=True)
class Limits:
    """How long requests are held, how many, and how long yet after the first endpoint has come."""

    wait_s: float = 30.0
    requests: int = 1_000
    settle_s: float = 1.0


class Queue:
    """Requests of one pool in the order in which they may leave.

    `budget` bounds the bytes of their bodies, and may be shared with other queues. `clock` counts seconds;
    `later` calls something after so many of them, with 0 when whoever calls now is done. `order` is that of
    the queues of several workers.
    """

    def __init__(
        self,
        limits: Limits,
        budget: Budget,
        *,
        clock: Callable[[], float],
        later: Later,
        order: Order | None = None,
    ) -> None:
        self.limits = limits
        self.stays = {end: Stays() for end in End}
        self._budget = budget
        self._clock = clock
        self._later = later
        self.order = order
        if order is not None:
            order.line, order.on_word = self._line, self._look_soon
        self._micros = 0
        self._waiting: dict[int, dict[int, Waiter]] = {}  # by priority, then in the order of their numbers
        self._lanes = Counter[Lane]()
        self._free = Counter[int]()  # those that any endpoint may take, by priority
        self._number = 0
        self._is_stirred = self._is_ticking = self._is_shut = False
        self._settled_s = 0.0

    def __repr__(self) -> str:
        return f"<Queue of {len(self)} requests in {len(self._lanes)} lanes>"

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def __iter__(self) -> Iterator[Waiter]:
        for priority in sorted(self._waiting, reverse=True):
            yield from self._waiting[priority].values()

    def __contains__(self, waiter: Waiter) -> bool:
        return waiter.number in self._waiting.get(waiter.lane.priority, ())

    def precedes(self, lane: Lane) -> bool:
        """Asks those who wait, if anything changed; whether one of `lane` still does, here or elsewhere."""
        if self._waiting:
            if self._is_stirred:
                self.admit()
            if lane in self._lanes or (bool(self._waiting) and self._clock() < self._settled_s):
                return True
        if self.order is None or not lane.is_free:
            return False
        return not self.order.lets(self._place(lane), self._before(lane.priority))

    def enter(self, waiter: Waiter) -> bool:
        """Holds a request from now on, if there is room for it; whether there is."""
        if self._is_shut or not self._make_room(waiter):
            return False
        self._number += 1
        waiter.number, waiter.since_s, waiter.place = self._number, self._clock(), self._place(waiter.lane)
        waiter.until_s = waiter.since_s + self.limits.wait_s
        self._waiting.setdefault(waiter.lane.priority, {})[waiter.number] = waiter
        self._lanes[waiter.lane] += 1
        self._free[waiter.lane.priority] += waiter.lane.is_free
        self._start_ticking()
        if self.order is not None:
            self.order.change()
        return True

    def leave(self, waiter: Waiter, end: End) -> None:
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
        self._free[waiter.lane.priority] -= waiter.lane.is_free
        self._budget.give(waiter.size_bytes)
        self.stays[end].add(self._clock() - waiter.since_s)
        if self.order is not None:
            self.order.change()

    def stir(self) -> None:
        """Hears that there may be room; soon, those who wait are asked."""
        if self.order is not None:
            self.order.stir()
        self._look_soon()

    def went(self) -> None:
        """Hears that a request of the pool went to an endpoint, whether it waited here or not."""
        if self.order is not None:
            self.order.went()

    def settle(self) -> None:
        """Hears that an empty pool has endpoints."""
        if self._waiting:
            self._settled_s = self._clock() + self.limits.settle_s
            self._later(self.limits.settle_s, self.stir)

    def admit(self) -> None:
        """Asks those who wait, as long as one is let in."""
        self._is_stirred = False
        if self._clock() < self._settled_s:
            return
        refused, left, has_turn = set[Lane](), 0, True
        while left < _AT_ONCE and len(refused) < min(len(self._lanes), _ASKED):
            waiter = next((one for one in islice(self, _LOOKED_AT) if one.lane not in refused), None)
            if waiter is None:
                return
            if waiter.lane.is_free and self.order is not None:
                # The others keep a place for who has none yet: nobody of ours behind it may take that.
                has_turn = has_turn and self.order.lets(waiter.place)
            if has_turn or not waiter.lane.is_free:
                waiter.ask(False)
            if waiter in self:
                refused.add(waiter.lane)
            else:
                left += 1
        if left == _AT_ONCE:
            self._look_soon()

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

    def _look_soon(self) -> None:
        if self._waiting and not self._is_stirred:
            self._is_stirred = True
            self._later(0.0, self.admit)

    def _place(self, lane: Lane) -> Place:
        """Where one who comes now stands; no two are alike."""
        self._micros = max(self._micros + 1, int(self._clock() * 1e6))
        return -lane.priority, self._micros

    def _before(self, priority: int) -> int:
        """How many wait here that go before one of this priority who comes now."""
        return sum(count for other, count in self._free.items() if other >= priority)

    def _line(self) -> Line:
        places = (waiter.place for waiter in islice(self, _LOOKED_AT) if waiter.lane.is_free)
        return Line(self._free.total(), (*islice(places, FIRSTS),))

    def _dismiss(self, waiter: Waiter) -> None:
        waiter.ask(True)
        self.leave(waiter, End.REFUSED)  # if nobody did

    def _expire(self) -> None:
        """Refuses those whose time is over."""
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
