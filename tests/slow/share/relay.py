"""A bad way between gateways: it brings their letters late, loses some of them, or is cut."""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

Frames = Callable[[asyncio.StreamReader], AsyncIterator[tuple[bytes, bool]]]
"""Cuts what comes into frames; `True`: it is a letter, which may be lost."""


async def mesh_frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bool]]:
    while True:
        head = await reader.readexactly(4)
        yield head + await reader.readexactly(int.from_bytes(head)), True


async def nats_frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bool]]:
    while line := await reader.readline():
        if line.startswith(b"PUB "):
            yield line + await reader.readexactly(int(line.split()[-1]) + 2), True
        else:
            yield line, False


class Relay:
    """Listens on a port of 127.0.0.1 and brings what comes there to `target`, well or badly."""

    def __init__(self, port: int, target: int, frames: Frames) -> None:
        self.port = port
        self.target = target
        self.delay_s = 0.0
        self.loss = 0.0
        self.is_dead = False
        self._frames = frames
        self._rng = random.Random(port)
        self._lines: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Relay"]:
        async with await asyncio.start_server(self._serve, "127.0.0.1", self.port):
            try:
                yield self
            finally:
                self.cut()

    def cut(self) -> None:
        """Ends all lines; others may be opened at once."""
        for task in self._lines:
            task.cancel()

    def die(self) -> None:
        """Ends all lines, and every one that is opened."""
        self.is_dead = True
        self.cut()

    def heal(self) -> None:
        self.delay_s, self.loss, self.is_dead = 0.0, 0.0, False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._bring(reader, writer))
        self._lines.add(task)
        await asyncio.wait([task])
        self._lines.discard(task)
        writer.transport.abort()

    async def _bring(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_dead:
            return
        with suppress(OSError, EOFError):
            back, forth = await asyncio.open_connection("127.0.0.1", self.target)
            try:
                async with asyncio.TaskGroup() as tasks:
                    ways = [
                        tasks.create_task(self._forward(self._frames(reader), forth)),
                        tasks.create_task(self._forward(_chunks(back), writer)),
                    ]
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                    for way in ways:
                        way.cancel()
            finally:
                forth.transport.abort()

    async def _forward(self, frames: AsyncIterator[tuple[bytes, bool]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with suppress(OSError, EOFError):
            async for frame, is_letter in frames:
                if is_letter and self._rng.random() < self.loss:
                    continue
                # Frames keep their order: timers of one delay do.
                loop.call_later(self.delay_s, _write, writer, frame)


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bool]]:
    while data := await reader.read(65_536):
        yield data, False


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)
