"""How far a run, or an experiment of several, has come, and how long the rest will take."""

import time
from dataclasses import dataclass

from extproc.bench.record import Clock


@dataclass(frozen=True, slots=True)
class Goal:
    """When a run is over, as far as that is known before: after so many requests, or so many seconds."""

    requests: int | None = None
    seconds: float | None = None

    def share(self, at_s: float, finished: int) -> float | None:
        """How much of the run is done, from 0 to 1; `None` where only the server's speed will tell."""
        shares = [
            done / whole
            for done, whole in ((finished, self.requests), (max(0.0, at_s), self.seconds))
            if whole
        ]
        return min(1.0, max(shares)) if shares else None


class Pace:
    """How far an experiment of several runs has come; what is left takes as long as what is done.

    `is_known` is false where `total` is but the most that there may be.
    """

    def __init__(self, total: int, clock: Clock = time.monotonic, *, is_known: bool = True) -> None:
        self._total, self._clock, self._is_known = total, clock, is_known
        self._begun = 0
        self._start_s = clock()

    def begin(self) -> None:
        """Another run begins, and with it the one before it is done."""
        self._begun += 1

    def render(self, share: float | None) -> str:
        """Says which run is at work, of how many, how much of all is done and how long the rest takes."""
        if not self._is_known:
            return f"run {self._begun} of at most {self._total}"
        done = self._find_done(share)
        left_s = (self._clock() - self._start_s) * (1 - done) / done if done else None
        return f"run {self._begun} of {self._total}, {progress_text(done, left_s)}"

    def show(self, share: float | None) -> str:
        """How much of all is done, and never all of it: what ended is no longer under way.

        Where that is not known, which run is at work; of a sole run nothing.
        """
        if not self._is_known:
            return self.render(share)
        if share is None and self._total == 1:
            return ""
        return f"{min(99, int(100 * self._find_done(share)))}%"

    def _find_done(self, share: float | None) -> float:
        return max(0.0, self._begun - 1 + (share or 0.0)) / self._total


def progress_text(share: float | None, left_s: float | None) -> str:
    """`42 %, 3 min left`; what is not known is left out."""
    if share is None:
        return ""
    return f"{share:.0%}" if left_s is None or share >= 1 else f"{share:.0%}, {roughly(left_s)} left"


def roughly(seconds: float) -> str:
    """A time as people say it: `40 s`, `12 min`, `2 h 05 min`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"
