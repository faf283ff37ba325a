"""What we send on streams, as far as the peer's windows let us.

A part of `connection`, whose essay says whose rules these are.
"""

from collections import deque
from typing import Final

from extproc.grpc_server import frames
from extproc.grpc_server.budget import Budget
from extproc.grpc_server.calls import Status
from extproc.grpc_server.frames import Code, PeerFault
from extproc.grpc_server.headers import RESPONSE_BLOCK, refusal_block, trailers_block
from extproc.grpc_server.limits import WireLimits
from extproc.grpc_server.messages import PREFIX_BYTES
from extproc.grpc_server.streams import Stream, StreamTable

_SERVED: Final = trailers_block(Status.OK)
# The largest DATA frame that every peer must accept (§4.2).
_CHUNK_BYTES: Final = frames.MAX_FRAME_BYTES


class Outgoing:
    """The sending side: what is to be written, the peer's windows, and the streams that wait for them.

    `write` adds a frame that no window holds back. `peer_window` is what a new stream may send.
    """

    def __init__(self, limits: WireLimits, budget: Budget, table: StreamTable) -> None:
        self._limits = limits
        self._budget = budget
        self._table = table
        self._out: list[bytes] = []
        self.write = self._out.append
        self.peer_window = frames.DEFAULT_WINDOW
        # The connection's window.
        self._send_window = frames.DEFAULT_WINDOW
        self._blocked: dict[int, Stream] = {}
        # A table update that must precede our next header block.
        self.table_update = b""

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
            self.write(frames.frame(frames.HEADERS, frames.END_HEADERS, stream.id, block))
        size = len(message) + PREFIX_BYTES
        if (
            stream.queue is None
            and stream.send_window >= size <= self._send_window
            and size <= _CHUNK_BYTES
        ):
            stream.send_window -= size
            self._send_window -= size
            self.write(frames.message_frame(stream.id, message))
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
            self.write(frames.rst_stream(stream.id, code))
            self.forget(stream)

    def _end(self, stream: Stream) -> None:
        """Sends the trailers, and RST_STREAM to a client that still sends, since nobody reads it (§8.1)."""
        flags = frames.END_HEADERS | frames.END_STREAM
        block = self._take_table_update() + stream.trailers
        self.write(frames.frame(frames.HEADERS, flags, stream.id, block))
        if not stream.is_half_closed:
            self.write(frames.rst_stream(stream.id, Code.NO_ERROR))
        self.forget(stream)

    def refuse(self, stream_id: int, status: int, *, is_end: bool) -> None:
        block = self._take_table_update() + refusal_block(status)
        answer = frames.frame(
            frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, block
        )
        reset = b"" if is_end else frames.rst_stream(stream_id, Code.NO_ERROR)
        self.turn_away(stream_id, answer + reset, is_end=is_end)

    def turn_away(self, stream_id: int, answer: bytes, *, is_end: bool) -> None:
        self.write(answer)
        if not is_end:
            self._table.add_late(stream_id)

    def _take_table_update(self) -> bytes:
        update, self.table_update = self.table_update, b""
        return update

    def _enqueue(self, stream: Stream, data: bytes) -> None:
        if stream.queue is None:
            stream.queue = deque()
            stream.sent_s = self._table.now_s
        stream.queue.append(memoryview(data))
        self._budget.hold(len(data))
        self.send_queued(stream)

    def send_queued(self, stream: Stream) -> None:
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
            stream.sent_s = self._table.now_s
            self._send_window -= len(part)
            self._budget.give(len(part))
            self.write(frames.frame(frames.DATA, 0, stream.id, bytes(part)))
        stream.queue = None
        self._blocked.pop(stream.id, None)
        if stream.is_finished:
            self._end(stream)
        else:
            self.open_window(stream)

    def open_window(self, stream: Stream) -> None:
        """Opens a stream's window as soon as it is half used, unless it reads too little of ours."""
        size = self._limits.stream_window_bytes
        if (
            stream.queue is None
            and not stream.is_half_closed
            and stream.receive_window <= size // 2
        ):
            self.write(frames.window_update(stream.id, size - stream.receive_window))
            stream.receive_window = size

    def forget(self, stream: Stream) -> None:
        """Closes a stream, and drops what it has not sent."""
        if stream.queue is not None:
            self._budget.give(sum(map(len, stream.queue)))
            stream.queue = None
            self._blocked.pop(stream.id, None)
        self._table.remove(stream)

    def set_peer_window(self, size: int) -> None:
        """Changes what open streams may send, too, even below zero (§6.9.2)."""
        change, self.peer_window = size - self.peer_window, size
        for stream in self._table.open.values():
            stream.send_window += change
            if stream.send_window > frames.MAX_WINDOW:
                raise PeerFault(Code.FLOW_CONTROL_ERROR, "a window past 2^31-1")

    def widen(self, increment: int) -> None:
        """Widens the connection's window, and sends what waited for it."""
        self._send_window += increment
        if not increment or self._send_window > frames.MAX_WINDOW:
            code = Code.FLOW_CONTROL_ERROR if increment else Code.PROTOCOL_ERROR
            raise PeerFault(code, "a window opened by nothing, or too far")  # §6.9, §6.9.1
        while self._blocked and self._send_window > 0:
            self.send_queued(self._blocked.pop(next(iter(self._blocked))))
