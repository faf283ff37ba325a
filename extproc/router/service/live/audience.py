"""Who looks: server-sent events, one picture a second, and nothing at all while nobody does.

The first viewer starts a task and who draws, the last one's leaving ends both. A viewer has
one picture on its way at most; who does not take it for a while is shown out, so nothing piles up.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final, Protocol

from aiohttp import web
from msgspec.json import encode

from extproc.router.service.door import Door
from extproc.router.service.live.painter import WINDOW_S
from extproc.router.service.live.picture import Picture, Reasons

log = logging.getLogger(__name__)

PACE_S: Final = 1.0
LIMIT: Final = 16
# How long a picture may be on its way.
SLOW_S: Final = 5.0
# Reasons of so many pictures are told to who comes later.
_HISTORY: Final = 2 * WINDOW_S + 1

_HEADERS: Final = {
    "content-type": "text/event-stream",
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "x-accel-buffering": "no",
}


class Drawer(Protocol):
    """Who makes the pictures, while somebody looks."""

    def begin(self) -> None: ...

    async def draw(self) -> Picture:
        """Returns a picture of now."""
        ...

    def end(self) -> None: ...


class _Seat:
    """One viewer's place: the newest picture that it has not been sent."""

    def __init__(self) -> None:
        self._picture: bytes | None = None
        self._news = asyncio.Event()

    def show(self, picture: bytes | None) -> None:
        self._picture = picture
        self._news.set()

    async def next(self) -> bytes | None:
        """Returns the newest; `None`: there will be no more."""
        await self._news.wait()
        self._news.clear()
        return self._picture


class Audience:
    """The viewers of one service, `limit` of them at a time."""

    def __init__(
        self,
        drawer: Drawer,
        door: Door,
        *,
        clock: Callable[[], float],
        limit: int = LIMIT,
        pace_s: float = PACE_S,
        slow_s: float = SLOW_S,
    ) -> None:
        self._drawer = drawer
        self._door = door
        self._clock = clock
        # Who looks must leave room for who scrapes.
        self._limit = min(limit, max(1, door.limit // 2))
        self._pace_s = pace_s
        self._slow_s = slow_s
        self._seats: set[_Seat] = set()
        self._task: asyncio.Task[None] | None = None
        self._last: bytes | None = None
        self._history: deque[Reasons] = deque(maxlen=_HISTORY)

    def __repr__(self) -> str:
        return f"<Audience of {len(self._seats)}>"

    def __len__(self) -> int:
        return len(self._seats)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if len(self._seats) >= self._limit:
            text = f"{len(self._seats)} others are looking already\n"
            return web.Response(text=text, status=503, headers={"retry-after": "5"})
        response = web.StreamResponse(headers=_HEADERS)
        with self._seat() as seat, self._door.stay(request):
            try:
                await response.prepare(request)
                await response.write(_event(list(self._history), "history"))
                await self._show(request, response, seat)
            except TimeoutError:
                log.info("a viewer that does not keep up is shown out")
                if request.transport is not None:
                    request.transport.abort()
            except ConnectionError:
                pass  # it left
        return response

    async def close(self, _: object = None) -> None:
        """Sends everybody home."""
        for seat in self._seats:
            seat.show(None)

    async def _show(self, request: web.Request, response: web.StreamResponse, seat: _Seat) -> None:
        sent_s = self._clock()
        while (picture := await seat.next()) is not None:
            transport = request.transport
            if transport is None:
                return
            if not transport.get_write_buffer_size():
                sent_s = self._clock()
                async with asyncio.timeout(self._slow_s):
                    await response.write(picture)
            elif self._clock() - sent_s > self._slow_s:
                raise TimeoutError

    @contextmanager
    def _seat(self) -> Generator[_Seat]:
        seat = _Seat()
        if not self._seats:
            self._begin()
        elif self._last is not None:
            seat.show(self._last)
        self._seats.add(seat)
        try:
            yield seat
        finally:
            self._seats.discard(seat)
            if not self._seats:
                self._end()

    def _begin(self) -> None:
        self._drawer.begin()
        self._task = asyncio.create_task(self._draw(), name="live")

    def _end(self) -> None:
        self._drawer.end()
        if self._task is not None:
            self._task.cancel()
        self._task = self._last = None
        self._history.clear()

    async def _draw(self) -> None:
        try:
            while True:
                drawn = await self._drawer.draw()
                self._history.append(drawn.reasons)
                self._last = _event(drawn)
                for seat in self._seats:
                    seat.show(self._last)
                await asyncio.sleep(self._pace_s)
        except Exception as error:  # noqa: BLE001  # requests are served on
            log.error("no more pictures: %s", type(error).__name__)  # noqa: TRY400
            await self.close()


def _event(value: object, name: str | None = None) -> bytes:
    head = b"" if name is None else b"event: %s\n" % name.encode()
    return b"%sdata: %s\n\n" % (head, encode(value))
