"""What endpoints have to prefill still, as far as it was sent there: drained by the clock. Pure."""

from collections.abc import Iterable
from typing import Final

_DRAIN: Final = 0.8

# Of less backlog than this, chance made some: it says nothing of what others have sent.
_MUCH_MS: Final = 100.0


class Backlog:
    """Prefill sent to one endpoint and not done yet, in milliseconds, by the clock."""

    __slots__ = ("_at", "_ms")

    def __init__(self) -> None:
        self._ms = self._at = 0.0

    def ms(self, now: float) -> float:
        return max(0.0, self._ms - (now - self._at) * 1000 * _DRAIN)

    def add(self, ms: float, now: float) -> None:
        self._ms = self.ms(now) + ms
        self._at = now


class Backlogs:
    """The backlogs of endpoints by name; of one that is not followed there is none, and nothing is added."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, Backlog] = {}

    def follow(self, names: Iterable[str]) -> None:
        self._known = {name: self._known.get(name) or Backlog() for name in names}

    def add(self, name: str, ms: float, now: float) -> None:
        backlog = self._known.get(name)
        if backlog is not None:
            backlog.add(ms, now)

    def ms(self, name: str, now: float) -> float:
        backlog = self._known.get(name)
        return backlog.ms(now) if backlog is not None else 0.0

    def with_others(self, name: str, now: float, times: float) -> float:
        """With what gateways have sent that we do not hear of: about as much as we know, where that is much.

        `times`: how many times what we know of is sent by all of them together.
        """
        ms = self.ms(name, now)
        return ms + (times - 1) * max(0.0, ms - _MUCH_MS)
