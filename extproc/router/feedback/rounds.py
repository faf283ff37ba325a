"""Rounds: every endpoint of a pool gets one request an interval, and never all of them at one time."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from extproc.router.routing.endpoint import Endpoint

NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """How often endpoints are probed or scraped over HTTP; durations in seconds.

    Each endpoint gets a request every `interval_s`, or less often where that were more than `per_s`
    a second; `parallel` bounds the requests that wait for an answer at one time.
    """

    interval_s: float = 5.0
    timeout_s: float = 3.0
    parallel: int = 16
    per_s: float = 50.0


class Rounds(Struct, eq=False):
    """Goes round the endpoints of one pool, each time in another order."""

    _pace: RoundPlan
    _rng: Random
    _sleep: Sleep

    async def go(
        self, ready: Sequence[Endpoint], visit: Callable[[Endpoint], Awaitable[None]]
    ) -> None:
        """Calls `visit` for every endpoint once, in random order, spread over an interval."""
        pace, endpoints = self._pace, [*ready]
        self._rng.shuffle(endpoints)
        pause_s = max(pace.interval_s / max(1, len(endpoints)), 1 / pace.per_s)
        slots = asyncio.Semaphore(pace.parallel)

        async def visit_one(endpoint: Endpoint) -> None:
            try:
                await visit(endpoint)
            finally:
                slots.release()

        async with asyncio.TaskGroup() as tasks:
            for endpoint in endpoints:
                await slots.acquire()
                tasks.create_task(visit_one(endpoint))
                await self._pause(pause_s)
            if not endpoints:
                await self._pause(pause_s)

    async def _pause(self, pause_s: float) -> None:
        await self._sleep(pause_s * self._rng.uniform(0.8, 1.2))
