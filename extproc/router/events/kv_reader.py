"""Reads the KV events of a pool's engines: one connection to each of their publishers."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from time import thread_time
from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar
from msgspec import MsgspecError, Struct, field, json

from extproc.errors import ProtocolError
from extproc.router.events.event_socket import ANSWER_S, EventFlood, Ration, connect
from extproc.router.events.kv_log import EventLog, EventLogs
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool

log = logging.getLogger(__name__)

_OK: Final = 200
# An engine may have started again with other flags.
_FIND_S: Final = 30.0
_SOURCES_BYTES: Final = 16_384
# Each holds a message and a descriptor here.
_MOST_SOURCES: Final = 16
_REPLAYED: Final = 1_000
_RECONNECT_S: Final = 0.5
# For so long a publisher that floods us, or does not speak ZMTP, is left alone.
_LEFT_ALONE_S: Final = 30.0


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
        limit, jar = ClientTimeout(total=ANSWER_S), DummyCookieJar()
        following: dict[tuple[str, str], asyncio.Task[None]] = {}
        async with (
            ClientSession(
                timeout=limit, cookie_jar=jar, auto_decompress=False, headers=self._headers
            ) as session,
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
                    following[key] = tasks.create_task(self._follow(session, ready[key]))
                await self._has_changed.wait()

    async def _follow(self, session: ClientSession, endpoint: Endpoint) -> None:
        sources, lines = None, list[asyncio.Task[None]]()
        ration, replays = Ration(self._clock), asyncio.Lock()
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
                        tasks.create_task(
                            self._listen(_Line(endpoint, source, ration, replays), one)
                        )
                        for source, one in zip(found, logs, strict=True)
                    ]
                await asyncio.sleep(ANSWER_S if found is None else _FIND_S)

    async def _listen(self, line: "_Line", one: EventLog) -> None:
        name = line.endpoint.name
        while True:
            before, why = one.why, ""
            try:
                async with aclosing(line.messages(one.due)) as messages:
                    async for number, payload in messages:
                        async with self._turn:
                            await self._take(line, one, number, payload)
            except OSError:
                # What is missed meanwhile, the next number tells.
                await asyncio.sleep(_RECONNECT_S)
                continue
            except EventFlood:
                why = "flood"
            except ProtocolError as error:
                why = "garbled"
                log.warning("pool %s: KV events of %s: %s", self._pool.name, name, error)
            one.fail(why, self._clock())
            one.next = None
            self._warn_of(name, one, before)
            await asyncio.sleep(_LEFT_ALONE_S)

    async def _take(self, line: "_Line", one: EventLog, number: int, payload: bytes) -> None:
        name, before = line.endpoint.name, one.why
        steps = one.receive(number, payload, self._clock())
        while True:
            began_s = thread_time()
            is_empty = next(steps, None)
            if is_empty is None:
                break
            taken_s = thread_time() - began_s
            if is_empty and self._pool.strategy.signals is not None:
                log.info("pool %s: %s has emptied its cache", self._pool.name, name)
                # What is forgotten, we picked: it is no work that an engine could make.
                for _ in self._pool.strategy.signals.forget_idle(name):
                    await asyncio.sleep(0)
            await line.ration.spend(taken_s)
        self._warn_of(name, one, before)

    def _warn_of(self, name: str, one: EventLog, before: str) -> None:
        if one.why not in {before, ""}:
            log.warning("pool %s: KV events of %s: %s", self._pool.name, name, one.why)


class _Line(Struct):
    """What one publisher sends, and sends again: one replay at a time for all of an endpoint's."""

    endpoint: Endpoint
    _source: EventSource
    ration: Ration
    _replays: asyncio.Lock

    async def messages(self, due: Callable[[int], int | None]) -> AsyncGenerator[tuple[int, bytes]]:
        """Yields numbers and payloads; before one that comes too early those that its replay has."""
        host, again = self.endpoint.address.rpartition(":")[0], self._source.replay_endpoint
        async with connect("SUB", host, _port_of(self._source.endpoint), self.ration) as publisher:
            while True:
                number, payload = _split(await publisher.receive())
                first = due(number)
                if first is not None and number - first <= _REPLAYED and again:
                    async with (
                        self._replays,
                        aclosing(self._replay(host, again, first, number)) as all_of_it,
                    ):
                        async for each in all_of_it:
                            yield each
                yield number, payload

    async def _replay(
        self, host: str, endpoint: str, first: int, stop: int
    ) -> AsyncGenerator[tuple[int, bytes]]:
        by_s = asyncio.get_running_loop().time() + ANSWER_S
        with suppress(OSError):
            async with connect("DEALER", host, _port_of(endpoint), self.ration) as replayer:
                await replayer.ask(b"", first.to_bytes(8))
                for _ in range(first, stop):
                    async with asyncio.timeout_at(by_s):
                        parts = await replayer.receive()
                    number, payload = _split(parts[1:])
                    if not first <= number < stop:
                        break
                    yield number, payload


def _split(parts: list[bytes]) -> tuple[int, bytes]:
    """Number and payload of topic, number, payload; the number is -1 where the parts are others."""
    return (
        (int.from_bytes(parts[1]), parts[2])
        if len(parts) == 3 and len(parts[1]) == 8
        else (-1, b"")
    )


def _port_of(endpoint: str) -> int:
    """The port of `tcp://*:5557`; 0, where nobody listens, if it names none."""
    port = endpoint.rpartition(":")[2]
    return (
        int(port)
        if port.isascii() and port.isdigit() and 0 < len(port) < 6 and int(port) < 65_536
        else 0
    )


async def find_sources(session: ClientSession, address: str) -> list[EventSource] | None:
    """Asks an engine for its publishers; empty where it has none, or is none; `None` without an answer."""
    try:
        async with session.get(
            f"http://{address}/kv_event_sources",
            allow_redirects=False,
            headers={"accept-encoding": "identity"},
        ) as answer:
            page = bytearray()
            async for piece in answer.content.iter_any():
                page += piece
                if len(page) > _SOURCES_BYTES:
                    return []
            is_told = answer.status == _OK
            found = json.decode(page, type=dict[str, EventSource]) if is_told else {}
    except (ClientError, OSError, TimeoutError):
        return None
    except (MsgspecError, ValueError):
        return []
    return [found[rank] for rank in sorted(found)][:_MOST_SOURCES]
