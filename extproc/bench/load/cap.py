"""The concurrency cap of one load process."""

import asyncio
from collections import deque

from extproc.bench.record import Clock


class Cap:
    """A limit of requests in flight; waiters go in the order they came. `None` is no limit.

    `full_s` is how long no slot was left, so that a report can tell a rate from a closed loop.
    """

    def __init__(self, limit: int | None, clock: Clock) -> None:
        self.limit = limit
        self.in_flight = 0
        self._clock = clock
        self._waiters: deque[asyncio.Future[float]] = deque()
        self._full_s = 0.0
        self._full_since_s: float | None = None

    @property
    def full_s(self) -> float:
        running = 0.0 if self._full_since_s is None else self._clock() - self._full_since_s
        return self._full_s + running

    async def enter(self, intended_s: float) -> float:
        """Takes a slot; returns when it was free: at the intended time, or when another left."""
        if self.limit is None or self.in_flight < self.limit:
            self.in_flight += 1
            if self.in_flight == self.limit:
                self._full_since_s = self._clock()
            return intended_s
        waiter: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """Gives the slot to the first that still waits, or back."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(self._clock())
                return
        self.in_flight -= 1
        if self._full_since_s is not None:
            self._full_s += self._clock() - self._full_since_s
            self._full_since_s = None
