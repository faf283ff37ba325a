"""Reads the KV events of a pool's engines: one connection to each of their publishers (extra `events`)."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from time import thread_time
from typing import Any, Final

import zmq
from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar
from msgspec import MsgspecError, Struct, field, json

from extproc.grpc_server.budget import TokenBucket
from extproc.router.events.kv_log import EventLog, EventLogs
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool

log = logging.getLogger(__name__)

_OK: Final = 200
# An engine may have started again with other flags.
_FIND_S: Final = 30.0
_ANSWER_S: Final = 2.0
_SOURCES_BYTES: Final = 65_536
_MOST_SOURCES: Final = 64
# What of one publisher may wait here, in messages: what is dropped is a gap. One that is longer
# than we read is let in, so that it is noticed.
_QUEUED: Final = 64
_LET_IN_BYTES: Final = 4_194_304
_REPLAYED: Final = 1_000
# Seconds of our time that a publisher may take in a second, and at once; a message takes so much at
# least. One that takes more is left alone for a while.
_WORK: Final = 0.1
_BURST_S: Final = 0.1
_MESSAGE_S: Final = 50e-6
_FLOOD_S: Final = 30.0

_OPTIONS: Final = (
    *((zmq.RCVHWM, _QUEUED), (zmq.MAXMSGSIZE, _LET_IN_BYTES), (zmq.LINGER, 0), (zmq.IPV6, 1)),
    *((zmq.RECONNECT_IVL, 100), (zmq.RECONNECT_IVL_MAX, 500), (zmq.HEARTBEAT_IVL, 10_000)),
)

Frames = list[bytes]


class EventSource(Struct, frozen=True):
    """Where a rank publishes, and where it sends again what somebody missed; as vLLM names it."""

    endpoint: str = ""
    replay_endpoint: str | None = None


class EventReader(Struct):
    """Follows the events of a pool's ready endpoints: `heard` has them, its strategy forgets what they end.

    `has_changed` is set whenever the pool has another list of endpoints.
    Engines name their publishers, unless all have one at `port`. Messages are read in turns: after
    each one everybody else's work comes first.
    """

    _pool: Pool
    _heard: EventLogs
    _port: int | None
    _headers: Mapping[str, str]
    _clock: Callable[[], float]
    _has_changed: asyncio.Event
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        limit, jar = ClientTimeout(total=_ANSWER_S), DummyCookieJar()
        following: dict[tuple[str, str], asyncio.Task[None]] = {}
        context = zmq.Context[Any]()
        context.set(zmq.MAX_SOCKETS, 8_192)
        try:
            async with (
                ClientSession(timeout=limit, cookie_jar=jar, headers=self._headers) as session,
                asyncio.TaskGroup() as tasks,
            ):
                while True:
                    self._has_changed.clear()
                    endpoints = self._pool.snapshot.ready.values()
                    ready = {(one.name, one.address): one for one in endpoints}
                    for gone in following.keys() - ready.keys():
                        following.pop(gone).cancel()
                        self._heard.pop(gone[0], None)
                    for key in ready.keys() - following.keys():
                        following[key] = tasks.create_task(
                            self._follow(context, session, ready[key])
                        )
                    await self._has_changed.wait()
        finally:
            context.destroy(linger=0)

    async def _follow(
        self, context: zmq.Context[Any], session: ClientSession, endpoint: Endpoint
    ) -> None:
        sources, lines = None, list[asyncio.Task[None]]()
        self._heard[endpoint.name] = []
        async with asyncio.TaskGroup() as tasks:
            while True:
                found = (
                    [EventSource(f"tcp://*:{self._port}")]
                    if self._port
                    else await find_sources(session, endpoint.address)
                )
                if found is not None and found != sources:
                    for line in lines:
                        line.cancel()
                    sources, logs = found, [EventLog(self._clock()) for _ in found]
                    self._heard[endpoint.name] = logs
                    lines = [
                        tasks.create_task(self._listen(_Line(context, endpoint, source), one))
                        for source, one in zip(found, logs, strict=True)
                    ]
                await asyncio.sleep(_ANSWER_S if found is None else _FIND_S)

    async def _listen(self, line: "_Line", one: EventLog) -> None:
        work = TokenBucket(_WORK, _BURST_S)
        while True:
            try:
                async with aclosing(line.messages(one.due)) as messages:
                    async for number, payload in messages:
                        async with self._turn:
                            began_s = thread_time()
                            self._take(line.endpoint.name, one, number, payload)
                            work.spend(thread_time() - began_s + _MESSAGE_S)
                            await asyncio.sleep(0)
                        if work.wait_s(self._clock()):
                            break
                why = "flood"
            except zmq.ZMQError as error:
                why = "silent"
                log.warning(
                    "pool %s: no KV events of %s: %s", self._pool.name, line.endpoint.name, error
                )
            one.fail(why, self._clock())
            one.next = None
            await asyncio.sleep(_FLOOD_S)

    def _take(self, name: str, one: EventLog, number: int, payload: bytes) -> None:
        before, is_empty = one.why, one.receive(number, payload, self._clock())
        if is_empty and self._pool.strategy.signals is not None:
            self._pool.strategy.signals.forget_cache(name, keeps_open=True)
            log.info("pool %s: %s has emptied its cache", self._pool.name, name)
        if one.why not in {before, ""}:
            log.warning("pool %s: KV events of %s: %s", self._pool.name, name, one.why)


class _Line(Struct):
    """What one publisher sends, and sends again; raises `ZMQError` where no socket can be had."""

    _context: zmq.Context[Any]
    endpoint: Endpoint
    _source: EventSource

    async def messages(self, due: Callable[[int], int | None]) -> AsyncGenerator[tuple[int, bytes]]:
        """Yields numbers and payloads; before one that comes too early those that its replay has."""
        with self._open(zmq.SUB, self._source.endpoint) as (_, receive):
            while True:
                number, payload = _split(await receive())
                first = due(number)
                if (
                    first is not None
                    and number - first <= _REPLAYED
                    and self._source.replay_endpoint
                ):
                    for each in await self._replay(self._source.replay_endpoint, first, number):
                        yield each
                yield number, payload

    async def _replay(self, endpoint: str, first: int, stop: int) -> Sequence[tuple[int, bytes]]:
        found = list[tuple[int, bytes]]()
        with self._open(zmq.DEALER, endpoint) as (socket, receive), suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                socket.send_multipart((b"", first.to_bytes(8)))
                while len(found) < stop - first:
                    number, payload = _split((await receive())[1:])
                    if not first <= number < stop:
                        break
                    found.append((number, payload))
                    await asyncio.sleep(
                        0
                    )  # what is there already is had without a turn of the loop
        return found

    @contextmanager
    def _open(
        self, kind: int, endpoint: str
    ) -> Iterator[tuple[Any, Callable[[], Awaitable[Frames]]]]:
        """Yields a socket and what receives of it: half the work of the library's own for asyncio."""
        loop, is_ready = asyncio.get_running_loop(), asyncio.Event()
        with self._context.socket(kind) as socket:

            async def receive() -> Frames:
                while True:
                    is_ready.clear()
                    with suppress(zmq.Again):
                        frames: Frames = socket.recv_multipart(zmq.NOBLOCK)
                        return frames
                    await is_ready.wait()

            for option, value in _OPTIONS:
                socket.set(option, value)
            if kind == zmq.SUB:
                socket.subscribe(b"")
            host = self.endpoint.address.rpartition(":")[0]
            socket.connect(f"tcp://{host}:{endpoint.rpartition(':')[2]}")
            loop.add_reader(socket.fileno(), is_ready.set)
            try:
                yield socket, receive
            finally:
                loop.remove_reader(socket.fileno())


def _split(frames: Frames) -> tuple[int, bytes]:
    """Number and payload of topic, number, payload; the number is -1 where the frames are others."""
    return (
        (int.from_bytes(frames[1]), frames[2])
        if len(frames) == 3 and len(frames[1]) == 8
        else (-1, b"")
    )


async def find_sources(session: ClientSession, address: str) -> list[EventSource] | None:
    """Asks an engine for its publishers; empty where it has none, or is none; `None` without an answer."""
    try:
        async with session.get(
            f"http://{address}/kv_event_sources", allow_redirects=False
        ) as answer:
            is_told = answer.status == _OK and 0 < (answer.content_length or 0) <= _SOURCES_BYTES
            found = json.decode(await answer.read(), type=dict[str, EventSource]) if is_told else {}
    except (ClientError, OSError, TimeoutError):
        return None
    except (MsgspecError, ValueError):
        return []
    return [found[rank] for rank in sorted(found)][:_MOST_SOURCES]
