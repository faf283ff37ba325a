"""Rounds: every endpoint of a pool is asked once an interval, and never all of them at one time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Protocol

from extproc.router.routing.endpoint import Endpoint

Sleep = Callable[[float], Awaitable[None]]


class RoundPlan(Protocol):
    """How often each endpoint is asked: `interval_s`, `per_s` a second, at most `parallel` at once."""

    @property
    def interval_s(self) -> float: ...
    @property
    def per_s(self) -> float: ...
    @property
    def parallel(self) -> int: ...


class Rounds:
    """Goes round the endpoints of one pool, each time in another order."""

    def __init__(self, pace: RoundPlan, rng: Random, sleep: Sleep) -> None:
        self._pace = pace
        self._rng = rng
        self._sleep = sleep

    async def go(self, ready: Sequence[Endpoint], ask: Callable[[Endpoint], Awaitable[None]]) -> None:
        """Asks every endpoint once, in an order of chance, and takes an interval for it."""
        pace, endpoints = self._pace, [*ready]
        self._rng.shuffle(endpoints)
        pause_s = max(pace.interval_s / max(1, len(endpoints)), 1 / pace.per_s)
        slots = asyncio.Semaphore(pace.parallel)

        async def ask_one(endpoint: Endpoint) -> None:
            try:
                await ask(endpoint)
            finally:
                slots.release()

        async with asyncio.TaskGroup() as tasks:
            for endpoint in endpoints:
                await slots.acquire()
                tasks.create_task(ask_one(endpoint))
                await self._pause(pause_s)
            if not endpoints:
                await self._pause(pause_s)

    async def _pause(self, pause_s: float) -> None:
        await self._sleep(pause_s * self._rng.uniform(0.8, 1.2))
