"""The live page's events: one state a second to every subscriber, and no work at all while there is none.

The first subscriber starts the recording and a task, the last one's leaving ends both. A subscriber
has one state on its way at most; one that does not read for a while is disconnected, so nothing
piles up.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic
from typing import Final

from aiohttp import web
from msgspec.json import encode

from extproc.router.service.connection_limit import ConnectionLimit
from extproc.router.service.live.build_state import WINDOW_S, LiveService, StateBuilder
from extproc.router.service.live.recorder import Recording
from extproc.router.service.live.service_state import Reasons

log = logging.getLogger(__name__)

PACE_S: Final = 1.0
LIMIT: Final = 16
# How long a state may be on its way.
SLOW_S: Final = 5.0
# A new subscriber gets the reasons of so many states before.
_HISTORY: Final = 2 * WINDOW_S + 1

_HEADERS: Final = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-accel-buffering": "no",
}


class _Subscriber:
    """One viewer, with the newest state that it has not been sent."""

    def __init__(self) -> None:
        self._state: bytes | None = None
        self._changed = asyncio.Event()

    def put(self, state: bytes | None) -> None:
        self._state = state
        self._changed.set()

    async def next(self) -> bytes | None:
        """Returns the newest; `None`: there will be no more."""
        await self._changed.wait()
        self._changed.clear()
        return self._state


class StatePublisher:
    """Sends the state of `service` to its subscribers, `most` of them at a time."""

    def __init__(
        self,
        service: LiveService,
        limit: ConnectionLimit,
        *,
        clock: Callable[[], float] = monotonic,
        most: int = LIMIT,
        pace_s: float = PACE_S,
        slow_s: float = SLOW_S,
    ) -> None:
        self._service = service
        self._limit = limit
        self._clock = clock
        # Viewers must leave room for scrapers.
        self._most = min(most, max(1, limit.most // 2))
        self._pace_s = pace_s
        self._slow_s = slow_s
        self._subscribers: set[_Subscriber] = set()
        self._task: asyncio.Task[None] | None = None
        self._stop_recording: Callable[[], None] = lambda: None
        self._last: bytes | None = None
        self._history: deque[Reasons] = deque(maxlen=_HISTORY)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if len(self._subscribers) >= self._most:
            text = f"{len(self._subscribers)} others are looking already\n"
            return web.Response(text=text, status=503, headers={"retry-after": "5"})
        response = web.StreamResponse(headers=_HEADERS)
        with self._subscribe() as subscriber, self._limit.stay(request):
            try:
                await response.prepare(request)
                await response.write(_event(list(self._history), "history"))
                await self._send(request, response, subscriber)
            except TimeoutError:
                log.info("a viewer that does not keep up is disconnected")
                if request.transport is not None:
                    request.transport.abort()
            except ConnectionError:
                pass  # it left
        return response

    async def close(self, _: object = None) -> None:
        """Ends every stream."""
        for subscriber in self._subscribers:
            subscriber.put(None)

    async def _send(
        self, request: web.Request, response: web.StreamResponse, subscriber: _Subscriber
    ) -> None:
        sent_s = self._clock()
        while (state := await subscriber.next()) is not None:
            transport = request.transport
            if transport is None:
                return
            if not transport.get_write_buffer_size():
                sent_s = self._clock()
                async with asyncio.timeout(self._slow_s):
                    await response.write(state)
            elif self._clock() - sent_s > self._slow_s:
                raise TimeoutError

    @contextmanager
    def _subscribe(self) -> Generator[_Subscriber]:
        subscriber = _Subscriber()
        if not self._subscribers:
            recording = Recording(self._clock)
            self._stop_recording = self._service.record(recording)
            self._task = asyncio.create_task(self._publish(StateBuilder(recording)), name="live")
        elif self._last is not None:
            subscriber.put(self._last)
        self._subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)
            if not self._subscribers:
                self._end()

    def _end(self) -> None:
        self._stop_recording()
        if self._task is not None:
            self._task.cancel()
        self._task = self._last = None
        self._history.clear()

    async def _publish(self, builder: StateBuilder) -> None:
        try:
            while True:
                state = await asyncio.to_thread(builder.read(self._service, self._clock()))
                self._history.append(state.reasons)
                self._last = _event(state)
                for subscriber in self._subscribers:
                    subscriber.put(self._last)
                await asyncio.sleep(self._pace_s)
        except Exception as error:  # noqa: BLE001  # requests are served on
            log.error("the live page ends: %s", type(error).__name__)  # noqa: TRY400
            await self.close()


def _event(value: object, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: %s\n" % name.encode()
    return b"%sdata: %s\n\n" % (head, encode(value))
