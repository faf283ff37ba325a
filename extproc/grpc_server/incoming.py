"""What a peer says on its streams: HEADERS, CONTINUATION, DATA, RST_STREAM, WINDOW_UPDATE.

A part of `connection`, whose essay says whose rules these are.
"""

from typing import Final

from msgspec import Struct

from extproc.grpc_server import frames
from extproc.grpc_server.budget import Budget
from extproc.grpc_server.calls import Status
from extproc.grpc_server.frames import Code, PeerFault, require_size, require_stream, unpad
from extproc.grpc_server.headers import HeadReader, MalformedRequest, encodings_block
from extproc.grpc_server.limits import WireLimits
from extproc.grpc_server.messages import PREFIX_BYTES, MessageReader, Refused
from extproc.grpc_server.outgoing import Outgoing
from extproc.grpc_server.streams import HalfClosed, Message, MessageSkipped, Stream, StreamTable

PRIORITY_BYTES: Final = 5


class Block(Struct):
    """A header block of which more is to come."""

    stream_id: int
    is_end: bool
    data: bytearray
    frames: int = 0


class Incoming:
    """The receiving side: header blocks, our windows, and how much of what came carries nothing."""

    def __init__(
        self, limits: WireLimits, budget: Budget, table: StreamTable, outgoing: Outgoing
    ) -> None:
        self._limits = limits
        self._budget = budget
        self._table = table
        self._outgoing = outgoing
        self._streams, self._events = table.open, table.events
        self.heads = HeadReader(limits.header_bytes)
        # A header block that is cut into frames.
        self.block: Block | None = None
        # What the peer may send on the connection.
        self._receive_window = limits.connection_window_bytes
        # Counted per second.
        self._control_frames = self._early_resets = 0

    def on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        require_stream(stream_id)
        if flags & frames.PADDED:
            payload = unpad(payload)
        if flags & frames.HAS_PRIORITY:
            if len(payload) < PRIORITY_BYTES:
                raise PeerFault(Code.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
            payload = payload[PRIORITY_BYTES:]  # §5.3.2: deprecated, ignored
        if flags & frames.END_HEADERS:
            self._on_block(stream_id, payload, is_end=bool(flags & frames.END_STREAM))
        else:
            self.block = Block(stream_id, bool(flags & frames.END_STREAM), bytearray(payload))

    def on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = self.block
        if block is None:
            raise PeerFault(Code.PROTOCOL_ERROR, "CONTINUATION of nothing")  # §6.10
        block.data += payload
        block.frames += 1
        if len(block.data) > self._limits.header_bytes or block.frames > self._limits.continuations:
            raise PeerFault(Code.ENHANCE_YOUR_CALM, "a header block longer than allowed")
        if flags & frames.END_HEADERS:
            self.block = None
            self._on_block(stream_id, bytes(block.data), is_end=block.is_end)

    def _on_block(self, stream_id: int, block: bytes, *, is_end: bool) -> None:
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._on_trailers(stream, block, is_end=is_end)
        elif stream_id > self._table.last_id and stream_id & 1:
            self._open(stream_id, block, is_end=is_end)
        elif stream_id in self._table.late:
            self.count_control()
            self.heads.pass_over(block)
            if is_end:
                del self._table.late[stream_id]
        else:
            raise PeerFault(Code.PROTOCOL_ERROR, "HEADERS of an even or a used stream")  # §5.1.1

    def _open(self, stream_id: int, block: bytes, *, is_end: bool) -> None:
        self._table.last_id = stream_id
        try:
            head = self.heads.read(block)
        except MalformedRequest:
            self._count_early_reset()
            self._outgoing.turn_away(
                stream_id, frames.rst_stream(stream_id, Code.PROTOCOL_ERROR), is_end=is_end
            )
            return
        if not self._table.has_room(self._limits.streams):
            refusal = frames.rst_stream(
                stream_id, Code.REFUSED_STREAM
            )  # §8.7: nothing was done for it
            self._outgoing.turn_away(stream_id, refusal, is_end=is_end)
        elif head.refusal:
            self._outgoing.refuse(stream_id, head.refusal, is_end=is_end)
        else:
            now_s = self._table.now_s
            stream = Stream(
                stream_id,
                head,
                self._outgoing.peer_window,
                self._limits.stream_window_bytes,
                now_s,
                now_s,
                head.content_length,
            )
            self._table.add(stream)
            if is_end and head.content_length:
                stream.is_half_closed = True
                self._reject(stream, Code.PROTOCOL_ERROR)  # §8.1.1
            elif is_end:
                self._half_close(stream)

    def _on_trailers(self, stream: Stream, block: bytes, *, is_end: bool) -> None:
        is_well_formed = self.heads.read_trailers(block)
        if stream.is_half_closed:
            self._reject(stream, Code.STREAM_CLOSED)  # §5.1, half-closed (remote)
        elif is_end and is_well_formed and not stream.unsent_bytes:
            self._half_close(stream)
        else:
            stream.is_half_closed = is_end
            self._reject(stream, Code.PROTOCOL_ERROR)  # §8.1: trailers end the stream

    def on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < self._limits.connection_window_bytes // 2:
            self._open_connection_window()
        if flags & frames.PADDED:
            payload = unpad(payload)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._on_stray_data(flags, stream_id)
            return
        if stream.is_half_closed:
            self._reject(stream, Code.STREAM_CLOSED)  # §5.1, half-closed (remote)
            return
        stream.is_half_closed = bool(flags & frames.END_STREAM)
        stream.receive_window -= size
        if stream.receive_window <= self._limits.stream_window_bytes // 2:
            if stream.receive_window < 0:
                self._reject(stream, Code.FLOW_CONTROL_ERROR)  # §6.9
                return
            self._outgoing.open_window(stream)
        stream.received_s = self._table.now_s
        self._on_piece(stream, payload)

    def _on_piece(self, stream: Stream, payload: bytes) -> None:
        if stream.unsent_bytes is not None and not self._fits_length(stream, len(payload)):
            self._reject(stream, Code.PROTOCOL_ERROR)
            return
        if payload:
            self._on_payload(stream, payload)
        elif not stream.is_half_closed:
            self.count_control()
        if stream.is_half_closed and not stream.is_over:
            self._half_close(stream)

    def _fits_length(self, stream: Stream, size: int) -> bool:
        """Whether DATA is as long as the request's content-length says, as far as it has come (§8.1.1)."""
        left = (stream.unsent_bytes or 0) - size
        stream.unsent_bytes = left
        return left == 0 if stream.is_half_closed else left >= 0

    def _on_payload(self, stream: Stream, payload: bytes) -> None:
        reader = stream.reader
        if reader is None:
            # One whole message in one frame is the rule; a compressed one has not this first byte.
            size = len(payload) - PREFIX_BYTES
            if (
                0 <= size <= self._limits.message_bytes
                and int.from_bytes(payload[:5], "big") == size
            ):
                stream.is_waiting = False
                self._events.append(Message(stream, payload[PREFIX_BYTES:]))
                return
            reader = stream.reader = MessageReader(self._budget, self._limits.message_bytes)
        try:
            for message in reader.feed(payload):
                stream.is_waiting = False
                if isinstance(message, int):
                    self._events.append(MessageSkipped(stream, message))
                else:
                    self._events.append(Message(stream, message))
        except Refused as refusal:
            self._refuse_message(stream, refusal)
        else:
            if reader.is_between:
                stream.reader = None

    def _refuse_message(self, stream: Stream, refusal: Refused) -> None:
        if refusal.is_compressed:
            # gRPC's compression.md: an encoding that the server does not support.
            details = "compressed messages are not read here"
            self._outgoing.finish(stream, Status.UNIMPLEMENTED, details, encodings_block())
        else:
            limit = self._limits.message_bytes
            self._outgoing.finish(
                stream, Status.RESOURCE_EXHAUSTED, f"a message longer than {limit} bytes"
            )

    def _on_stray_data(self, flags: int, stream_id: int) -> None:
        """DATA of a stream that is not open; the connection's window has counted it (§6.9)."""
        require_stream(stream_id)
        if stream_id > self._table.last_id or not stream_id & 1:
            raise PeerFault(Code.PROTOCOL_ERROR, "DATA on an idle stream")  # §5.1, idle
        self.count_control()
        if stream_id in self._table.late:
            if flags & frames.END_STREAM:
                del self._table.late[stream_id]
        else:
            self._outgoing.write(frames.rst_stream(stream_id, Code.STREAM_CLOSED))  # §6.1

    def on_rst_stream(self, _: int, stream_id: int, payload: bytes) -> None:
        require_stream(stream_id)
        require_size(payload, 4)
        self.count_control()
        self._require_used(stream_id)
        self._table.late.pop(stream_id, None)
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        stream.is_half_closed = True
        if not stream.is_answered:
            self._count_early_reset()
        self._outgoing.forget(stream)

    def _reject(self, stream: Stream, code: Code) -> None:
        """Resets a stream for what the client did on it (§5.4.2).

        To make us reset a stream is as cheap for it as to do so itself, and costs us as much
        (CVE-2025-8671).
        """
        if not stream.is_answered:
            self._count_early_reset()
        self._outgoing.reset(stream, code)

    def _half_close(self, stream: Stream) -> None:
        stream.is_half_closed = True
        if stream.reader is not None:
            self._outgoing.finish(stream, Status.INTERNAL, "the stream ended within a message")
        else:
            self._events.append(HalfClosed(stream))

    def on_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        require_size(payload, 4)
        self.count_control()
        increment = int.from_bytes(payload, "big") & frames.MAX_WINDOW
        if not stream_id:
            self._outgoing.widen(increment)
            return
        self._require_used(stream_id)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._widen(stream, increment)

    def _widen(self, stream: Stream, increment: int) -> None:
        stream.send_window += increment
        if not increment:
            self._reject(stream, Code.PROTOCOL_ERROR)  # §6.9
        elif stream.send_window > frames.MAX_WINDOW:
            self._reject(stream, Code.FLOW_CONTROL_ERROR)  # §6.9.1
        elif stream.queue is not None:
            self._outgoing.send_queued(stream)

    def _open_connection_window(self) -> None:
        """Opens the connection's window as soon as it is half used, by frames shorter than that."""
        increment = self._limits.connection_window_bytes - self._receive_window
        self._receive_window += increment
        self._outgoing.write(frames.window_update(0, increment))

    def _require_used(self, stream_id: int) -> None:
        if stream_id > self._table.last_id or not stream_id & 1:
            raise PeerFault(Code.PROTOCOL_ERROR, "a frame on an idle stream")  # §5.1, idle

    def begin_second(self) -> None:
        self._control_frames = self._early_resets = 0

    def count_control(self, weight: int = 1) -> None:
        self._control_frames += weight
        if self._control_frames > self._limits.control_frames_per_s:
            raise PeerFault(Code.ENHANCE_YOUR_CALM, "a flood of frames that carry nothing")

    def _count_early_reset(self) -> None:
        self._early_resets += 1
        if self._early_resets > self._limits.early_resets_per_s:
            raise PeerFault(Code.ENHANCE_YOUR_CALM, "a flood of streams that are reset at once")
