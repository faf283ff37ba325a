"""The leader of workers on other machines: has them begin at one instant, and gathers what they noted.

The schedule is cut as for processes of one machine, and what comes back is put together the same way. A
worker that is lost takes the rest of its share with it: the others are ended, and the result says what is
missing.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import cast

import aiohttp
from aiohttp import ClientWebSocketResponse, WSMsgType, WSServerHandshakeError

from extproc.bench.load import messages
from extproc.bench.load.clocks import RoundTrip, find_fastest
from extproc.bench.load.driver import LEAD_S, LoadError, sum_standings
from extproc.bench.load.generator import Share
from extproc.bench.load.messages import Finished, MessageError, News, Noted, Prepared, Question, Refused, Told
from extproc.bench.load.parts import RecordStore, decode_lines, merge, name_part
from extproc.bench.load.secrecy import build_leader_context
from extproc.bench.load.worker import HEARTBEAT_S, PATH
from extproc.bench.progress import Progress, Standing
from extproc.bench.record import ClientStats, Record, WorkerStats

_AGAIN_S = 0.5
# TLS ends with a last word of the other side, which closing a session does not wait for.
_PARTING_S = 0.25
# The fastest of so many is close to what the network does when nothing is in the way.
_ROUND_TRIPS = 20
_ANSWER_S = 10.0
# For breaking off what is in flight, counting tokens and sending everything back.
_STOP_S = 120.0


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers of a run, `host, port` each, the token they share, and how long to wait for them."""

    workers: tuple[tuple[str, int], ...]
    token: str | None = None
    ready_within_s: float = 30.0

    @property
    def scheme(self) -> str:
        return "ws" if self.token is None else "wss"


@dataclass(frozen=True, slots=True)
class Offered:
    """What was offered: every record that came back, who noted them, and how the workers fared."""

    records: tuple[Record, ...]
    clients: tuple[ClientStats, ...]
    workers: tuple[WorkerStats, ...] = ()

    @property
    def is_whole(self) -> bool:
        return all(worker.lost is None for worker in self.workers)


class _Hand:
    """The leader's end of one worker."""

    def __init__(
        self,
        name: str,
        shares: Sequence[Share],
        socket: ClientWebSocketResponse,
        store: RecordStore,
        part: str,
    ) -> None:
        self.name, self.shares = name, shares
        self.records: list[Record] = []
        self.finished: Finished | None = None
        self.standing: Standing | None = None
        self.lost: str | None = None
        self.lost_s: float | None = None
        self.before: RoundTrip | None = None
        self.after: RoundTrip | None = None
        self.is_ready, self.is_over = asyncio.Event(), asyncio.Event()
        self._socket, self._part, self._store = socket, part, store
        self._lines = 0
        self._told: asyncio.Future[Told] | None = None

    async def tell(self, message: Question) -> None:
        await self._socket.send_bytes(messages.encode(message))

    async def order(self) -> None:
        for message in messages.list_orders(self.shares):
            await self.tell(message)

    async def measure(self) -> RoundTrip:
        """Asks for the worker's clocks again and again; returns the trip to go by."""
        return find_fastest([await self._ask() for _ in range(_ROUND_TRIPS)])

    async def _ask(self) -> RoundTrip:
        self._told = asyncio.get_running_loop().create_future()
        left_s, left_at_s = time.monotonic(), time.time()
        await self.tell(messages.Ask())
        async with asyncio.timeout(_ANSWER_S):
            told = await self._told
        back_s, back_at_s = time.monotonic(), time.time()
        return RoundTrip(left_s, told.monotonic_s, back_s, told.time_s - (left_at_s + back_at_s) / 2)

    async def hear(self) -> AsyncIterator[Standing]:
        """Takes in all that the worker says until it hangs up; yields its news."""
        try:
            async for frame in self._socket:
                if frame.type is not WSMsgType.BINARY:
                    break
                message = messages.decode_reply(frame.data)
                if isinstance(message, News):
                    self.standing = message.standing
                    yield message.standing
                else:
                    self._take(message)
        except (MessageError, LoadError) as error:
            self.lost = str(error)
        except OSError:
            self.lost = "it hung up"
        finally:
            # Whatever ends this: nobody is to wait for a worker that is not listened to.
            if self.finished is None:
                self.lose("it hung up")

    def lose(self, why: str) -> None:
        self.lost = self.lost or why
        self.is_ready.set()
        self.is_over.set()
        if self._told is not None and not self._told.done():
            self._told.set_exception(LoadError(f"worker {self.name}: {self.lost}"))

    def _take(self, message: messages.Reply) -> None:
        match message:
            case Prepared():
                self.is_ready.set()
            case Told() if self._told is not None and not self._told.done():
                self._told.set_result(message)
            case Noted(lines):
                self._keep(lines)
            case Finished(lines=count):
                if count != self._lines:
                    raise MessageError(f"{count} records were sent, {self._lines} came")
                self.finished = message
                self.is_over.set()
            case Refused(reason):
                self.lose(reason)

    def _keep(self, lines: bytes) -> None:
        try:
            self._store.append(self._part, lines)
        except OSError as error:
            raise LoadError(f"its records cannot be kept here: {error.strerror}") from None
        self._lines += lines.count(b"\n")

    def read_back(self) -> None:
        """Reads what the worker told, up to its end whichever that was."""
        try:
            self.records = merge([decode_lines(self._store.read(self._part))])
        except (OSError, ValueError) as error:
            self.lose(f"its records cannot be read: {error}")

    def describe(self) -> WorkerStats:
        before, after = cast("RoundTrip", self.before), self.after
        return WorkerStats(
            worker=self.name,
            processes=tuple(share.process for share in self.shares),
            starts=sum(len(share.starts) for share in self.shares),
            users=sum(share.users for share in self.shares),
            skew_s=before.skew_s,
            error_s=before.length_s / 2,
            records=len(self.records),
            drift_s=None if after is None else after.offset_s - before.offset_s,
            lost=self.lost,
            lost_s=self.lost_s,
        )


