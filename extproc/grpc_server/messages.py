"""gRPC's length-prefixed messages, cut out of a stream's bytes however they were cut into frames."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from extproc.grpc_server.budget import Budget

# A message of a request's headers, or a piece of a body (62,000 bytes in FULL_DUPLEX_STREAMED
# mode). Without the first no request can be routed and without the second none can be given back:
# such messages find room when large ones do not, for as long as what they hold is half as much
# again as the budget.
_SMALL_BYTES: Final = 131_072

# A longer message stays in the `bytearray` that collected it: a copy of 31 MB takes 40 ms.
_COPIED_BYTES: Final = 65_536

# A flag, "compressed", and four bytes of length (gRPC over HTTP/2, "Length-Prefixed-Message").
PREFIX_BYTES: Final = 5


class Refused(Exception):  # the call is, whatever comes after
    """The message that begins here will not be read. `is_compressed`, or else longer than allowed."""

    def __init__(self, *, is_compressed: bool) -> None:
        super().__init__("compressed" if is_compressed else "too long")
        self.is_compressed = is_compressed


@dataclass(slots=True, eq=False)
class MessageReader:
    """One stream's messages. Buffered bytes count against `budget` until `feed` yields their message.

    A message that the budget has no room for is dropped, and the rest of it as it comes. The length
    that a client announces reserves nothing, so a slow sender costs what it sent. One `bytearray`
    collects the bytes: a list of tiny frames would cost twenty times their size.
    """

    _budget: Budget
    _limit_bytes: int
    _buffer: bytearray = field(default_factory=bytearray)
    _size: int = -1  # of the message begun; -1: its prefix is still to come
    _have: int = 0
    _is_skipped: bool = False

    @property
    def is_between(self) -> bool:
        return self._size < 0 and not self._buffer

    def feed(self, data: bytes) -> Iterator[bytes | bytearray | int]:
        """Yields what `data` completes, in order: a message, or how long one was that found no room.

        Raises `Refused`; the stream must then be ended.
        """
        place = 0
        while place < len(data):
            read = self._read_prefix if self._size < 0 else self._read_part
            place = read(data, place)
            if self._have == self._size:
                yield self._end()

    def close(self) -> None:
        if self._size >= 0:
            self._budget.give(len(self._buffer))
        self._buffer, self._size = bytearray(), -1

    def _read_prefix(self, data: bytes, place: int) -> int:
        end = place + PREFIX_BYTES - len(self._buffer)
        self._buffer += data[place:end]
        if len(self._buffer) == PREFIX_BYTES:
            is_compressed, size = self._buffer[0] != 0, int.from_bytes(self._buffer[1:], "big")
            if is_compressed or size > self._limit_bytes:
                raise Refused(is_compressed=is_compressed)
            self._buffer, self._size, self._have = bytearray(), size, 0
        return end

    def _read_part(self, data: bytes, place: int) -> int:
        part = data[place : place + self._size - self._have]
        self._have += len(part)
        extra = self._budget.limit_bytes // 2 if self._size <= _SMALL_BYTES else 0
        if not self._is_skipped and self._budget.reserve(len(part), extra=extra):
            self._buffer += part
        elif not self._is_skipped:
            self._is_skipped = True
            self._budget.give(len(self._buffer))
            self._buffer = bytearray()
        return place + len(part)

    def _end(self) -> bytes | bytearray | int:
        message: bytes | bytearray | int = self._size if self._is_skipped else self._buffer
        if isinstance(message, bytearray) and len(message) <= _COPIED_BYTES:
            message = bytes(message)
        self.close()
        self._is_skipped = False
        self._have = 0
        return message
