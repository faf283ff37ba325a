"""The queue of one pool: requests wait here until an endpoint has room. Pure: the clock comes in.

Why. Without a queue a full pool answers 429 at once and an empty one 503, though a request may end
in a moment, and an autoscaler may be starting the first endpoint because of this very request.

The rules:

- **Which requests wait.** Those refused because the pool is full, or has no ready endpoint at all.
  Not those for a model or subset that no endpoint has.
- **Order.** Higher priorities first, and those of one priority as they came. A request that leaves
  passes `admission`, with what is in flight at that moment, as if it had just come. Requests that
  admission treats alike (one priority, client, adapter, subset) are a *lane*: where its first is
  refused, so are the others. A request that its client's share keeps out therefore blocks no other
  lane.
- **No place is handed on.** Whatever may have made room (a request that ended here or at a peer;
  new endpoints; another limit) only stirs the queue. Then, once for all of it, the first of each
  lane retries, until none is let in; each that is counts at once. So one end lets one in, and no
  end is lost.
- **A new request** tries behind those that wait, and not at all if one of its lane waits.
- **Bounds.** So many requests, and so many bytes of bodies, here or in the proxy. Where there is no
  room, the last of the lowest priority makes way for a higher one; else the new request is refused,
  as without a queue.
- **Ends.** A request leaves once: let in; refused, when its time is over or the queue is shut; or
  its client left. When its time is over it tries once more, and so gets the refusal that is right
  at that moment.
- **From zero.** When an empty pool gets endpoints, the gateway learns them from another source, and
  perhaps later: it answers 503 for an address that it has not got yet. So nobody leaves the queue
  for `settle_s`.

What was tried: handing a place on at each end loses places where a client leaves at the same
moment, and lets one in too many where a limit was lowered; a timer for each request keeps thousands
that are answered.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from extproc.grpc_server.budget import Budget
from extproc.router.histogram import Histogram

Later = Callable[[float, Callable[[], None]], object]

# How often a queue that is not empty retries: times end, and endpoints that failed come back.
TICK_S: Final = 0.1
# One `admit` retries at most so many lanes, and searches at most so many requests for their firsts.
_LANES_AT_ONCE: Final = 64
_WAITERS_AT_ONCE: Final = 1_024
# So many leave in one turn of the loop: thousands would block it.
_AT_ONCE: Final = 32

STAY_BUCKETS: Final = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)
"""Seconds."""


class QueueEnd(StrEnum):
    SERVED = "served"  # let in
    REFUSED = "refused"  # its time was over, or the queue was shut
    ABORTED = "aborted"  # its client left, or its gateway


class Lane(NamedTuple):
    """The part of a request that admission decides by: requests of one lane are let in or refused alike."""

    priority: int = 0
    client: int = 0
    adapter: str = ""
    subset: tuple[str, ...] | None = None


class Waiter:
    """One request that waits. `retry` tries to route it; with `True` for the last time."""

    __slots__ = ("lane", "number", "retry", "since_s", "size_bytes", "until_s")

    def __init__(self, lane: Lane, size_bytes: int = 0) -> None:
        self.lane = lane
        self.size_bytes = size_bytes
        self.retry: Callable[[bool], None] = lambda _: None  # until the request's stream sets it
        self.number = 0
        self.since_s = self.until_s = 0.0


@dataclass(slots=True)
class QueueLimits:
    """How long requests wait, how many, and how much longer after the first endpoint has come."""

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

    `budget` bounds the bytes of their bodies, and may be shared with other queues. `clock` returns
    seconds; `later` calls an action after so many seconds; with 0, after the current callback.
    """

    def __init__(
        self, limits: QueueLimits, budget: Budget, *, clock: Callable[[], float], later: Later
    ) -> None:
        self.limits = limits
        self.stays = {end: Histogram(STAY_BUCKETS) for end in QueueEnd}
        self._budget = budget
        self._clock = clock
        self._later = later
        self._waiting: dict[
            int, dict[int, Waiter]
        ] = {}  # by priority, then in the order of their numbers
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
        """Retries those that wait, if anything changed; whether one of `lane` still waits."""
        if not self._waiting:
            return False
        if self._is_stirred:
            self.admit()
        return lane in self._lanes or (bool(self._waiting) and self._clock() < self._settled_s)

    def is_over(self, waiter: Waiter) -> bool:
        """Whether the request's time has ended, and it was not dismissed before."""
        return 0 < waiter.until_s <= self._clock()

    def enter(self, waiter: Waiter, wait_s: float | None = None) -> bool:
        """Queues a request, if there is room for it; whether there is.

        `wait_s` is what `QueueLimits.longest_s` allows it; `None`: the pool's `wait_s`.
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
        """Takes a request out of the queue; does nothing if it is not (any more) in it."""
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
        """There may be room: retries those that wait, after the current callback."""
        if self._waiting and not self._is_stirred:
            self._is_stirred = True
            self._later(0.0, self.admit)

    def settle(self) -> None:
        if self._waiting:
            self._settled_s = self._clock() + self.limits.settle_s
            self._later(self.limits.settle_s, self.stir)

    def admit(self) -> None:
        """Retries the first of each lane, as long as one is let in."""
        self._is_stirred = False
        if self._clock() < self._settled_s:
            return
        refused, left = set[Lane](), 0
        while left < _AT_ONCE and len(refused) < min(len(self._lanes), _LANES_AT_ONCE):
            waiter = next(
                (one for one in islice(self, _WAITERS_AT_ONCE) if one.lane not in refused), None
            )
            if waiter is None:
                return
            waiter.retry(False)
            if waiter in self:
                refused.add(waiter.lane)
            else:
                left += 1
        if left == _AT_ONCE:
            self.stir()

    def shut(self) -> None:
        """Refuses all that wait, and takes no more."""
        self._is_shut = True
        for waiter in self:
            waiter.until_s = 0.0
        self._expire()

    def _make_room(self, waiter: Waiter) -> bool:
        if waiter.size_bytes > self._budget.limit_bytes:
            return False
        while len(self) >= self.limits.requests or not self._budget.reserve(waiter.size_bytes):
            lowest = min(self._waiting, default=waiter.lane.priority)
            if lowest >= waiter.lane.priority:
                return False
            self._dismiss(next(reversed(self._waiting[lowest].values())))
        return True

    def _dismiss(self, waiter: Waiter) -> None:
        waiter.retry(True)
        self.leave(waiter, QueueEnd.REFUSED)  # unless it has left

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
