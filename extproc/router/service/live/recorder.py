"""Records picks while somebody watches: the last decisions, and counts. Nothing of a prompt but its hash."""

from collections import Counter, defaultdict, deque
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
        self.picks = defaultdict[str, Counter[str]](Counter)
        self.reasons = defaultdict[str, Counter[str]](Counter)

    def note(self, decision: Decision) -> None:
        pick = decision.pick
        pool, reason, endpoint = pick.pool.name, str(pick.reason), pick.endpoint.name
        self.total += 1
        self.last.append(
            RecordedDecision(self.total, self._clock(), pool, reason, endpoint, decision.key)
        )
        self.picks[pool][endpoint] += 1
        self.reasons[pool][reason] += 1

    def refuse(self, pool: str, outcome: str) -> None:
        self.reasons[pool][outcome] += 1


class Recorder:
    """An observer that records events before another one; takes its place while somebody looks."""

    def __init__(self, observer: Observer, recording: Recording) -> None:
        self._recording = recording
        self._routed = observer.routed
        self._answered = observer.answered
        self.served_elsewhere = observer.served_elsewhere
        self.failed = observer.failed

    def routed(self, decision: Decision, elapsed_s: float) -> None:
        self._routed(decision, elapsed_s)
        self._recording.note(decision)

    def answered(self, pool: str, outcome: str) -> None:
        self._answered(pool, outcome)
        self._recording.refuse(pool, outcome)
