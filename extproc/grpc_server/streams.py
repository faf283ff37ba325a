"""A connection's streams, which of them there are, and the events on them that its driver handles."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from msgspec import Struct

from extproc.grpc_server.budget import StreamPlaces
from extproc.grpc_server.frames import Code
from extproc.grpc_server.headers import Head
from extproc.grpc_server.messages import MessageReader

_LATE_STREAMS: Final = 1_000


@dataclass(slots=True, eq=False)
class Stream:
    """One call. The driver sets `owner`; a window is how many bytes may still be sent or received."""

    id: int
    head: Head
    send_window: int
    receive_window: int
    received_s: float
    sent_s: float
    unsent_bytes: int | None  # of the client's DATA, where it said how much
    owner: Any = None
    reader: MessageReader | None = None  # while a message is cut into frames
    queue: deque[memoryview] | None = None  # what waits for a window
    trailers: bytes = b""
    is_waiting: bool = True  # for the first message
    is_answered: bool = False  # our headers are sent
    is_half_closed: bool = False  # the client has ended its side
    is_finished: bool = False  # we have said how it ends
    is_over: bool = False


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


@dataclass(slots=True, eq=False)
class StreamTable:
    """Which streams a connection has, what happened on them (`events`), and when that is.

    `open` has the open and half-closed ones by their ids; `late` those that we closed and whose end
    may not have reached the client; `last_id` is the highest id that the client used. `now_s` is
    what the driver said last. `is_over`: nothing more will happen.
    """

    _places: StreamPlaces
    now_s: float
    open: dict[int, Stream] = field(default_factory=dict)
    late: dict[int, None] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    last_id: int = 0
    has_left: bool = False  # our GOAWAY with the last stream's id is sent
    is_over: bool = False

    def has_room(self, limit: int) -> bool:
        """Whether one more may open: below this connection's `limit`, and beside other connections'."""
        own = len(self.open)
        return not self.has_left and own < limit and self._places.has_room(own)

    def add(self, stream: Stream) -> None:
        self.open[stream.id] = stream
        self._places.used += 1
        self.events.append(Opened(stream))

    def remove(self, stream: Stream) -> None:
        """Closes a stream, and drops what came of a message; `Outgoing.forget` drops what is unsent."""
        stream.is_over = stream.is_finished = True
        del self.open[stream.id]
        self._places.used -= 1
        if not stream.is_half_closed:
            self.add_late(stream.id)
        if stream.reader is not None:
            stream.reader.close()
            stream.reader = None
        self.events.append(Closed(stream))
        if self.has_left and not self.open:
            self.is_over = True

    def add_late(self, stream_id: int) -> None:
        self.late[stream_id] = None
        if len(self.late) > _LATE_STREAMS:
            del self.late[next(iter(self.late))]

    def leave(self) -> None:
        self.has_left = True
        self.is_over = not self.open
