"""Takes this gateway's letters to a carrier and the others' letters from it, for all pools.

No request waits for anything here: a pick leaves its news in its pool's share, and the first of
them sets a timer that posts them. The news of other pools go out with them.
"""

# The rules of what comes in:
#
# - A letter's number, the nonce's count, is higher than that of its sender's last one, or else it
#   is dropped unread: recorded letters have no effect while we remember their sender. Carriers keep
#   the order. No flood of new senders makes us forget an active one; and the letters of one that is
#   forgotten, or that is new since our start, have no effect before it has echoed us
#   (`share.peers`).
# - One sender may take so much of our CPU time and no more: what it sends beyond that is dropped
#   unread. Heartbeats heal it, as they heal a loss. All senders that we do not know yet share one
#   bucket. It is CPU time, not wall clock: a process that was stopped for half a second must not
#   take it out on its peers.
# - A sender whose letter is refused gets no answer.

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import thread_time
from typing import Final, Protocol

from extproc.grpc_server.budget import TokenBucket
from extproc.router.routing.pool import Pool
from extproc.router.share.letters import Letter, name_of
from extproc.router.share.peers import MAX_PEERS
from extproc.router.share.pool_share import HEARTBEAT_S, Share
from extproc.router.share.sealed import VERSION, LetterError, Seal

log = logging.getLogger(__name__)

# The share of a core that one sender may take: some ten thousand picks a second.
_CPU_SHARE: Final = 0.1
# We remember so many senders' numbers; one that was silent for `_FORGOTTEN_S` may give way to a new
# one.
MOST_SENDERS: Final = 2 * MAX_PEERS
_FORGOTTEN_S: Final = 60.0
_NAME: Final = slice(len(VERSION), len(VERSION) + 8)
_COUNT: Final = slice(len(VERSION) + 8, len(VERSION) + 12)

RESULTS: Final = ("sent", "unsent", "heard", "repeated", "flood", "foreign", "version", "garbled")
"""What becomes of letters."""


LetterCounts = dict[str, int]
"""Letters by what became of them, one of `RESULTS`."""


class Receiver(Protocol):
    """Takes what a carrier delivers."""

    def receive(self, data: bytes) -> int | None:
        """Takes a letter; returns its sender's name, `None` if it is not from this cluster."""

    def lose(self, sender: int) -> None:
        """Notes that a sender's connection is gone."""


class Carrier(Protocol):
    """Brings sealed letters to all other gateways. May lose them; never keeps anybody waiting."""

    async def open(self) -> None:
        """Opens its sockets; raises `SettingsError` where it cannot."""

    async def run(self, receiver: Receiver) -> None:
        """Delivers what comes in until cancelled; goes on through every failure of its own."""

    def send(self, data: bytes) -> None:
        """Sends what can be sent at once and drops the rest; raises nothing."""

    async def close(self) -> None:
        """Ends, after what was sent has left."""


class _Sender:
    """Another gateway that sent a letter of this cluster."""

    __slots__ = ("bucket", "count", "last_s")

    def __init__(self) -> None:
        self.count, self.last_s = -1, 0.0
        self.bucket = TokenBucket(_CPU_SHARE, _CPU_SHARE)


