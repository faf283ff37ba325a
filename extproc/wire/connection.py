"""One connection as a pure state machine: bytes in, events out; replies in, bytes out.

No socket, no asyncio, no clock: whoever drives it says what time it is.

**Whose rules.** RFC 9113 (HTTP/2), RFC 7541 (HPACK), gRPC over HTTP/2. Each rule names its section. We are
always the server, and a client of ours is a proxy: one connection carries everybody's requests. So an error
is a *stream* error wherever the RFC lets it be one, and a connection error only where the state both sides
share is lost (framing, header table, stream ids, windows) or where no honest peer would ever be.

**The life of a stream** (§5.1, the server's side of it):

    idle ── HEADERS ──> open ── END_STREAM ──> half-closed ── our trailers ──> closed
                         │                                                       ▲
                         ├── our trailers, then RST_STREAM(NO_ERROR) (§8.1) ──── ┤
                         └── RST_STREAM, either way ─────────────────────────────┘

`streams` holds the open and half-closed ones. A closed stream is forgotten, but for one kind: when we close
first, frames that the client sent before it knew are still on their way and mean nothing. Those ids are
*late* until the client ends them too, or until newer ones push them out. On any other closed stream DATA
is a stream error STREAM_CLOSED; HEADERS, whose ids may only rise, are a connection error (§5.1.1).

**What was tried.** `h2` is right and costs ten times as much; the fuzzer holds us against it. A coroutine or
a queue per stream costs more than all of this module. Events are made only for what a service must know.

**What is bounded** stands in `Limits`. What floods share is that they cost us and not the peer: frames that
carry nothing are counted per second in one sum, streams reset before their answer in another.
"""

from collections import deque
from typing import Final

from hpack import HPACKError
from msgspec import Struct

from extproc.budget import Budget
from extproc.wire import frames
from extproc.wire.calls import Status
from extproc.wire.frames import Code
from extproc.wire.headers import (
    TABLE_OF_NOTHING,
    HeadReader,
    MalformedRequest,
    TooManySizes,
    encodings_block,
    refusal_block,
    response_block,
    trailers_block,
)
from extproc.wire.limits import Limits
from extproc.wire.messages import PREFIX_BYTES, MessageReader, Refused, Skipped
from extproc.wire.streams import Closed, Event, Failed, HalfClosed, Message, MessageSkipped, Opened, Stream

_RESPONSE: Final = response_block()
_SERVED: Final = trailers_block(Status.OK)
_LATE_STREAMS: Final = 1_000
# The largest DATA frame that every peer accepts; ours to use without asking (§4.2).
_CHUNK_BYTES: Final = frames.MAX_FRAME_BYTES
_PRIORITY_BYTES: Final = 5
# Of header blocks to decode in one turn; the last of them may go beyond. 8 KB of Huffman codes take 3 ms, and
# a proxy's own blocks, all alike, are decoded once.
_DECODED_BYTES: Final = 8_192
_METHODS: Final = frozenset({b"GET", b"POST", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"CONNECT", b"PATCH"})
# What our PINGs hold.
_STILL_THERE: Final = b"extproc?"
_LEAVING: Final = b"extproc!"


