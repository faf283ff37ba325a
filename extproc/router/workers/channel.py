"""Messages in order between the parent and one worker, over a socket pair. Nobody waits to send."""

import asyncio
import socket
from contextlib import suppress
from typing import Final, Generic, Self, TypeVar

from msgspec.msgpack import Decoder, Encoder

from extproc.router.workers.messages import ToParent, ToWorker

_HEAD: Final = 4
# A worker that reads nothing while so much waits for it is as good as dead.
_PENDING_BYTES: Final = 64 * 1_048_576

Incoming = TypeVar("Incoming")
Outgoing = TypeVar("Outgoing")


class Channel(Generic[Outgoing, Incoming]):
    """One end of it."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: Decoder[Incoming]
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = decoder
        self._encoder = Encoder()

    @classmethod
    async def open(cls, end: socket.socket, decoder: Decoder[Incoming]) -> Self:
        return cls(*await asyncio.open_unix_connection(sock=end), decoder)

    def send(self, message: Outgoing) -> None:
        """Says nothing to who has gone."""
        if self._writer.is_closing():
            return
        data = self._encoder.encode(message)
        self._writer.write(len(data).to_bytes(_HEAD) + data)
        if self._writer.transport.get_write_buffer_size() > _PENDING_BYTES:
            self._writer.transport.abort()

    async def receive(self) -> Incoming | None:
        """Returns the next message; `None`: the other one has gone."""
        try:
            head = await self._reader.readexactly(_HEAD)
            return self._decoder.decode(await self._reader.readexactly(int.from_bytes(head)))
        except (asyncio.IncompleteReadError, OSError):
            return None

    async def close(self) -> None:
        """Ends, after what was said has left."""
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


def worker_end() -> Decoder[ToWorker]:
    return Decoder(ToWorker)


def parent_end() -> Decoder[ToParent]:
    return Decoder(ToParent)
