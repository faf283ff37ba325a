"""Traffic: when sessions start, the spike that multiplies them, and the client that sends their turns."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from math import inf, nan
from random import Random
from typing import Final

from extproc.errors import SettingsError
from extproc.simulator.fleet.flight import Flight
from extproc.simulator.fleet.session import PlannedSession
from extproc.simulator.fleet.timeline import VirtualTimeline

# So long a stretch has as many sessions as any other of its length.
_STRETCH_S: Final = 60.0
# The part of a request's cost at a busy client for opening a connection and sending.
_SEND_SHARE: Final = 0.3


_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_SPIKE: Final = re.compile(rf"{_NUMBER}:{_NUMBER}:{_NUMBER}")
SPIKE_SYNTAX: Final = "AFTER_S:BURST_S:TIMES"


@dataclass(frozen=True, slots=True)
class LoadSpike:
    """From `after_s` on, for `burst_s` seconds, `times` as many sessions start as else."""

    after_s: float
    burst_s: float
    times: float

    @property
    def end_s(self) -> float:
        return self.after_s + self.burst_s

    def load_until(self, at_s: float) -> float:
        """Seconds of the usual load that have the sessions of the first `at_s` seconds with the spike."""
        return at_s + (self.times - 1) * min(max(0.0, at_s - self.after_s), self.burst_s)

    def time_of(self, load_s: float) -> float:
        """When a session starts that would start at `load_s` without the spike."""
        burst = min(max(0.0, load_s - self.after_s), self.burst_s * self.times)
        return load_s - burst + burst / self.times

    def squeeze(self, gaps: Iterable[float]) -> Iterator[float]:
        """Takes the times between sessions of an even load and yields those with the spike."""
        load_s = at_s = 0.0
        for gap in gaps:
            load_s += gap
            start_s = self.time_of(load_s)
            yield start_s - at_s
            at_s = start_s


def parse_spike(text: str) -> LoadSpike:
    """Reads what `SPIKE_SYNTAX` says; raises `SettingsError`."""
    found = _SPIKE.fullmatch(text)
    if not found:
        raise SettingsError(f"{text!r} is no spike: write {SPIKE_SYNTAX}")
    spike = LoadSpike(*map(float, found.groups()))
    if not spike.burst_s or spike.times <= 1:
        raise SettingsError(f"{text!r}: a spike takes a time, and more than 1 times the load")
    return spike


@dataclass(frozen=True, slots=True)
class Traffic:
    """How a client sends its sessions.

    Open loop: sessions start at random, so many that their turns would arrive at `rate` requests
    per second: Poisson, but with the same number in each minute, or two runs of ten minutes would
    differ by as many per cent. `None` starts all at once. Closed loop: `users` sessions at a time.
    A turn follows its answer either way. Sessions that have a start of their own start then,
    `speed` times as fast. `cap` limits the requests in flight. Everything ends when all that was
    due until `until_s` is answered; until then the load goes on. In a `spike` more of an open
    loop's sessions start.

    `ceiling` models a client that is a single event loop, as vLLM's old benchmark script is:
    sending requests and reading their chunks costs it so much that it can do this many per second.
    It notices nothing while it is busy, and it sleeps between sends, so that every delay shifts all
    later sends.
    """

    rate: float | None = None
    users: int | None = None
    cap: int | None = None
    ceiling: float | None = None
    until_s: float = inf
    speed: float = 1.0
    spike: LoadSpike | None = None

    def asked_rps(self, start_s: float, end_s: float) -> float:
        """Scheduled requests per second in this time; NaN without a rate."""
        if not self.rate:
            return nan
        if not self.spike or end_s <= start_s:
            return self.rate
        return (
            self.rate
            * (self.spike.load_until(end_s) - self.spike.load_until(start_s))
            / (end_s - start_s)
        )


# When sessions start and how their turns follow.
#
# The loop is half open: starts of sessions are drawn beforehand, turns follow answers. A slow
# strategy therefore gets fewer requests in the same time, and its latencies are those of a smaller
# load; runs say what they offered, and a warning names two that differ (docs/why/simulator.md).
#
# Starts are Poisson, but with a fixed number in each minute: given how many there are, a Poisson
# process' times are uniform, so each stretch draws that many and sorts them. Free, two runs of ten
# minutes would differ by some per cent in their load alone, and so do strategies in their latencies.
#
# A run ends when all that was due in the measured time is answered, and the load goes on until then:
# the last of these requests is served by endpoints that are as busy as before.
#
# `ceiling` is the client of KubeAI's published benchmark (vLLM's old script), which is one event
# loop: it sees nothing while it works, and it sleeps *between* sends, so that whatever delays one
# send delays all later ones. Its prefix-hash arms sent 72 to 76 requests a second of the 200 to 800
# that were asked for. `seed_preset.py` simulates each published cell with such a client and without.
class SessionClient:
    """Sends every turn of every session; `send` gets a request when it leaves the client."""

    def __init__(
        self,
        sessions: Sequence[PlannedSession],
        traffic: Traffic,
        timeline: VirtualTimeline,
        rng: Random,
        send: Callable[[Flight], None],
    ) -> None:
        self.in_flight = 0
        self._sessions, self._count = iter(sessions), len(sessions)
        self._traffic = traffic
        self._starts = [one.start_s / traffic.speed for one in sessions if one.start_s is not None]
        self._timeline = timeline
        self._rng = rng
        self._send = send
        self._numbers = count()
        self._due: deque[tuple[float, PlannedSession, int]] = deque()
        self._owed = 0  # due until the end, not answered
        self._is_over = False
        self._busy_until = 0.0
        turns = [turn for session in sessions for turn in session.turns]
        self._sessions_per_s = traffic.rate * len(sessions) / len(turns) if traffic.rate else 0.0
        gaps = self._draw_gaps()
        self._gaps = traffic.spike.squeeze(gaps) if traffic.spike else gaps
        chunks = sum(turn.output_tokens for turn in turns) / len(turns)
        request_s = 1 / traffic.ceiling if traffic.ceiling else 0.0
        self._send_s = request_s * _SEND_SHARE
        self._chunk_s = request_s * (1 - _SEND_SHARE) / chunks

    def start(self) -> None:
        """Plans everything; then the timeline runs it."""
        if self._traffic.until_s < inf:
            self._timeline.at(self._traffic.until_s, self._end)
        if self._traffic.users is not None:
            for _ in range(self._traffic.users):
                self._begin()
        elif self._sessions_per_s or self._starts:
            self._timeline.at(next(self._gaps), self._arrive)
        else:
            while self._begin():
                pass

    def ended(self, flight: Flight) -> None:
        """Takes an answer: the session's next turn follows, or in a closed loop the next session."""
        self.in_flight -= 1
        following = flight.turn + 1
        if following < len(flight.session.turns) and not flight.is_failed:
            self._ask(flight.session, following)
        elif self._traffic.users is not None:
            self._begin()
        if self._due:
            self._pump()
        self._owed -= flight.due_at <= self._traffic.until_s
        if self._is_over and not self._owed:
            self._timeline.stop()

    def read(self, chunks: int) -> float:
        """Takes so many chunks at once; returns when it sees one of them, on average."""
        begins = max(self._busy_until, self._timeline.now)
        self._work(chunks * self._chunk_s)
        return (begins + self._busy_until) / 2

    def _end(self) -> None:
        self._is_over = True
        if not self._owed:
            self._timeline.stop()

    def _work(self, seconds: float) -> None:
        self._busy_until = max(self._busy_until, self._timeline.now) + seconds

    def _arrive(self) -> None:
        if self._begin():
            woken = self._wake if self._chunk_s else self._arrive
            self._timeline.at(self._timeline.now + next(self._gaps), woken)

    def _draw_gaps(self) -> Iterator[float]:
        """Yields the times between sessions, a stretch at a time: Poisson, given how many it has."""
        if self._starts:
            yield from (after - before for before, after in pairwise([0.0, *self._starts, inf]))
        count = max(1, min(self._count, round(self._sessions_per_s * _STRETCH_S)))
        stretch_s, last_s = count / self._sessions_per_s, 0.0
        while True:
            starts = sorted(self._rng.random() * stretch_s for _ in range(count))
            for before, after in pairwise([last_s, *starts]):
                yield after - before
            last_s = starts[-1] - stretch_s

    def _wake(self) -> None:
        """Sends when what is being read is read; what comes in meanwhile is read later."""
        self._timeline.at(self._busy_until, self._arrive)

    def _begin(self) -> bool:
        session = next(self._sessions, None)
        if session is not None:
            self._ask(session, 0)
        return session is not None

    def _ask(self, session: PlannedSession, turn: int) -> None:
        think_s = session.turns[turn].think_s
        due_at = self._timeline.now + think_s
        self._timeline.at(due_at, self._queue, due_at, session, turn)

    def _queue(self, due_at: float, session: PlannedSession, turn: int) -> None:
        self._due.append((due_at, session, turn))
        self._owed += due_at <= self._traffic.until_s
        self._pump()

    def _pump(self) -> None:
        """Sends what is due, as far as `cap` allows."""
        while self._due and (self._traffic.cap is None or self.in_flight < self._traffic.cap):
            due_at, session, turn = self._due.popleft()
            self.in_flight += 1
            if self._send_s:
                self._work(self._send_s)
            self._send(
                Flight(next(self._numbers), session, turn, due_at, sent_at=self._timeline.now)
            )
