"""The workers as the parent has them: started, greeted, given connections, started again."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from time import monotonic
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from extproc.errors import SettingsError
from extproc.router.workers.channel import Channel, parent_end
from extproc.router.workers.forkserver import Child, ForkServer
from extproc.router.workers.handed import CONNECTION, SIBLING
from extproc.router.workers.messages import (
    CannotStart,
    Leave,
    LetGo,
    Ready,
    Serving,
    Told,
    ToParent,
    ToWorker,
    Welcome,
)
from extproc.router.workers.restarts import Restarts
from extproc.router.workers.spread import Held, Seat, choose, crowded

log = logging.getLogger("extproc.router.workers")

# A worker says something each second. One that hangs would keep its connections for good: no proxy would try
# another one, and a health check may never meet it.
_SILENT_S: Final = 20.0
_LOOK_S: Final = 1.0
# Meanwhile others get the connections, if there are any.
_MUTE_S: Final = 5.0
# Connections are few and live long; a proxy that was told to go elsewhere has done so by then.
_LET_GO_S: Final = 1.0

Line = Channel[ToWorker, ToParent]


@dataclass(slots=True)
class Member:
    """One worker that runs."""

    lane: int
    line: Line
    handing: socket.socket
    child: Child
    heard_s: float
    seat: Seat = field(default_factory=Seat)
    is_serving: bool = False
    why: str | None = None
    linked: set[int] = field(default_factory=set)  # the numbers of those that it has links to


def count_restarts(registry: CollectorRegistry) -> Counter:
    return Counter(
        "extproc_worker_restarts_total", "Workers that ended and were started again.", registry=registry
    )


class Workers:
    """`count` workers that `server` forks. `welcome` says what one starts from, `known` what it has to hear.

    `on_change` hears of each change of who is there, `restarts` counts.
    """

    def __init__(
        self,
        count: int,
        server: ForkServer,
        *,
        welcome: Callable[[int], Welcome],
        known: Callable[[], Iterable[Told]],
        on_change: Callable[[], None],
        restarts: Counter,
    ) -> None:
        self._count = count
        self._server = server
        self._welcome = welcome
        self._known = known
        self._on_change = on_change
        self._members: dict[int, Member] = {}
        self._statuses: dict[int, int] = {}
        self._has_served: set[int] = set()
        self._moved_s = 0.0
        self.leaving = asyncio.Event()
        self._restarts = restarts

    def __repr__(self) -> str:
        return f"<Workers {sorted(self._members)} of {self._count}>"

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    @property
    def has_all_served(self) -> bool:
        return len(self._has_served) == self._count

    @property
    def is_ready(self) -> bool:
        """Whether one of them can route."""
        return any(member.seat.is_ready for member in self)

    def serving(self) -> list[int]:
        """The numbers of those that take connections."""
        return sorted(member.lane for member in self if member.is_serving)

    def tell(self, message: ToWorker) -> None:
        for member in self:
            member.line.send(message)

    def hand(self, accepted: socket.socket) -> bool:
        """Gives a connection to a worker; whether one took it."""
        seats = {member.lane: member.seat for member in self if member.is_serving}
        while (lane := choose(seats)) is not None:
            member = self._members[lane]
            if _send(member.handing, CONNECTION, accepted):
                accepted.close()
                member.seat.handed += 1
                return True
            del seats[lane]  # it takes nothing now
        return False

    async def run(self) -> int:
        """Keeps them all running until told to leave; returns the worst of their last exit statuses.

        Raises `SettingsError` where one of the first cannot start.
        """
        watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.TaskGroup() as tasks:
                for lane in range(self._count):
                    tasks.create_task(self._keep(lane))
        finally:
            watching.cancel()
        return max(self._statuses.values(), default=0)

    def kill(self) -> None:
        """Ends those that are still there."""
        for member in self:
            member.child.kill()

    async def _watch(self) -> None:
        """Kills who hangs. Where we hung ourselves, nobody can be blamed for having been silent."""
        looked_s = monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            late_s, looked_s = monotonic() - looked_s - _LOOK_S, monotonic()
            for member in self:
                member.heard_s += max(0.0, late_s)
                silent_s = looked_s - member.heard_s
                if silent_s > _MUTE_S:
                    member.seat.is_ready = False  # until it says so again
                if silent_s > _SILENT_S:
                    log.error("worker %d has said nothing for %.0f s and is killed", member.lane, _SILENT_S)
                    member.child.kill()
            self._link()

    async def _keep(self, lane: int) -> None:
        restarts = Restarts()
        while not self.leaving.is_set():
            began_s = monotonic()
            status, why = await self._live(lane)
            if self.leaving.is_set():
                self._statuses[lane] = int(status != 0)
                return
            if lane not in self._has_served:
                raise SettingsError(why or f"worker {lane} ended before it served")
            self._restarts.inc()
            wait_s = restarts.wait_s(monotonic() - began_s)
            why = why or _describe(status)
            log.error("worker %d ended (%s), its next begins in %.1f s", lane, why, wait_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self.leaving.wait()

    async def _live(self, lane: int) -> tuple[int, str | None]:
        """One worker's life; returns its exit status, and why it ended where somebody said so."""
        try:
            member = await self._start(lane)
        except OSError as error:  # no descriptor is free, say
            return 1, f"it cannot be started: {error.strerror}"
        await self._hear(member)
        status = await member.child.ended
        self._forget(member)
        return status, member.why

    async def _start(self, lane: int) -> Member:
        """Begins a worker, linked with the others."""
        ours, theirs = socket.socketpair()
        handing, handed = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        handing.setblocking(False)
        ours.setblocking(False)
        child = self._server.fork(theirs, handed)
        theirs.close()
        handed.close()
        line: Line = await Channel.open(ours, parent_end())
        member = Member(lane, line, handing, child, monotonic())
        line.send(self._welcome(lane))
        for told in self._known():
            line.send(told)
        self._members[lane] = member
        self._link()
        if self.leaving.is_set():
            line.send(Leave())
        return member

    async def _hear(self, member: Member) -> None:
        """Takes what a worker says, to its end."""
        while (message := await member.line.receive()) is not None:
            member.heard_s = monotonic()
            match message:
                case Serving(pid):
                    log.info("worker %d serves, as process %d", member.lane, pid)
                    member.is_serving = True
                    self._has_served.add(member.lane)
                case Ready(faults):
                    member.seat.is_ready = not faults
                case CannotStart(why):
                    member.why = why
                case Held():
                    member.seat.held = message
            self._on_change()
            self._even()

    def _forget(self, member: Member) -> None:
        del self._members[member.lane]
        for other in self:
            other.linked.discard(member.lane)
        member.handing.close()
        asyncio.create_task(member.line.close())  # noqa: RUF006  # it has ended
        self._on_change()

    def _link(self) -> None:
        """Links those that are not yet: one that hangs, or has too many connections to take, has no room."""
        for one, other in combinations([*self], 2):
            if other.lane not in one.linked:
                _link(one, other)

    def _even(self) -> None:
        """Asks who has too many connections to let one go."""
        if self.leaving.is_set() or monotonic() - self._moved_s < _LET_GO_S:
            return
        lane = crowded({member.lane: member.seat for member in self if member.is_serving})
        if lane is not None:
            self._moved_s = monotonic()
            self._members[lane].line.send(LetGo())


def _link(one: Member, other: Member) -> None:
    """Gives both an end of a socket pair; where one finds no room, the other one reads that it is gone."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sent = [
        _send(member.handing, SIBLING + bytes([far.lane]), end)
        for end, member, far in zip(ends, (one, other), (other, one), strict=True)
    ]
    for end in ends:
        end.close()
    if all(sent):
        one.linked.add(other.lane)
        other.linked.add(one.lane)


def _send(handing: socket.socket, kind: bytes, given: socket.socket) -> bool:
    with suppress(OSError):
        socket.send_fds(handing, [kind], [given.fileno()])
        return True
    return False


def _describe(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
