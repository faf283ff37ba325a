"""The reader's side of ZMTP, ZeroMQ's protocol: bytes in, whole messages out. No socket, no clock, no loop."""

# Why our own. libzmq bounds a frame and counts messages, and a message is any number of frames: one
# that never ends fills memory, and no option of it says otherwise. We need little of it: to
# subscribe (SUB), and to ask for what we missed (DEALER).
#
# The rules are RFC 23's (ZMTP 3.0, https://rfc.zeromq.org/spec/23), of which 37 (3.1) has more:
#
# - Both sides send a greeting of 64 bytes, then a command READY. The security mechanism is NULL.
# - A frame is flags, its length in one byte or eight, and its body. A flag says that the message
#   goes on, one that the length has eight bytes, one that it is a command.
# - We announce 3.0. So a subscription is a message that begins with 1, which publishers of 3.0 and
#   3.1 take alike; the command SUBSCRIBE is for those who both announced 3.1.
# - A PING may come at any time, between the parts of a message, too (libzmq), and wants its context
#   back in a PONG.
#
# What is bounded, and why a connection is ours to give up: no publisher of vLLM's sends more than
# `MOST_PARTS` parts, or commands of more than a few bytes. A long message is another matter: one
# prefill may be that long. So it is skipped as it comes, is reported, and the next one counts.

from enum import Enum
from typing import Final

from extproc.errors import ProtocolError

MOST_PARTS: Final = 4
_LONGEST_SKIPPED: Final = 1 << 26
_COMMAND_BYTES: Final = 1_024
_CONTEXT_BYTES: Final = 16

_MORE, _LONG, _COMMAND = 1, 2, 4
_GREETING_BYTES: Final = 64
_NULL: Final = b"NULL".ljust(20, b"\0")
_GREETING: Final = (b"\xff" + bytes(8) + b"\x7f\x03\x00" + _NULL).ljust(_GREETING_BYTES, b"\0")
_SUBSCRIBE_TO_ALL: Final = b"\0\x01\x01"


class Sign(Enum):
    """What comes of the bytes where no message does."""

    NEEDS_BYTES = "needs bytes"
    COMMAND = "command"
    TOO_LONG = "too long"


