"""Records picks while somebody watches: the last decisions, and counts. Nothing of a prompt but its hash."""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from extproc.router.routing.picker import Decision
from extproc.router.stream.server import Observer

# How many decisions are shown, the last ones.
LAST_DECISIONS: Final = 50


class RecordedDecision(NamedTuple):
    """One decision with its number and its time by the clock; `key` is the prefix's hash."""

    number: int
    at_s: float
    pool: str
    reason: str
    endpoint: str
    key: int | None


class Recording:
    """Counts since it was begun: picks by pool and endpoint, and by pool and reason; refusals by pool."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.total = 0
        self.last: deque[RecordedDecision] = deque(maxlen=LAST_DECISIONS)
        self.picks: dict[str, dict[str, int]] = {}
        self.reasons: dict[str, dict[str, int]] = {}

    def note(self, decision: Decision) -> None:
        pick = decision.pick
        pool, reason, endpoint = pick.pool.name, str(pick.reason), pick.endpoint.name
        self.total += 1
        self.last.append(RecordedDecision(self.total, self._clock(), pool, reason, endpoint, decision.key))
        self._count(self.picks, pool, endpoint)
        self._count(self.reasons, pool, reason)

    def refuse(self, pool: str, outcome: str) -> None:
        self._count(self.reasons, pool, outcome)

    @staticmethod
    def _count(counts: dict[str, dict[str, int]], pool: str, name: str) -> None:
        of_pool = counts.get(pool)
        if of_pool is None:
            of_pool = counts[pool] = {}
        of_pool[name] = of_pool.get(name, 0) + 1


class Recorder:
    """An observer that records events before another one; takes its place while somebody looks."""

    def __init__(self, observer: Observer, recording: Recording) -> None:
        self._recording = recording
        self._routed = observer.routed
        self._answered = observer.answered
        self.opened = observer.opened
        self.closed = observer.closed
        self.served_elsewhere = observer.served_elsewhere
        self.failed = observer.failed

    def routed(self, decision: Decision, elapsed_s: float) -> None:
        self._routed(decision, elapsed_s)
        self._recording.note(decision)

    def answered(self, pool: str, outcome: str) -> None:
        self._answered(pool, outcome)
        self._recording.refuse(pool, outcome)