class Courier:
    """`build_seal` makes the seal of a name; `draw` a name, 64 bits at random.

    `clock` counts seconds, `cpu_clock` the CPU seconds of the thread that runs us.
    """

    def __init__(
        self,
        carrier: Carrier,
        build_seal: Callable[[int], Seal],
        letter_counts: LetterCounts,
        *,
        draw: Callable[[], int],
        clock: Callable[[], float],
        cpu_clock: Callable[[], float] = thread_time,
    ) -> None:
        self.letter_counts = letter_counts
        self.carrier = carrier
        self._build_seal = build_seal
        self._draw = draw
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._me = draw()
        self._seal = build_seal(self._me)
        self._shares: dict[int, Share] = {}  # by the names that letters give to pools
        self._senders: OrderedDict[int, _Sender] = OrderedDict()
        self._strangers = TokenBucket(_CPU_SHARE, _CPU_SHARE)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._posting: asyncio.TimerHandle | None = None

    def keep(self, pool: Pool) -> None:
        self._shares[name_of(pool.name)] = Share(pool, self._me, self._plan_post)

    def forget(self, pool: str) -> None:
        """Tells the others that we are out of a pool."""
        share = self._shares.pop(name_of(pool))
        share.pool.witness = None
        self._send(share.farewell(self._clock()))
        for sender in [*share.peers.delays()]:
            share.peers.lose(sender)

    def shares(self) -> Mapping[str, Share]:
        return {share.pool.name: share for share in self._shares.values()}

    async def run(self) -> None:
        """Shares until cancelled; then says farewell."""
        self._loop = asyncio.get_running_loop()
        self._plan_post()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.carrier.run(self))
                tasks.create_task(self._keep_beating())
        finally:
            self._loop = None
            for share in self._shares.values():
                self._send(share.farewell(self._clock()))
            await self.carrier.close()

    def receive(self, data: bytes) -> int | None:
        started_s = self._cpu_clock()
        name, count = int.from_bytes(data[_NAME]), int.from_bytes(data[_COUNT])
        sender = self._senders.get(name)
        if sender is not None and count <= sender.count:
            self.letter_counts["repeated"] += 1
            return None
        bucket = sender.bucket if sender is not None else self._strangers
        if bucket.wait_s(self._clock()):
            self.letter_counts["flood"] += 1
            return name if sender is not None else None
        letter = self._open(data)
        if letter is not None:
            self._accept(letter, sender or self._admit(name), count)
        bucket.spend(self._cpu_clock() - started_s)
        return name if letter is not None else None

    def lose(self, sender: int) -> None:
        for share in self._shares.values():
            share.peers.lose(sender)

    def _open(self, data: bytes) -> Letter | None:
        try:
            return self._seal.open(data)
        except LetterError as error:
            why = str(error)
            self.letter_counts[why if why in RESULTS else "garbled"] += 1
            return None

    def _admit(self, name: int) -> _Sender | None:
        """Remembers a new sender, in the place of one that was long silent; `None` if there is no place."""
        if len(self._senders) >= MOST_SENDERS:
            oldest, sender = next(iter(self._senders.items()))
            if self._clock() - sender.last_s < _FORGOTTEN_S:
                return None
            del self._senders[oldest]
        sender = self._senders[name] = _Sender()
        return sender

    def _accept(self, letter: Letter, sender: _Sender | None, count: int) -> None:
        if sender is None:
            self.letter_counts["flood"] += 1
            return
        now = self._clock()
        sender.count, sender.last_s = count, now
        self._senders.move_to_end(letter.peer)
        share = self._shares.get(letter.pool)
        if share is not None and letter.peer != self._me:
            self.letter_counts["heard"] += 1
            share.receive(letter, now)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            _guard(self._beat)

    def _plan_post(self) -> None:
        if self._loop is not None and self._posting is None and self._shares:
            wait_s = min(share.wait_s for share in self._shares.values())
            self._posting = self._loop.call_later(wait_s, _guard, self._post)

    def _post(self) -> None:
        self._posting = None
        for share in self._shares.values():
            for letter in share.letters(self._clock()):
                self._send(letter)

    def _beat(self) -> None:
        if self._seal.is_used_up:
            self._begin_anew()
        for share in self._shares.values():
            self._send(share.heartbeat(self._clock()))

    def _begin_anew(self) -> None:
        """A seal has 2³² letters: after months of them we are somebody else."""
        pools = [share.pool for share in self._shares.values()]
        for pool in pools:
            self.forget(pool.name)
        self._me = self._draw()
        self._seal = self._build_seal(self._me)
        for pool in pools:
            self.keep(pool)

    def _send(self, letter: Letter) -> None:
        self.carrier.send(self._seal.close(letter))


def _guard(routine: Callable[[], None]) -> None:
    """Goes on after whatever went wrong: the next time may be good, and picks go on anyhow."""
    try:
        routine()
    except Exception as error:  # noqa: BLE001  # as said
        log.error("sharing picks: %s", type(error).__name__)  # noqa: TRY400  # its text may quote a prompt
