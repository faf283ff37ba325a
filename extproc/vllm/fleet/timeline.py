"""Virtual time: what happens next, and when."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Timeline:
    """Runs actions in the order of their times; those of one time in the order of their planning."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Plans `action` for `time`, in seconds; a time that has passed means now."""
        heappush(self._planned, (max(time, self.now), next(self._order), action))

    def run(self) -> None:
        """Runs until nothing is planned any more."""
        while self._planned:
            self.now, _, action = heappop(self._planned)
            action()
