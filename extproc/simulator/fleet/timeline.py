"""Virtual time: what happens next, and when."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import TypeVarTuple

Arguments = TypeVarTuple("Arguments")


class VirtualTimeline:
    """Runs actions in the order of their times; those of one time in the order of their planning."""

    def __init__(self) -> None:
        self.now = 0.0
        self._planned: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._next = count().__next__

    def __len__(self) -> int:
        return len(self._planned)

    def at(self, time: float, action: Callable[[*Arguments], None], *arguments: *Arguments) -> None:
        """Plans `action` for `time`, in seconds; a time that has passed means now."""
        heappush(self._planned, (max(self.now, time), self._next(), action, arguments))

    def run(self) -> None:
        """Runs until nothing is planned any more."""
        planned = self._planned
        while planned:
            self.now, _, action, arguments = heappop(planned)
            action(*arguments)

    def stop(self) -> None:
        """Forgets everything that is planned."""
        self._planned.clear()
