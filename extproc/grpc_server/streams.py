"""A connection's streams, and the events on them that its driver handles."""

from collections import deque
from typing import Any

from msgspec import Struct

from extproc.grpc_server.frames import Code
from extproc.grpc_server.headers import Head
from extproc.grpc_server.messages import MessageReader


class Stream:
    """One call. The driver sets `owner`; a window is how many bytes may still be sent or received."""

    __slots__ = (
        "head",
        "id",
        "is_answered",
        "is_finished",
        "is_half_closed",
        "is_over",
        "is_waiting",
        "owner",
        "queue",
        "reader",
        "receive_window",
        "received_s",
        "send_window",
        "sent_s",
        "trailers",
        "unsent_bytes",
    )

    def __init__(
        self, stream_id: int, head: Head, send_window: int, receive_window: int, now_s: float
    ) -> None:
        self.id = stream_id
        self.head = head
        self.owner: Any = None
        self.send_window = send_window
        self.receive_window = receive_window
        self.received_s = self.sent_s = now_s
        self.reader: MessageReader | None = None  # while a message is cut into frames
        self.queue: deque[memoryview] | None = None  # what waits for a window
        self.trailers = b""
        self.unsent_bytes = head.content_length  # of the client's DATA, where it said how much
        self.is_waiting = True  # for the first message
        self.is_answered = False  # our headers are sent
        self.is_half_closed = False  # the client has ended its side
        self.is_finished = False  # we have said how it ends
        self.is_over = False


class Opened(Struct, frozen=True):
    """A call begins. Set the stream's `owner`, or `finish` it."""

    stream: Stream


class Message(Struct, frozen=True):
    stream: Stream
    data: bytes | bytearray


class MessageSkipped(Struct, frozen=True):
    """A message of `size` bytes came that the budget had no room for."""

    stream: Stream
    size: int


class HalfClosed(Struct, frozen=True):
    stream: Stream


class Closed(Struct, frozen=True):
    """The call is over, however it ended. Each `Opened` has exactly one."""

    stream: Stream


class Failed(Struct, frozen=True):
    """The connection is over for the peer's fault; write what is left, then close. `reason` is our words."""

    code: Code
    reason: str


Event = Opened | Message | MessageSkipped | HalfClosed | Closed | Failed
