"""Draws all workers while somebody looks: takes each one's stream of pictures, and none while nobody does."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final

import aiohttp

from extproc.errors import ExtprocError
from extproc.router.service.live.picture import Picture
from extproc.router.service.live.stream import watch
from extproc.router.workers.view.asking import Workers
from extproc.router.workers.view.mosaic import Mosaic

log = logging.getLogger(__name__)

# How long the first picture waits for those that have not told yet.
_FIRST_S: Final = 1.0
_AGAIN_S: Final = 1.0


class _Stream:
    """One worker's pictures, from the moment when somebody looks, or the worker begins, until either ends."""

    def __init__(self, worker: str, socket: Path, hear: Callable[[str, Picture], None]) -> None:
        self._worker = worker
        self._socket = socket
        self._hear = hear
        self.has_told = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"live {worker}")

    def close(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                connector = aiohttp.UnixConnector(str(self._socket), force_close=True)
                async with aclosing(watch("http://worker", connector)) as pictures:
                    async for picture in pictures:
                        self._hear(self._worker, picture)
                        self.has_told.set()
            except ExtprocError as error:
                log.debug("%s tells nothing: %s", self._worker, error)
            await asyncio.sleep(_AGAIN_S)


class WorkersStudio:
    """Draws the workers that live; `faults` are why the service is not ready whatever they say."""

    def __init__(self, workers: Workers, faults: Callable[[], list[str]], clock: Callable[[], float]) -> None:
        self._workers = workers
        self._faults = faults
        self._clock = clock
        self._streams: dict[str, _Stream] = {}
        self._mosaic = Mosaic()
        self._is_first = True

    def begin(self) -> None:
        self._mosaic = Mosaic()
        self._is_first = True
        self._follow()

    async def draw(self) -> Picture:
        self._follow()
        if self._is_first:
            self._is_first = False
            # It is said of whom nothing came by then.
            with suppress(TimeoutError):
                async with asyncio.timeout(_FIRST_S):
                    await asyncio.gather(*(stream.has_told.wait() for stream in self._streams.values()))
        now = self._clock()
        silent = [
            f"{worker} does not answer" for worker in self._streams if self._mosaic.is_silent(worker, now)
        ]
        return self._mosaic.draw(now, self._faults(), silent)

    def end(self) -> None:
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()

    def _follow(self) -> None:
        sockets = self._workers.sockets()
        for worker in self._streams.keys() - sockets.keys():
            self._streams.pop(worker).close()
            self._mosaic.lose(worker)
        for worker, socket in sockets.items():
            if worker not in self._streams:
                self._streams[worker] = _Stream(worker, socket, self._heard)

    def _heard(self, worker: str, picture: Picture) -> None:
        self._mosaic.hear(worker, picture, self._clock())
