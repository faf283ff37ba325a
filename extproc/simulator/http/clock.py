"""The engine's time, at a multiple of real time."""

import asyncio
from collections.abc import Callable
from time import monotonic


class Clock:
    """Engine seconds since it was made, `speed` of them in each real second."""

    def __init__(self, speed: float = 1.0, monotonic_s: Callable[[], float] = monotonic) -> None:
        self.speed = speed
        self._monotonic_s = monotonic_s
        self._origin_s = monotonic_s()

    def now(self) -> float:
        return (self._monotonic_s() - self._origin_s) * self.speed

    async def sleep_until(self, at: float) -> None:
        """Returns at `at`, or at once if that has passed; others get a turn in any case."""
        await asyncio.sleep(max(0.0, (at - self.now()) / self.speed))
