"""What one load process does: starts conversations on time, or keeps users busy, and notes everything."""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from extproc.bench.datasets.conversation import (
    ChatTurn,
    Conversation,
    TurnMessage,
    count_prompt_tokens,
)
from extproc.bench.datasets.synthetic import draw
from extproc.bench.load.workload import Numbering
from extproc.bench.processors.processor import ChatQuery, Client
from extproc.bench.record import GIVE_UP_AFTER, INTERRUPTED, Clock, Record
from extproc.bench.spec.tree import Spec


class Cap:
    """A limit of requests in flight; waiters go in the order they came. `None` is no limit.

    `full_s` is how long no slot was left, so that a report can see a rate that became a closed
    loop.
    """

    def __init__(self, limit: int | None, clock: Clock) -> None:
        self.limit = limit
        self.in_flight = 0
        self._clock = clock
        self._waiters: deque[asyncio.Future[float]] = deque()
        self._full_s = 0.0
        self._full_since_s: float | None = None

    @property
    def full_s(self) -> float:
        running = 0.0 if self._full_since_s is None else self._clock() - self._full_since_s
        return self._full_s + running

    async def enter(self, intended_s: float) -> float:
        """Takes a slot; returns when it was free: at the intended time, or when another left."""
        if self.limit is None or self.in_flight < self.limit:
            self.in_flight += 1
            if self.in_flight == self.limit:
                self._full_since_s = self._clock()
            return intended_s
        waiter: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        """Gives the slot to the first that still waits, or back."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(self._clock())
                return
        self.in_flight -= 1
        if self._full_since_s is not None:
            self._full_s += self._clock() - self._full_since_s
            self._full_since_s = None


# Wake at most this often, then start everything that is due: a timer per request falls behind from
# about 500 req/s per process.
_TICK_S = 0.001
# A user who got no answer asks again after a pause: the server's Retry-After, or this.
_RETRY_S = 1.0

Next = Callable[[], int | None]
"""Takes the next conversation's number, shared by a machine's processes; `None` when there is none left."""


@dataclass(frozen=True, slots=True)
class LoadShare:
    """One process's part of a run: its starts as (number, time), or the `users` of a closed loop.

    `numbers` are the conversations that users take in turn, together with those of the machine's
    other processes. `journal` is where it writes down what ends. `endpoint` answers whatever does
    not say who did.
    """

    process: int
    spec: Spec
    model: str
    conversations: tuple[Conversation, ...]
    requests: int | None
    starts: tuple[tuple[int, float], ...] = ()
    users: int = 0
    numbers: range = range(sys.maxsize)
    cap: int | None = None
    journal: Path | None = None
    endpoint: str | None = None


# Two kinds of load, and they answer different questions.
#
# An open loop follows a schedule: a start is due at its time, whoever else is still waiting. In
# sessions only the first turn has a time of its own. A later turn is due when the answer before it
# has come and its user has thought, so a slow server is asked less. That is so with people, too;
# it means that latencies of two runs compare only where the loads that were really sent agree,
# which `judge` and `compare` check. A closed loop has `users`, each of whom asks again once
# answered: throughput is then the server's, and the rate says nothing. A rate with a cap is the
# first with the second's limit; while the cap is full it is a closed loop, and the wait for a slot
# counts, because the clock was read before (`Cap.enter` gets the intended start).
#
# k6 is the model of a closed loop: shared iterations, and a user finishes the conversation that it
# is in until the graceful stop. A user that was refused waits as the server says (Retry-After), else
# a second; without a pause it would ask a server that refuses as fast as that can say no.
#
# What was tried and measured: asyncio's timers, one for each request, fall behind from about 500
# requests a second per process. So the generator sleeps until the next start, and then begins all
# that is due. Reading JSON while the stream comes in cost 39 µs a chunk; with uvloop, and bytes that
# are stamped now and read after the last one, it is 20.
#
# What must hold: every request that was due has a record, sent or not. Else a run that is stopped,
# or a load that the client could not send, would look as if less had been asked.
class LoadGenerator:
    """Runs a share against a client. Records hold every request that was due, sent or not."""

    def __init__(self, share: LoadShare, client: Client, clock: Clock, take_next: Next) -> None:
        self.records: list[Record] = []
        self.prompts: list[tuple[TurnMessage, ...]] = []
        self.cap = Cap(share.cap, clock)
        self._share, self._client, self._clock, self._take_next = share, client, clock, take_next
        self._traffic = share.spec.traffic
        self._numbering = Numbering(share.conversations)
        self._begun = 0
        self._unconnected = 0
        self._limit: asyncio.Timeout | None = None
        self._stopped_s: float | None = None

    async def run(self) -> None:
        """Runs to the end: of the schedule or the users, and of everything in flight.

        It ends early if `GIVE_UP_AFTER` requests in a row cannot connect.
        """
        self._limit = asyncio.timeout(self._deadline_s())
        try:
            async with self._limit, asyncio.TaskGroup() as tasks:
                if self._traffic.is_closed:
                    for place in range(self._share.users):
                        user = place * self._share.spec.processes + self._share.process
                        tasks.create_task(self._be_user(user))
                else:
                    await self._follow_schedule(tasks)
        except TimeoutError:
            return
        finally:
            self._note_unsent()

    def stop(self) -> None:
        """Ends the run now; what is in flight is cut off, what was not yet due is not sent."""
        self._stopped_s = self._clock()
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    @property
    def has_given_up(self) -> bool:
        return self._unconnected >= GIVE_UP_AFTER

    @property
    def in_flight(self) -> int:
        return self.cap.in_flight

    def _deadline_s(self) -> float | None:
        """When `asyncio.timeout` is to end the run, in seconds from now."""
        if self._stopped_s is not None:
            return 0.0
        if self._traffic.duration is None or self._traffic.graceful_stop is None:
            return None
        return self._traffic.duration + self._traffic.graceful_stop - self._clock()

    async def _follow_schedule(self, tasks: asyncio.TaskGroup) -> None:
        for number, at_s in self._share.starts:
            await self._sleep_until(at_s)
            tasks.create_task(self._converse(number, at_s))
            self._begun += 1

    async def _be_user(self, user: int) -> None:
        at_s = max(0.0, self._clock())
        while (start_s := self._traffic.find_stay(user, at_s)) is not None:
            await self._sleep_until(start_s)
            if (number := self._take_next()) is None:
                return
            at_s = await self._converse(number, start_s)

    async def _converse(self, number: int, at_s: float) -> float:
        """Asks turn by turn, from `at_s` on; returns when its user is ready for something else.

        A failed answer ends the conversation, as there is nothing to go on with.
        """
        conversation = self._share.conversations[number % len(self._share.conversations)]
        thinks = self._list_pauses(number, conversation.turns)
        first = self._numbering.first_index(number)
        history: tuple[TurnMessage, ...] = ()
        for turn_number, turn in enumerate(conversation.turns):
            index, limit = first + turn_number, self._share.requests
            if (limit is not None and index >= limit) or (turn_number and self._is_late(at_s)):
                break
            await self._sleep_until(at_s)
            history += turn.messages
            is_last = turn_number + 1 == len(conversation.turns)
            record = Record(index, number, turn_number, at_s, is_last=is_last)
            await self._send_turn(record, turn, history, conversation)
            if not record.is_ok:
                return self._clock() + (record.retry_after_s or _RETRY_S)
            reply = record.text if self._traffic.dataset.replies == "real" else turn.reply
            history += (TurnMessage("assistant", reply),) if reply else ()
            at_s = (record.end_s or 0.0) + thinks[turn_number]
        return at_s

    async def _send_turn(
        self,
        record: Record,
        turn: ChatTurn,
        history: tuple[TurnMessage, ...],
        conversation: Conversation,
    ) -> None:
        self.records.append(record)
        self.prompts.append(history)
        record.estimated_input_tokens = count_prompt_tokens(history)
        model, is_streaming = self._share.model, self._share.spec.target.is_streaming
        query = ChatQuery(model, history, turn.output_tokens, is_streaming, conversation.body)
        try:
            record.admitted_s = await self.cap.enter(record.intended_s)
            try:
                await self._client.send(query, record)
                self._unconnected = self._unconnected + 1 if record.failure == "connect" else 0
                if self.has_given_up:
                    self.stop()
                if record.endpoint is None and record.first_byte_s is not None:
                    record.endpoint = self._share.endpoint
            finally:
                self.cap.leave()
        except asyncio.CancelledError:
            record.failure, record.end_s = INTERRUPTED, self._clock()
            raise

    def _list_pauses(self, number: int, turns: Sequence[ChatTurn]) -> Sequence[float]:
        """How long the user thinks after each answer: as the dataset says, else as the spec does."""
        # By conversation, so that pauses don't depend on which process runs it.
        rng, thinks = (
            np.random.default_rng((self._share.spec.seed, number)),
            self._traffic.think_time,
        )
        drawn = [0.0] * len(turns) if thinks is None else draw(thinks, len(turns), rng).tolist()
        given = [turn.think_s for turn in turns[1:]] + [None]
        return [pause if own is None else own for pause, own in zip(drawn, given, strict=True)]

    async def _sleep_until(self, at_s: float) -> None:
        # A loop that counts in milliseconds wakes up to half of one early.
        while (delay_s := at_s - self._clock()) > 0:  # noqa: ASYNC110  a time is awaited, not an event
            await asyncio.sleep(max(delay_s, _TICK_S))

    def _is_late(self, at_s: float) -> bool:
        """Whether no turn begins any more. Until the graceful stop users may finish theirs, as k6's do."""
        grace_s = (self._traffic.graceful_stop or 0.0) if self._traffic.is_closed else 0.0
        return self._traffic.duration is not None and at_s >= self._traffic.duration + grace_s

    def _note_unsent(self) -> None:
        """A request that was due but never begun was offered all the same."""
        for number, at_s in self._share.starts[self._begun :]:
            if self._stopped_s is not None and at_s > self._stopped_s:
                return
            index = self._numbering.first_index(number)
            failure = "not sent" if self._stopped_s is None else INTERRUPTED
            self.records.append(Record(index, number, 0, at_s, failure=failure))
            self.prompts.append(())