class _Fault(Exception):  # ends the connection (§5.4.1)
    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Connection:
    """A server's end of one HTTP/2 connection that carries gRPC calls.

    Feed it with `receive`, call `tick` about once a second. After either, work off `events`, which grows
    while one answers them, and write what `take_output` returns; close the transport once `is_over`. While
    `has_more`, some of what came waits for another turn: feed it with nothing, after others had theirs.
    """

    def __init__(self, limits: Limits, budget: Budget, now_s: float) -> None:
        self.streams: dict[int, Stream] = {}
        self.events: list[Event] = []
        self.is_over = self.has_more = False
        self._limits = limits
        self._budget = budget
        self._heads = HeadReader(limits.header_bytes)
        self._out: list[bytes] = []
        self._buffer = b""
        self._has_preface = self._is_greeted = False
        # Streams that are no more.
        self._last_id = 0
        self._late: dict[int, None] = {}
        # A header block that is cut into frames.
        self._block: _Block | None = None
        # Windows: what we may send, what the peer may, what a new stream of ours may.
        self._send_window = self._peer_window = frames.DEFAULT_WINDOW
        self._receive_window = limits.connection_window_bytes
        self._blocked: dict[int, Stream] = {}
        # What must come before the next header block of ours.
        self._table_update = b""
        # Time, and what is counted per second of it.
        self._now_s = self._heard_s = self._second_s = self._looked_s = now_s
        self._began_s = now_s
        self._pinged_s: float | None = None
        self._control_frames = self._early_resets = 0
        # Leaving: asked to, and told the peer which stream was the last.
        self._is_draining = self._has_left = False
        self._final_id = frames.MAX_WINDOW
        self._readers = (
            self._on_data,
            self._on_headers,
            self._on_priority,
            self._on_rst_stream,
            self._on_settings,
            self._on_push_promise,
            self._on_ping,
            self._on_goaway,
            self._on_window_update,
            self._on_continuation,
        )

    def __repr__(self) -> str:
        return f"<Connection streams={len(self.streams)}>"

    @property
    def has_asked_nothing(self) -> bool:
        """Whether no call was ever opened here."""
        return not self._last_id

    # What the driver says.

    def receive(self, data: bytes, now_s: float) -> None:
        """Takes bytes in, cut wherever. Never raises: a fault of the peer ends the connection.

        Bytes that come after that are dropped.
        """
        if self.is_over:
            return
        self._heard_s = now_s
        self._pinged_s = None
        self._count_time(now_s)
        try:
            self._read(self._buffer + data if self._buffer else data)
        except _Fault as fault:
            self._fail(fault.code, fault.reason)
        except TooManySizes:
            self._fail(Code.COMPRESSION_ERROR, "a header block of more than two table sizes")
        except HPACKError:
            self._fail(Code.COMPRESSION_ERROR, "a header block that cannot be read")

    def tick(self, now_s: float) -> None:
        """Looks at what time alone brings."""
        self._count_time(now_s)
        limits = self._limits
        if self.is_over:
            return
        if not self._is_greeted and now_s - self._began_s > limits.preface_s:
            self._fail(Code.SETTINGS_TIMEOUT, "no HTTP/2 preface in time")
        elif self._pinged_s is not None and now_s - self._pinged_s > limits.answer_s:
            self._fail(Code.NO_ERROR, "no answer to a PING: the peer is gone")
        elif self._pinged_s is None and now_s - self._heard_s > limits.idle_s:
            self._ping(_STILL_THERE)
        if now_s - self._looked_s > limits.stalled_s / 4:
            self._looked_s = now_s
            self._cancel_stalled()

    def take_output(self) -> bytes:
        """Returns what is to be written, once."""
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
            self._answer(stream)
        size = len(message) + PREFIX_BYTES
        if stream.queue is None and size <= min(stream.send_window, self._send_window, _CHUNK_BYTES):
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
            _SERVED if is_plain else trailers_block(status, details, is_alone=not stream.is_answered)
        ) + more
        if stream.queue is None:
            self._end(stream)

    def drain(self) -> None:
        """Takes no new calls; those that are open go on (§6.8).

        First a GOAWAY that still allows every stream, and a PING. Its answer proves that the peer has read
        the GOAWAY; what it opened before then is served, and the second GOAWAY names the last of it.
        """
        if not (self._is_draining or self.is_over):
            self._is_draining = True
            if self._has_preface:
                self._announce_leaving()

    def abort(self) -> None:
        """Ends every call at once."""
        for stream in list(self.streams.values()):
            self.reset(stream, Code.CANCEL)
        self.is_over = True

    def reset(self, stream: Stream, code: Code) -> None:
        if not stream.is_over:
            self._out.append(frames.rst_stream(stream.id, code))
            self._forget(stream)

    # Bytes to frames (§3.4, §4.1).

    def _greet(self) -> None:
        limits = self._limits
        settings = {
            # What a proxy says anew with each call would push everything else out of a table, and no block
            # would be like another. A peer that keeps one all the same costs us more and harms nobody, so it
            # is not refused as §4.3.1 would have it.
            frames.HEADER_TABLE_SIZE: 0,
            frames.MAX_CONCURRENT_STREAMS: limits.streams,
            frames.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            frames.MAX_HEADER_LIST_SIZE: limits.header_bytes,
        }
        more = limits.connection_window_bytes - frames.DEFAULT_WINDOW
        self._out += [frames.settings(settings), frames.window_update(0, more)]
        if self._is_draining:
            self._announce_leaving()  # only now: SETTINGS come first (§3.4)

    def _read(self, data: bytes) -> None:
        place = 0
        heads = self._heads
        heads.decoded_bytes = 0
        self.has_more = False
        if not self._has_preface:
            place = self._read_preface(data)
        while self._has_preface and len(data) - place >= frames.HEADER_BYTES and not self.is_over:
            if heads.decoded_bytes >= _DECODED_BYTES:
                self.has_more = True
                break
            head = int.from_bytes(data[place : place + frames.HEADER_BYTES], "big")
            start = place + frames.HEADER_BYTES
            end = start + (head >> 48)
            if end - start > frames.MAX_FRAME_BYTES:
                raise _Fault(Code.FRAME_SIZE_ERROR, "a frame longer than allowed")
            if end > len(data):
                break
            place = end
            self._on_frame(head >> 40 & 0xFF, head >> 32 & 0xFF, head & 0x7FFF_FFFF, data[start:end])
        self._buffer = data[place:]

    def _read_preface(self, data: bytes) -> int:
        start = data[: len(frames.PREFACE)]
        if not frames.PREFACE.startswith(start):
            raise _Fault(Code.PROTOCOL_ERROR, _what_else(data))
        if start != frames.PREFACE:
            return 0
        self._has_preface = True
        self._greet()
        return len(start)

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block.stream_id):
            raise _Fault(Code.PROTOCOL_ERROR, "a frame within a header block")  # §6.10
        if not self._is_greeted and kind != frames.SETTINGS:
            raise _Fault(Code.PROTOCOL_ERROR, "no SETTINGS after the preface")  # §3.4
        if kind < len(self._readers):
            self._readers[kind](flags, stream_id, payload)
        else:
            self._count_control()  # §5.5: unknown frames are ignored

    # Calls: HEADERS, CONTINUATION, DATA, RST_STREAM.

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        _require_stream(stream_id)
        if flags & frames.PADDED:
            payload = _unpad(payload)
        if flags & frames.HAS_PRIORITY:
            if len(payload) < _PRIORITY_BYTES:
                raise _Fault(Code.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
            payload = payload[_PRIORITY_BYTES:]  # §5.3.2: deprecated, ignored
        if flags & frames.END_HEADERS:
            self._on_block(stream_id, payload, is_end=bool(flags & frames.END_STREAM))
        else:
            self._block = _Block(stream_id, bool(flags & frames.END_STREAM), bytearray(payload))

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise _Fault(Code.PROTOCOL_ERROR, "CONTINUATION of nothing")  # §6.10
        block.data += payload
        block.frames += 1
        if len(block.data) > self._limits.header_bytes or block.frames > self._limits.continuations:
            raise _Fault(Code.ENHANCE_YOUR_CALM, "a header block longer than allowed")
        if flags & frames.END_HEADERS:
            self._block = None
            self._on_block(stream_id, bytes(block.data), is_end=block.is_end)

    def _on_block(self, stream_id: int, block: bytes, *, is_end: bool) -> None:
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._on_trailers(stream, block, is_end=is_end)
        elif stream_id > self._last_id and stream_id & 1:
            self._open(stream_id, block, is_end=is_end)
        elif stream_id in self._late:
            self._count_control()
            self._heads.pass_over(block)
            self._end_late(stream_id, is_end=is_end)
        else:
            raise _Fault(Code.PROTOCOL_ERROR, "HEADERS of an even or a used stream")  # §5.1.1

    def _open(self, stream_id: int, block: bytes, *, is_end: bool) -> None:
        self._last_id = stream_id
        try:
            head = self._heads.read(block)
        except MalformedRequest:
            self._count_early_reset()
            self._turn_away(stream_id, frames.rst_stream(stream_id, Code.PROTOCOL_ERROR), is_end=is_end)
            return
        if self._has_left or len(self.streams) >= self._limits.streams:
            refusal = frames.rst_stream(stream_id, Code.REFUSED_STREAM)  # §8.7: nothing was done for it
            self._turn_away(stream_id, refusal, is_end=is_end)
        elif head.refusal:
            self._refuse(stream_id, head.refusal, is_end=is_end)
        else:
            stream = Stream(stream_id, head, self._peer_window, self._limits.stream_window_bytes, self._now_s)
            self.streams[stream_id] = stream
            self.events.append(Opened(stream))
            if is_end:
                self._half_close(stream)

    def _on_trailers(self, stream: Stream, block: bytes, *, is_end: bool) -> None:
        is_well_formed = self._heads.read_trailers(block)
        if stream.is_half_closed:
            self._reject(stream, Code.STREAM_CLOSED)  # §5.1, half-closed (remote)
        elif is_end and is_well_formed:
            self._half_close(stream)
        else:
            stream.is_half_closed = is_end
            self._reject(stream, Code.PROTOCOL_ERROR)  # §8.1: trailers end the stream

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        self._receive_window -= size
        if self._receive_window < self._limits.connection_window_bytes // 2:
            self._open_connection_window()
        if flags & frames.PADDED:
            payload = _unpad(payload)
        stream = self.streams.get(stream_id)
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
            self._open_window(stream)
        stream.heard_s = self._now_s
        if payload:
            self._on_payload(stream, payload)
        elif not stream.is_half_closed:
            self._count_control()
        if stream.is_half_closed and not stream.is_over:
            self._half_close(stream)

    def _on_payload(self, stream: Stream, payload: bytes) -> None:
        reader = stream.reader
        if reader is None:
            # One whole message in one frame is the rule; a compressed one has not this first byte.
            size = len(payload) - PREFIX_BYTES
            if 0 <= size <= self._limits.message_bytes and int.from_bytes(payload[:5], "big") == size:
                stream.is_waiting = False
                self.events.append(Message(stream, payload[PREFIX_BYTES:]))
                return
            reader = stream.reader = MessageReader(self._budget, self._limits.message_bytes)
        try:
            for told in reader.feed(payload):
                stream.is_waiting = False
                if isinstance(told, Skipped):
                    self.events.append(MessageSkipped(stream, told.size))
                else:
                    self.events.append(Message(stream, told))
        except Refused as refusal:
            self._refuse_message(stream, refusal)
        else:
            if reader.is_between:
                stream.reader = None

    def _refuse_message(self, stream: Stream, refusal: Refused) -> None:
        if refusal.is_compressed:
            # gRPC's compression.md: an encoding that the server does not know.
            details = "compressed messages are not read here"
            self.finish(stream, Status.UNIMPLEMENTED, details, encodings_block())
        else:
            limit = self._limits.message_bytes
            self.finish(stream, Status.RESOURCE_EXHAUSTED, f"a message longer than {limit} bytes")

    def _on_stray_data(self, flags: int, stream_id: int) -> None:
        """DATA of a stream that is not open; the connection's window has counted it (§6.9)."""
        _require_stream(stream_id)
        if stream_id > self._last_id or not stream_id & 1:
            raise _Fault(Code.PROTOCOL_ERROR, "DATA on an idle stream")  # §5.1, idle
        self._count_control()
        if stream_id in self._late:
            self._end_late(stream_id, is_end=bool(flags & frames.END_STREAM))
        else:
            self._out.append(frames.rst_stream(stream_id, Code.STREAM_CLOSED))  # §6.1

    def _on_rst_stream(self, _: int, stream_id: int, payload: bytes) -> None:
        _require_stream(stream_id)
        _require_size(payload, 4)
        self._count_control()
        self._require_used(stream_id)
        self._late.pop(stream_id, None)
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        stream.is_half_closed = True
        if not stream.is_answered:
            self._count_early_reset()
        self._forget(stream)

    def _reject(self, stream: Stream, code: Code) -> None:
        """Resets a stream for what the client did on it (§5.4.2).

        To make us reset a stream is as cheap for it as to do so itself, and costs us as much (CVE-2025-8671).
        """
        if not stream.is_answered:
            self._count_early_reset()
        self.reset(stream, code)

    def _half_close(self, stream: Stream) -> None:
        stream.is_half_closed = True
        if stream.reader is not None:
            self.finish(stream, Status.INTERNAL, "the stream ended within a message")
        else:
            self.events.append(HalfClosed(stream))

    # The connection: SETTINGS, PING, GOAWAY, WINDOW_UPDATE, and what has no meaning here.

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        _require_connection(stream_id)
        self._count_control()
        if len(payload) % frames.SETTING.size or (flags & frames.ACK and payload):
            raise _Fault(Code.FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
        if flags & frames.ACK:
            if not self._is_greeted:
                raise _Fault(Code.PROTOCOL_ERROR, "no SETTINGS after the preface")  # §3.4
            return
        # Each may touch every stream: many of them are a flood even where a few frames are none.
        self._count_control(len(self.streams) // 16)
        values = dict(frames.SETTING.iter_unpack(payload))
        for name, value in values.items():
            self._set(name, value)
        self._is_greeted = True
        # Before any DATA that only the new windows allow: the peer counts by them from here on (§6.5.3).
        self._out.append(frames.SETTINGS_ACK)
        if frames.INITIAL_WINDOW_SIZE in values:
            for stream in list(self.streams.values()):
                if stream.queue is not None:
                    self._send_queued(stream)

    def _set(self, name: int, value: int) -> None:
        """Takes one setting (§6.5.2). Unknown ones are ignored; so are those about what we never do."""
        match name:
            case frames.HEADER_TABLE_SIZE if value < frames.DEFAULT_TABLE_BYTES:
                self._table_update = TABLE_OF_NOTHING
            case frames.ENABLE_PUSH if value > 1:
                raise _Fault(Code.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
            case frames.INITIAL_WINDOW_SIZE:
                self._set_peer_window(value)
            case frames.MAX_FRAME_SIZE if not frames.MAX_FRAME_BYTES <= value < 2**24:
                raise _Fault(Code.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of its range")

    def _set_peer_window(self, size: int) -> None:
        """Changes what open streams may send, too, even below zero (§6.9.2)."""
        if size > frames.MAX_WINDOW:
            raise _Fault(Code.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE out of its range")
        change, self._peer_window = size - self._peer_window, size
        for stream in self.streams.values():
            stream.send_window += change
            if stream.send_window > frames.MAX_WINDOW:
                raise _Fault(Code.FLOW_CONTROL_ERROR, "a window past 2^31-1")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        _require_connection(stream_id)
        _require_size(payload, 8)
        self._count_control()
        if not flags & frames.ACK:
            self._out.append(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif payload == _LEAVING and self._is_draining:
            self._leave()

    def _on_goaway(self, _: int, stream_id: int, payload: bytes) -> None:
        """The peer opens no more streams; what is open goes on (§6.8)."""
        _require_connection(stream_id)
        self._count_control()
        if len(payload) < 8:
            raise _Fault(Code.FRAME_SIZE_ERROR, "GOAWAY of a wrong length")

    def _on_window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        _require_size(payload, 4)
        self._count_control()
        increment = int.from_bytes(payload, "big") & frames.MAX_WINDOW
        if not stream_id:
            self._send_window += increment
            if not increment or self._send_window > frames.MAX_WINDOW:
                code = Code.FLOW_CONTROL_ERROR if increment else Code.PROTOCOL_ERROR
                raise _Fault(code, "a window opened by nothing, or too far")  # §6.9, §6.9.1
            self._send_blocked()
            return
        self._require_used(stream_id)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._widen(stream, increment)

    def _widen(self, stream: Stream, increment: int) -> None:
        stream.send_window += increment
        if not increment:
            self._reject(stream, Code.PROTOCOL_ERROR)  # §6.9
        elif stream.send_window > frames.MAX_WINDOW:
            self._reject(stream, Code.FLOW_CONTROL_ERROR)  # §6.9.1
        elif stream.queue is not None:
            self._send_queued(stream)

    def _on_priority(self, _: int, stream_id: int, payload: bytes) -> None:
        _require_stream(stream_id)
        self._count_control()
        if len(payload) != _PRIORITY_BYTES:
            # §6.3 asks for a stream error; a stream that is idle or closed has none to end.
            raise _Fault(Code.FRAME_SIZE_ERROR, "PRIORITY of a wrong length")

    def _on_push_promise(self, _: int, __: int, ___: bytes) -> None:
        raise _Fault(Code.PROTOCOL_ERROR, "PUSH_PROMISE from a client")  # §8.4

    # What we send.

    def _answer(self, stream: Stream) -> None:
        stream.is_answered = True
        block = self._take_table_update() + _RESPONSE
        self._out.append(frames.frame(frames.HEADERS, frames.END_HEADERS, stream.id, block))

    def _end(self, stream: Stream) -> None:
        """Sends the trailers, and lets a client that still sends know that nobody reads it (§8.1)."""
        flags = frames.END_HEADERS | frames.END_STREAM
        block = self._take_table_update() + stream.trailers
        self._out.append(frames.frame(frames.HEADERS, flags, stream.id, block))
        if not stream.is_half_closed:
            self._out.append(frames.rst_stream(stream.id, Code.NO_ERROR))
        self._forget(stream)

    def _refuse(self, stream_id: int, status: int, *, is_end: bool) -> None:
        block = self._take_table_update() + refusal_block(status)
        answer = frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream_id, block)
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

    # What we let the peer send.

    def _open_connection_window(self) -> None:
        """Opens the connection's window as soon as it is half used: what a stream may send bounds us."""
        if self._receive_window < 0:
            raise _Fault(Code.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        increment = self._limits.connection_window_bytes - self._receive_window
        self._receive_window += increment
        self._out.append(frames.window_update(0, increment))

    def _open_window(self, stream: Stream) -> None:
        """Opens a stream's window as soon as it is half used, unless it reads too little of ours."""
        size = self._limits.stream_window_bytes
        if stream.queue is None and not stream.is_half_closed and stream.receive_window <= size // 2:
            self._out.append(frames.window_update(stream.id, size - stream.receive_window))
            stream.receive_window = size

    # Ends.

    def _forget(self, stream: Stream) -> None:
        """Closes a stream: gives back what it held, tells its service."""
        stream.is_over = stream.is_finished = True
        del self.streams[stream.id]
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

    def _announce_leaving(self) -> None:
        self._out.append(frames.goaway(frames.MAX_WINDOW, Code.NO_ERROR))
        self._ping(_LEAVING)

    def _leave(self) -> None:
        if not self._has_left:
            self._has_left = True
            self._final_id = self._last_id
            self._out.append(frames.goaway(self._final_id, Code.NO_ERROR))
            self.is_over = not self.streams

    def _fail(self, code: Code, reason: str) -> None:
        if self._has_preface:
            # Never more than a GOAWAY before it allowed (§6.8).
            self._out.append(frames.goaway(min(self._last_id, self._final_id), code, reason))
        for stream in list(self.streams.values()):
            stream.is_half_closed = True
            self._forget(stream)
        self._buffer, self._block, self.has_more = b"", None, False
        self.events.append(Failed(code, reason))
        self.is_over = True

    # Time and counts.

    def _count_time(self, now_s: float) -> None:
        self._now_s = now_s
        if now_s - self._second_s >= 1:
            self._second_s = now_s
            self._control_frames = self._early_resets = 0

    def _count_control(self, weight: int = 1) -> None:
        self._control_frames += weight
        if self._control_frames > self._limits.control_frames_per_s:
            raise _Fault(Code.ENHANCE_YOUR_CALM, "a flood of frames that carry nothing")

    def _count_early_reset(self) -> None:
        self._early_resets += 1
        if self._early_resets > self._limits.early_resets_per_s:
            raise _Fault(Code.ENHANCE_YOUR_CALM, "a flood of streams that are reset at once")

    def _ping(self, payload: bytes) -> None:
        self._pinged_s = self._now_s
        self._out.append(frames.frame(frames.PING, 0, 0, payload))

    def _cancel_stalled(self) -> None:
        """Cancels streams that for too long owe a message or the rest of one, or a window for what waits."""
        oldest_s = self._now_s - self._limits.stalled_s
        for stream in list(self.streams.values()):
            is_owing = (stream.is_waiting or stream.reader is not None) and not stream.is_half_closed
            is_stuck = stream.queue is not None and stream.sent_s < oldest_s
            if is_stuck or (is_owing and stream.heard_s < oldest_s):
                self.reset(stream, Code.CANCEL)

    def _require_used(self, stream_id: int) -> None:
        if stream_id > self._last_id or not stream_id & 1:
            raise _Fault(Code.PROTOCOL_ERROR, "a frame on an idle stream")  # §5.1, idle


class _Block(Struct):
    """A header block of which more is to come."""

    stream_id: int
    is_end: bool
    data: bytearray
    frames: int = 0


def _unpad(payload: bytes) -> bytes:
    """Takes the padding off (§6.1)."""
    if not payload or payload[0] >= len(payload):
        raise _Fault(Code.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def _require_stream(stream_id: int) -> None:
    if not stream_id:
        raise _Fault(Code.PROTOCOL_ERROR, "a stream's frame on the connection")


def _require_connection(stream_id: int) -> None:
    if stream_id:
        raise _Fault(Code.PROTOCOL_ERROR, "the connection's frame on a stream")


def _require_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise _Fault(Code.FRAME_SIZE_ERROR, "a frame of a wrong length")


def _what_else(data: bytes) -> str:
    """What speaks on our port, if it is not HTTP/2."""
    if data.startswith(b"\x16\x03"):
        return "TLS, where plain text is served"
    is_http = data.split(b" ", 1)[0] in _METHODS
    return "HTTP/1.1, where gRPC is served" if is_http else "no HTTP/2 preface"