async def drive_crew(
    crew: Crew, shares: Sequence[Share], progress: Progress, stop: asyncio.Event, store: RecordStore
) -> Offered:
    """Has workers run the shares, which go round them, from one instant until all end or `stop` is set.

    What they note is in `store` as it comes, a part for each. Raises `LoadError` for a worker that cannot
    begin; one that is lost later is told of in the result.
    """
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(_open_session(crew.token))
        if crew.token is not None:
            stack.push_async_callback(asyncio.sleep, _PARTING_S)
        until_s = time.monotonic() + crew.ready_within_s
        hands = []
        for i, (host, port) in enumerate(crew.workers):
            name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            socket = await _connect(session, crew.scheme, name, until_s, stop)
            stack.push_async_callback(socket.close)
            hands.append(_Hand(name, shares[i :: len(crew.workers)], socket, store, name_part(i)))
        await stack.enter_async_context(_hearing(hands, progress))
        await _prepare(hands)
        start_s = await _begin(hands)
        await _wait(hands, start_s, stop)
        await _measure_again(hands)
    for hand in hands:
        hand.read_back()
    whole = [hand.finished for hand in hands if hand.lost is None and hand.finished is not None]
    if not whole:
        raise LoadError(f"every worker was lost: {hands[0].name}: {hands[0].lost}")
    return Offered(
        records=tuple(merge(hand.records for hand in hands)),
        clients=tuple(stats for finished in whole for stats in finished.stats),
        workers=tuple(hand.describe() for hand in hands),
    )


def _open_session(token: str | None) -> aiohttp.ClientSession:
    """A session that tells the token, and only to whom proves to know it."""
    if token is None:
        return aiohttp.ClientSession()
    connector = aiohttp.TCPConnector(ssl=build_leader_context(token))
    return aiohttp.ClientSession(connector=connector, headers={"Authorization": f"Bearer {token}"})