class ZmtpConnection:
    """One connection, `SUB` to all topics or `DEALER`, which reads messages of up to `most_bytes` in all parts.

    What it wants to send is in `to_send`, and is the caller's to send and to clear. It keeps
    `most_bytes` and one more frame's head beyond what it was last given.
    """

    def __init__(self, kind: str, most_bytes: int) -> None:
        self.to_send = bytearray(_GREETING)
        self.is_open = False
        self._kind = kind.encode()
        self._most_bytes = most_bytes
        self._is_greeted = False
        self._bytes = bytearray()
        self._parts: list[bytes] = []
        self._part_count = 0
        self._left_bytes = most_bytes
        self._skip_bytes = 0
        self._goes_on = False

    @property
    def kept_bytes(self) -> int:
        return len(self._bytes) + sum(map(len, self._parts))

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def next_event(self) -> list[bytes] | Sign:
        """Takes one thing from the bytes: the parts of a message, or a sign. Raises `ProtocolError`.

        After that it must not be asked again. A call costs at most `MOST_PARTS` frames.
        """
        if not self._is_greeted and not self._read_greeting():
            return Sign.NEEDS_BYTES
        event = self._take_frame()
        while event is None:
            event = self._take_frame()
        return event

    def ask(self, *parts: bytes) -> None:
        """Sends a message of short parts."""
        for part in parts[:-1]:
            self.to_send += bytes((_MORE, len(part))) + part
        self.to_send += bytes((0, len(parts[-1]))) + parts[-1]

    def _read_greeting(self) -> bool:
        if len(self._bytes) < _GREETING_BYTES:
            return False
        greeting = bytes(self._bytes[:_GREETING_BYTES])
        if (greeting[0], greeting[9]) != (0xFF, 0x7F) or greeting[10] < 3:
            raise ProtocolError("not ZMTP 3")
        if greeting[12:32] != _NULL:
            raise ProtocolError("a publisher that wants credentials")
        del self._bytes[:_GREETING_BYTES]
        name, value = b"Socket-Type", self._kind
        ready = b"\x05READY" + bytes((len(name),)) + name + len(value).to_bytes(4) + value
        self.to_send += bytes((_COMMAND, len(ready))) + ready
        self._is_greeted = True
        return True

    def _take_frame(self) -> list[bytes] | Sign | None:
        """`None`: a part, and the message goes on."""
        if self._skip_bytes:
            passed = min(self._skip_bytes, len(self._bytes))
            del self._bytes[:passed]
            self._skip_bytes -= passed
            return Sign.NEEDS_BYTES if self._skip_bytes else self._end_part()
        head = self._read_head()
        if head is None:
            return Sign.NEEDS_BYTES
        flags, begin, end = head
        is_skipped = not flags & _COMMAND and end - begin > self._left_bytes
        if len(self._bytes) < end and not is_skipped:
            return Sign.NEEDS_BYTES
        if flags & _COMMAND:
            self._obey(self._take(begin, end))
            return Sign.COMMAND
        return self._begin_part(flags, begin, end)

    def _read_head(self) -> tuple[int, int, int] | None:
        """Flags, begin and end of the next frame, whose lengths are allowed; `None`: not here yet."""
        if not self._bytes:
            return None
        flags = self._bytes[0]
        begin = 9 if flags & _LONG else 2
        if flags & ~(_MORE | _LONG | _COMMAND) or (flags & _COMMAND and flags & _MORE):
            raise ProtocolError("unknown flags")
        if len(self._bytes) < begin:
            return None
        size = int.from_bytes(self._bytes[1:begin])
        if size > (_COMMAND_BYTES if flags & _COMMAND else _LONGEST_SKIPPED):
            raise ProtocolError("a frame that no engine sends")
        if not flags & _COMMAND and (not self.is_open or self._part_count == MOST_PARTS):
            raise ProtocolError("a message before its time, or of too many parts")
        return flags, begin, begin + size

    def _begin_part(self, flags: int, begin: int, end: int) -> list[bytes] | Sign | None:
        """Takes a part that is all there, or skips it with all that the message has."""
        self._part_count += 1
        self._goes_on = bool(flags & _MORE)
        if end - begin > self._left_bytes:
            self._parts, self._left_bytes, self._skip_bytes = [], -1, end - begin
            del self._bytes[:begin]
        else:
            self._left_bytes -= end - begin
            self._parts.append(self._take(begin, end))
        return None if self._skip_bytes else self._end_part()

    def _end_part(self) -> list[bytes] | Sign | None:
        if self._goes_on:
            return None
        parts, is_long = self._parts, self._left_bytes < 0
        self._parts, self._part_count, self._left_bytes = [], 0, self._most_bytes
        return Sign.TOO_LONG if is_long else parts

    def _take(self, begin: int, end: int) -> bytes:
        taken = bytes(self._bytes[begin:end])
        del self._bytes[:end]
        return taken

    def _obey(self, command: bytes) -> None:
        end = 1 + (command[0] if command else 0)
        name, rest = command[1:end], command[end:]
        if name == b"READY" and not self.is_open:
            self.is_open = True
            if self._kind == b"SUB":
                self.to_send += _SUBSCRIBE_TO_ALL
        elif not self.is_open or name == b"ERROR":
            raise ProtocolError("a publisher that does not let us in")
        elif name == b"PING":
            # Two bytes of it say for how long the peer waits.
            pong = b"\x04PONG" + rest[2 : 2 + _CONTEXT_BYTES]
            self.to_send += bytes((_COMMAND, len(pong))) + pong
