"""A connection's streams, and what we send on them, as far as the peer's windows let us.

The lower half of `connection`, whose essay says whose rules these are.
"""

from collections import deque
from typing import Final

from extproc.grpc_server import frames
from extproc.grpc_server.budget import Budget, StreamPlaces
from extproc.grpc_server.calls import Status
from extproc.grpc_server.frames import Code
from extproc.grpc_server.headers import RESPONSE_BLOCK, refusal_block, trailers_block
from extproc.grpc_server.limits import WireLimits
from extproc.grpc_server.messages import PREFIX_BYTES
from extproc.grpc_server.streams import Closed, Event, Stream

_SERVED: Final = trailers_block(Status.OK)
_LATE_STREAMS: Final = 1_000
# The largest DATA frame that every peer must accept (§4.2).
_CHUNK_BYTES: Final = frames.MAX_FRAME_BYTES


class Outgoing:
    """What is written, and which streams are open, late, or waiting for a window."""

    def __init__(
        self, limits: WireLimits, budget: Budget, now_s: float, places: StreamPlaces | None = None
    ) -> None:
        self.streams: dict[int, Stream] = {}
        self.events: list[Event] = []
        self.is_over = False
        self._limits = limits
        self._budget = budget
        self._places = places or StreamPlaces(limits.all_streams)
        self._now_s = now_s
        self._out: list[bytes] = []
        # Streams that we closed and whose end may not have reached the client.
        self._late: dict[int, None] = {}
        # The connection's window.
        self._send_window = frames.DEFAULT_WINDOW
        self._blocked: dict[int, Stream] = {}
        # A table update that must precede our next header block.
        self._table_update = b""
        # Our GOAWAY with the last stream's id is sent.
        self._has_left = False

    def take_output(self) -> bytes:
        out = self._out
        if len(out) == 1:
            return out.pop()
        data = b"".join(out)
        out.clear()
        return data

    def send(self, stream: Stream, message: bytes) -> None:
        """Sends one message, as far as the windows let it now, the rest as they open."""
        if stream.is_finished:
            return
        if not stream.is_answered:
            stream.is_answered = True
            block = self._take_table_update() + RESPONSE_BLOCK
            self._out.append(frames.frame(frames.HEADERS, frames.END_HEADERS, stream.id, block))
        size = len(message) + PREFIX_BYTES
        if (
            stream.queue is None
            and stream.send_window >= size <= self._send_window
            and size <= _CHUNK_BYTES
        ):
            stream.send_window -= size
            self._send_window -= size
            self._out.append(frames.message_frame(stream.id, message))
        else:
            self._enqueue(stream, (size - PREFIX_BYTES).to_bytes(PREFIX_BYTES, "big") + message)

    def finish(
        self, stream: Stream, status: Status = Status.OK, details: str = "", more: bytes = b""
    ) -> None:
        """Ends the call after what was sent. `more` is a piece of header block for the trailers."""
        if stream.is_finished:
            return
        stream.is_finished = True
        is_plain = stream.is_answered and status is Status.OK
        stream.trailers = (
            _SERVED
            if is_plain
            else trailers_block(status, details, is_alone=not stream.is_answered)
        ) + more
        if stream.queue is None:
            self._end(stream)

    def reset(self, stream: Stream, code: Code) -> None:
        if not stream.is_over:
            self._out.append(frames.rst_stream(stream.id, code))
            self._forget(stream)

    def _end(self, stream: Stream) -> None:
        """Sends the trailers, and RST_STREAM to a client that still sends, since nobody reads it (§8.1)."""
        flags = frames.END_HEADERS | frames.END_STREAM
        block = self._take_table_update() + stream.trailers
        self._out.append(frames.frame(frames.HEADERS, flags, stream.id, block))
        if not stream.is_half_closed:
            self._out.append(frames.rst_stream(stream.id, Code.NO_ERROR))
        self._forget(stream)

    def _refuse(self, stream_id: int, status: int, *, is_end: bool) -> None:
        block = self._take_table_update() + refusal_block(status)
        answer = frames.frame(
            frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, block
        )
        reset = b"" if is_end else frames.rst_stream(stream_id, Code.NO_ERROR)
        self._turn_away(stream_id, answer + reset, is_end=is_end)

    def _turn_away(self, stream_id: int, answer: bytes, *, is_end: bool) -> None:
        self._out.append(answer)
        if not is_end:
            self._remember_late(stream_id)

    def _take_table_update(self) -> bytes:
        update, self._table_update = self._table_update, b""
        return update

    def _enqueue(self, stream: Stream, data: bytes) -> None:
        if stream.queue is None:
            stream.queue = deque()
            stream.sent_s = self._now_s
        stream.queue.append(memoryview(data))
        self._budget.hold(len(data))
        self._send_queued(stream)

    def _send_queued(self, stream: Stream) -> None:
        """Sends of a stream's queue what both windows let through; then, if it is to end, its end."""
        queue = stream.queue
        while queue:
            size = min(stream.send_window, self._send_window, _CHUNK_BYTES)
            if size <= 0:
                if stream.send_window > 0:
                    self._blocked[stream.id] = stream
                return
            part = queue[0][:size]
            queue[0] = queue[0][size:]
            if not queue[0]:
                queue.popleft()
            stream.send_window -= len(part)
            stream.sent_s = self._now_s
            self._send_window -= len(part)
            self._budget.give(len(part))
            self._out.append(frames.frame(frames.DATA, 0, stream.id, bytes(part)))
        stream.queue = None
        self._blocked.pop(stream.id, None)
        if stream.is_finished:
            self._end(stream)
        else:
            self._open_window(stream)

    def _send_blocked(self) -> None:
        """Lets those go on that waited for the connection's window, until it is used up again."""
        while self._blocked and self._send_window > 0:
            self._send_queued(self._blocked.pop(next(iter(self._blocked))))

    def _open_window(self, stream: Stream) -> None:
        """Opens a stream's window as soon as it is half used, unless it reads too little of ours."""
        size = self._limits.stream_window_bytes
        if (
            stream.queue is None
            and not stream.is_half_closed
            and stream.receive_window <= size // 2
        ):
            self._out.append(frames.window_update(stream.id, size - stream.receive_window))
            stream.receive_window = size

    def _forget(self, stream: Stream) -> None:
        """Closes a stream: gives back its part of the budget, and adds its `Closed` event."""
        stream.is_over = stream.is_finished = True
        del self.streams[stream.id]
        self._places.used -= 1
        if not stream.is_half_closed:
            self._remember_late(stream.id)
        if stream.reader is not None:
            stream.reader.close()
            stream.reader = None
        if stream.queue is not None:
            self._budget.give(sum(map(len, stream.queue)))
            stream.queue = None
            self._blocked.pop(stream.id, None)
        self.events.append(Closed(stream))
        if self._has_left and not self.streams:
            self.is_over = True

    def _remember_late(self, stream_id: int) -> None:
        self._late[stream_id] = None
        if len(self._late) > _LATE_STREAMS:
            del self._late[next(iter(self._late))]

    def _end_late(self, stream_id: int, *, is_end: bool) -> None:
        if is_end:
            del self._late[stream_id]
