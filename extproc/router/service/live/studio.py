"""Draws one process while somebody looks: records its decisions, and works its pictures out in steps."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from extproc.router.service.live.painter import Painter, Scene
from extproc.router.service.live.picture import Picture
from extproc.router.service.live.tape import Tape


class Watched(Scene, Protocol):
    """A service that tells of its decisions, as long as it is asked to."""

    def record(self, tape: Tape) -> Callable[[], None]:
        """Begins to tell `tape` every decision; returns what ends it."""
        ...


class Studio:
    """Draws `watched`, from the beginning each time that it begins."""

    def __init__(self, watched: Watched, clock: Callable[[], float]) -> None:
        self._watched = watched
        self._clock = clock
        self._stop_recording: Callable[[], None] = lambda: None
        self._painter = Painter(Tape(clock))

    def begin(self) -> None:
        tape = Tape(self._clock)
        self._painter = Painter(tape)
        self._stop_recording = self._watched.record(tape)

    async def draw(self) -> Picture:
        """Lets requests in between the steps."""
        steps = self._painter.draw(self._watched, self._clock())
        while True:
            try:
                next(steps)
            except StopIteration as end:
                picture: Picture = end.value
                return picture
            await asyncio.sleep(0)

    def end(self) -> None:
        self._stop_recording()
