"""The client: when sessions start, and what limits it."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import Random
from typing import Final

from extproc.vllm.fleet.flight import Flight
from extproc.vllm.fleet.session import PlannedSession
from extproc.vllm.fleet.timeline import Timeline

# Of what a request costs a busy client: what it takes to open a connection and send.
_SEND_SHARE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Traffic:
    """How a client sends its sessions.

    Open loop: sessions start at random (Poisson), so many that their turns would arrive at `rate`
    requests per second; `None` starts all at once. Closed loop: `users` sessions at a time. A turn
    follows its answer either way. `cap` limits the requests in flight.

    `ceiling` models a client that is a single event loop, as vLLM's old benchmark script is: sending
    requests and reading their chunks costs it so much that it can do this many per second. It notices
    nothing while it is busy, and it sleeps between sends, so that every delay shifts all later sends.
    """

    rate: float | None = None
    users: int | None = None
    cap: int | None = None
    ceiling: float | None = None


class Client:
    """Sends every turn of every session; `send` gets a request when it leaves the client."""

    def __init__(
        self,
        sessions: Sequence[PlannedSession],
        traffic: Traffic,
        timeline: Timeline,
        rng: Random,
        send: Callable[[Flight], None],
    ) -> None:
        self.in_flight = 0
        self._sessions = iter(sessions)
        self._traffic = traffic
        self._timeline = timeline
        self._rng = rng
        self._send = send
        self._numbers = count()
        self._due: deque[tuple[float, PlannedSession, int]] = deque()
        self._busy_until = 0.0
        turns = [turn for session in sessions for turn in session.turns]
        self._sessions_per_s = traffic.rate * len(sessions) / len(turns) if traffic.rate else 0.0
        chunks = sum(turn.output_tokens for turn in turns) / len(turns)
        request_s = 1 / traffic.ceiling if traffic.ceiling else 0.0
        self._send_s = request_s * _SEND_SHARE
        self._chunk_s = request_s * (1 - _SEND_SHARE) / chunks

    def start(self) -> None:
        """Plans everything; then the timeline runs it."""
        if self._traffic.users is not None:
            for _ in range(self._traffic.users):
                self._begin()
        elif self._sessions_per_s:
            self._arrive()
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
        self._pump()

    def read(self, chunks: int) -> float:
        """Takes so many chunks at once; returns when it sees one of them, on average."""
        begins = max(self._busy_until, self._timeline.now)
        self._work(chunks * self._chunk_s)
        return (begins + self._busy_until) / 2

    def _work(self, seconds: float) -> None:
        self._busy_until = max(self._busy_until, self._timeline.now) + seconds

    def _arrive(self) -> None:
        if self._begin():
            gap = self._rng.expovariate(self._sessions_per_s)
            self._timeline.at(self._timeline.now + gap, self._wake)

    def _wake(self) -> None:
        """Sends when what is being read is read; what comes in meanwhile is read later."""
        self._timeline.at(self._busy_until, self._arrive)

    def _begin(self) -> bool:
        session = next(self._sessions, None)
        if session is not None:
            self._ask(session, 0)
        return session is not None

    def _ask(self, session: PlannedSession, turn: int) -> None:
        due_at = self._timeline.now + session.turns[turn].think_s
        self._timeline.at(due_at, partial(self._queue, due_at, session, turn))

    def _queue(self, due_at: float, session: PlannedSession, turn: int) -> None:
        self._due.append((due_at, session, turn))
        self._pump()

    def _pump(self) -> None:
        """Sends what is due, as far as `cap` allows."""
        while self._due and (self._traffic.cap is None or self.in_flight < self._traffic.cap):
            due_at, session, turn = self._due.popleft()
            self.in_flight += 1
            self._work(self._send_s)
            self._send(Flight(next(self._numbers), session, turn, due_at, sent_at=self._timeline.now))
