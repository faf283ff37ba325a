"""The admin port of all workers: each connection is one with the first worker that serves."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from extproc.errors import SettingsError

_READ_BYTES: Final = 65_536


@asynccontextmanager
async def serve_front(listen: str, live: Callable[[], Sequence[Path]]) -> AsyncGenerator[None]:
    """Serves on `listen` what the first of the sockets that `live` names serves. Raises `SettingsError`."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            sockets = live()
            if sockets:
                far_reader, far_writer = await asyncio.open_unix_connection(str(sockets[0]))
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        writer.close()

    try:
        if listen.startswith("unix:"):
            server = await asyncio.start_unix_server(pass_on, listen.removeprefix("unix:"))
        else:
            host, _, port = listen.rpartition(":")
            server = await asyncio.start_server(pass_on, host.strip("[]") or None, int(port))
    except OSError as error:
        raise SettingsError(f"server.admin: cannot listen on {listen}: {error.strerror}") from error
    try:
        yield
    finally:
        server.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