async def _connect(
    session: aiohttp.ClientSession, scheme: str, name: str, until_s: float, stop: asyncio.Event
) -> ClientWebSocketResponse:
    """Opens a socket to a worker, trying again while nobody listens or it is busy, until `stop` is set."""
    while True:
        try:
            return await session.ws_connect(
                f"{scheme}://{name}{PATH}", heartbeat=HEARTBEAT_S, max_msg_size=messages.MOST_BYTES
            )
        except aiohttp.ClientConnectorCertificateError:
            raise LoadError(f"worker {name}: it knows another token") from None
        except WSServerHandshakeError as error:
            fault = {401: "it wants another token", 503: "it is busy"}.get(error.status, f"{error.status}")
            if error.status != 503:
                raise LoadError(f"worker {name}: {fault}") from None
        except (aiohttp.ClientError, OSError) as error:
            fault = str(error) or type(error).__name__
        if stop.is_set():
            raise LoadError(f"interrupted before every worker was there: {name}: {fault}")
        if time.monotonic() + _AGAIN_S > until_s:
            raise LoadError(f"worker {name}: {fault}")
        await asyncio.sleep(_AGAIN_S)


@asynccontextmanager
async def _hearing(hands: Sequence[_Hand], progress: Progress) -> AsyncIterator[None]:
    async def hear(hand: _Hand) -> None:
        async for news in hand.hear():
            standings = [each.standing for each in hands if each.standing is not None]
            progress.update(sum_standings(standings, news))

    tasks = [asyncio.create_task(hear(hand)) for hand in hands]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _prepare(hands: Sequence[_Hand]) -> None:
    for hand in hands:
        # One that refuses hangs up before it has heard everything: its reason is on the way.
        with suppress(ConnectionError, aiohttp.ClientError):
            await hand.order()
    await asyncio.gather(*(hand.is_ready.wait() for hand in hands))
    for hand in hands:
        if hand.lost is not None:
            raise LoadError(f"worker {hand.name}: {hand.lost}")


async def _begin(hands: Sequence[_Hand]) -> float:
    """Measures the workers' clocks and tells each the start by its own; returns it by ours."""
    try:
        for hand in hands:
            hand.before = await hand.measure()
        trips = [hand.before for hand in hands if hand.before is not None]
        start_s = time.monotonic() + LEAD_S + max(trip.length_s for trip in trips)
        for hand, trip in zip(hands, trips, strict=True):
            await hand.tell(messages.Go(start_s + trip.offset_s))
    except (ConnectionError, aiohttp.ClientError, TimeoutError) as error:
        raise LoadError(f"a worker was lost before the start: {type(error).__name__}") from None
    return start_s


async def _wait(hands: Sequence[_Hand], start_s: float, stop: asyncio.Event) -> None:
    """Waits until all are over; when told to stop, or when one is lost, ends the others."""
    waiting = {asyncio.create_task(_wait_for(hand, start_s)): hand for hand in hands}
    stopping = asyncio.create_task(stop.wait())
    try:
        pending = set(waiting)
        while pending and not stop.is_set() and all(hand.lost is None for hand in hands):
            await asyncio.wait([*pending, stopping], return_when=asyncio.FIRST_COMPLETED)
            pending = {task for task in pending if not task.done()}
        if pending:
            await _halt([waiting[task] for task in pending])
            await asyncio.wait(pending, timeout=_STOP_S)
        for task in pending:
            if not task.done():
                waiting[task].lose(f"it did not end within {_STOP_S:g} s of being told")
    finally:
        stopping.cancel()
        for task in waiting:
            task.cancel()


async def _wait_for(hand: _Hand, start_s: float) -> None:
    await hand.is_over.wait()
    if hand.lost is not None:
        hand.lost_s = time.monotonic() - start_s


async def _halt(hands: Sequence[_Hand]) -> None:
    for hand in hands:
        with suppress(ConnectionError, aiohttp.ClientError):
            await hand.tell(messages.Halt())


async def _measure_again(hands: Sequence[_Hand]) -> None:
    """What the clocks did meanwhile; a worker that is gone by now has told all that counts."""
    for hand in hands:
        if hand.lost is None:
            with suppress(ConnectionError, aiohttp.ClientError, TimeoutError, LoadError):
                hand.after = await hand.measure()
