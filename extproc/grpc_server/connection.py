"""One connection as a pure state machine: bytes in, events out; replies in, bytes out.

No socket, no asyncio, no clock: whoever drives it says what time it is.

**Whose rules.** RFC 9113 (HTTP/2), RFC 7541 (HPACK), gRPC over HTTP/2. Each rule names its section. We are
always the server, and a client of ours is a proxy: one connection carries everybody's requests. So
an error is a *stream* error wherever the RFC lets it be one, and a connection error only where the
state both sides share is lost (framing, header table, stream ids, windows) or where no honest peer
would ever be.

**The life of a stream** (§5.1, the server's side of it):

    idle ── HEADERS ──> open ── END_STREAM ──> half-closed ── our trailers ──> closed
                         │                                                       ▲
                         ├── our trailers, then RST_STREAM(NO_ERROR) (§8.1) ──── ┤
                         └── RST_STREAM, either way ─────────────────────────────┘

`streams` holds the open and half-closed ones. A closed stream is forgotten, but for one kind: when
we close first, frames that the client sent before it knew are still on their way and mean nothing.
Those ids are
*late* until the client ends them too, or until newer ones push them out. On any other closed stream DATA
is a stream error STREAM_CLOSED; HEADERS, whose ids may only rise, are a connection error (§5.1.1).

**Who owns what.** `StreamTable`: which streams there are, their events, the time. `Outgoing`: what is to be
written, the peer's windows, what waits for them. `Incoming`: the frames of streams, our windows, the
counts of floods. `Connection`: bytes to frames, what is said of the connection itself, and its end.

**What was tried.** `h2` is right and costs ten times as much; the fuzzer holds us against it. A coroutine or
a queue per stream costs more than all of this module. Only what a service must act on becomes an
event.

**What is bounded** stands in `WireLimits`. Floods cost us and not the peer: frames that
carry nothing are counted per second in one sum, streams reset before their answer in another.
"""

from typing import Final

from hpack import HPACKError

from extproc.grpc_server import frames
from extproc.grpc_server.budget import Budget, StreamPlaces
from extproc.grpc_server.frames import (
    Code,
    PeerFault,
    require_connection,
    require_size,
    require_stream,
    what_else,
)
from extproc.grpc_server.headers import TABLE_OF_NOTHING, TooManySizes
from extproc.grpc_server.incoming import PRIORITY_BYTES, Incoming
from extproc.grpc_server.limits import WireLimits
from extproc.grpc_server.outgoing import Outgoing
from extproc.grpc_server.streams import Failed, StreamTable

# Header blocks to decode in one turn; the last one may exceed it. 8 KB of Huffman codes take 3 ms,
# and a proxy's own blocks, all alike, are decoded once.
_DECODED_BYTES: Final = 8_192
# To read in one turn: of one byte 6,500 frames fit into one read, and take 32 ms; of messages
# 13,000, 11 ms.
_TURN_FRAMES, _TURN_EVENTS = 256, 128
# The payloads of our PINGs.
_STILL_THERE: Final = b"extproc?"
_LEAVING: Final = b"extproc!"


class Connection:
    """A server's end of one HTTP/2 connection that carries gRPC calls.

    Feed it with `receive`, call `tick` about once a second. After either, work off `events`, which
    grows while one answers them, and write what `take_output` returns; close the transport once
    `is_over`. While `has_more`, some of what came waits for another turn: feed it with nothing,
    after others had theirs. `places` are those of all connections of a listener.
    """

    def __init__(
        self, limits: WireLimits, budget: Budget, now_s: float, places: StreamPlaces | None = None
    ) -> None:
        self._limits = limits
        self._table = table = StreamTable(places or StreamPlaces(limits.all_streams), now_s)
        self._outgoing = outgoing = Outgoing(limits, budget, table)
        self._incoming = incoming = Incoming(limits, budget, table, outgoing)
        self._write, self._count_control = outgoing.write, incoming.count_control
        self.streams, self.events = table.open, table.events
        # Not methods that pass on: each message would pay for them.
        self.send, self.finish, self.reset = outgoing.send, outgoing.finish, outgoing.reset
        self.take_output = outgoing.take_output
        self.has_more = False
        self._buffer = b""
        self._has_preface = self._is_greeted = False
        self._began_s = self._received_s = self._second_s = self._looked_s = now_s
        self._pinged_s: float | None = None
        # Draining has begun; the GOAWAY with the last stream's id.
        self._is_draining = False
        self._final_id = frames.MAX_WINDOW
        self._readers = (
            incoming.on_data,
            incoming.on_headers,
            self._on_priority,
            incoming.on_rst_stream,
            self._on_settings,
            self._on_push_promise,
            self._on_ping,
            self._on_goaway,
            incoming.on_window_update,
            incoming.on_continuation,
        )

    # Called by the driver, like `send`, `finish`, `reset` and `take_output`.

    @property
    def is_over(self) -> bool:
        return self._table.is_over

    def receive(self, data: bytes, now_s: float) -> None:
        """Takes bytes in, cut wherever. Never raises: a fault of the peer ends the connection.

        Bytes that come after that are dropped.
        """
        if self.is_over:
            return
        self._received_s = now_s
        self._pinged_s = None
        self._count_time(now_s)
        try:
            self._read(self._buffer + data if self._buffer else data)
        except PeerFault as fault:
            self._fail(fault.code, fault.reason)
        except TooManySizes:
            self._fail(Code.COMPRESSION_ERROR, "a header block of more than two table sizes")
        except HPACKError:
            self._fail(Code.COMPRESSION_ERROR, "a header block that cannot be read")

    def tick(self, now_s: float) -> None:
        self._count_time(now_s)
        limits = self._limits
        if self.is_over:
            return
        if not self._is_greeted and now_s - self._began_s > limits.preface_s:
            self._fail(Code.SETTINGS_TIMEOUT, "no HTTP/2 preface in time")
        elif self._pinged_s is not None and now_s - self._pinged_s > limits.answer_s:
            self._fail(Code.NO_ERROR, "no answer to a PING: the peer is gone")
        elif self._pinged_s is None and now_s - self._received_s > limits.idle_s:
            self._ping(_STILL_THERE)
        if now_s - self._looked_s > limits.stalled_s / 4:
            self._looked_s = now_s
            self._cancel_stalled()

    def drain(self) -> None:
        """Takes no new calls; those that are open go on (§6.8).

        First a GOAWAY that still allows every stream, and a PING. Its answer proves that the peer
        has read the GOAWAY; what it opened before then is served, and the second GOAWAY names the
        last of it.
        """
        if not (self._is_draining or self.is_over):
            self._is_draining = True
            if self._has_preface:
                self._announce_leaving()

    def refuse(self, reason: str) -> None:
        """Ends the connection, by no fault of the peer's."""
        if not self.is_over:
            self._fail(Code.NO_ERROR, reason)

    def abort(self) -> None:
        for stream in list(self.streams.values()):
            self.reset(stream, Code.CANCEL)
        self._table.is_over = True

    # Bytes to frames (§3.4, §4.1).

    def _greet(self) -> None:
        limits = self._limits
        settings = {
            # What a proxy says anew with each call would push everything else out of a table, and
            # no block would be like another. A peer that keeps one all the same costs us more and
            # harms nobody, so it is not refused as §4.3.1 would have it.
            frames.HEADER_TABLE_SIZE: 0,
            frames.MAX_CONCURRENT_STREAMS: limits.streams,
            frames.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
            frames.MAX_HEADER_LIST_SIZE: limits.header_bytes,
        }
        more = limits.connection_window_bytes - frames.DEFAULT_WINDOW
        self._write(frames.settings(settings))
        self._write(frames.window_update(0, more))
        if self._is_draining:
            self._announce_leaving()  # only now: SETTINGS come first (§3.4)

    def _read(self, data: bytes) -> None:
        place, size = 0, len(data)
        table, heads, events = self._table, self._incoming.heads, self.events
        heads.decoded_bytes, frames_left = 0, _TURN_FRAMES
        self.has_more = False
        if not self._has_preface:
            place = self._read_preface(data)
        while (
            self._has_preface
            and (start := place + frames.HEADER_BYTES) <= size
            and not table.is_over
        ):
            if (
                len(events) >= _TURN_EVENTS
                or heads.decoded_bytes >= _DECODED_BYTES
                or not frames_left
            ):
                self.has_more = True
                break
            frames_left -= 1
            head = int.from_bytes(data[place:start], "big")
            end = start + (head >> 48)
            if end - start > frames.MAX_FRAME_BYTES:
                raise PeerFault(Code.FRAME_SIZE_ERROR, "a frame longer than allowed")
            if end > size:
                break
            place = end
            self._on_frame(
                head >> 40 & 0xFF, head >> 32 & 0xFF, head & 0x7FFF_FFFF, data[start:end]
            )
        self._buffer = data[place:]

    def _read_preface(self, data: bytes) -> int:
        start = data[: len(frames.PREFACE)]
        if not frames.PREFACE.startswith(start):
            raise PeerFault(Code.PROTOCOL_ERROR, what_else(data))
        if start != frames.PREFACE:
            return 0
        self._has_preface = True
        self._greet()
        return len(start)

    def _on_frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        block = self._incoming.block
        if block is not None and (kind != frames.CONTINUATION or stream_id != block.stream_id):
            raise PeerFault(Code.PROTOCOL_ERROR, "a frame within a header block")  # §6.10
        if not self._is_greeted and kind != frames.SETTINGS:
            raise PeerFault(Code.PROTOCOL_ERROR, "no SETTINGS after the preface")  # §3.4
        if kind < len(self._readers):
            self._readers[kind](flags, stream_id, payload)
        else:
            self._count_control()  # §5.5: unknown frames are ignored

    # The connection: SETTINGS, PING, GOAWAY, and what has no meaning here.

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        require_connection(stream_id)
        self._count_control()
        if len(payload) % frames.SETTING.size or (flags & frames.ACK and payload):
            raise PeerFault(Code.FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
        if flags & frames.ACK:
            if not self._is_greeted:
                raise PeerFault(Code.PROTOCOL_ERROR, "no SETTINGS after the preface")  # §3.4
            return
        # Each may touch every stream: many of them are a flood even where a few frames are none.
        self._count_control(len(self.streams) // 16)
        values = dict[int, int]()
        for name, value in frames.SETTING.iter_unpack(payload):
            _check_setting(name, value)
            values[name] = value  # of a setting that is given twice, the last counts (§6.5.3)
        # Unknown settings are ignored; so are those about what we never do (§6.5.2).
        if values.get(frames.HEADER_TABLE_SIZE, frames.MAX_WINDOW) < frames.DEFAULT_TABLE_BYTES:
            self._outgoing.table_update = TABLE_OF_NOTHING
        window = values.get(frames.INITIAL_WINDOW_SIZE)
        if window is not None:
            self._outgoing.set_peer_window(window)
        self._is_greeted = True
        # Before any DATA that only the new windows allow: the peer counts by them from here on
        # (§6.5.3).
        self._write(frames.SETTINGS_ACK)
        if window is not None:
            for stream in list(self.streams.values()):
                if stream.queue is not None:
                    self._outgoing.send_queued(stream)

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        require_connection(stream_id)
        require_size(payload, 8)
        self._count_control()
        if not flags & frames.ACK:
            self._write(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif payload == _LEAVING and self._is_draining:
            self._leave()

    def _on_goaway(self, _: int, stream_id: int, payload: bytes) -> None:
        """The peer opens no more streams; what is open goes on (§6.8)."""
        require_connection(stream_id)
        self._count_control()
        if len(payload) < 8:
            raise PeerFault(Code.FRAME_SIZE_ERROR, "GOAWAY of a wrong length")

    def _on_priority(self, _: int, stream_id: int, payload: bytes) -> None:
        require_stream(stream_id)
        self._count_control()
        if len(payload) != PRIORITY_BYTES:
            # §6.3 asks for a stream error; a stream that is idle or closed has none to end.
            raise PeerFault(Code.FRAME_SIZE_ERROR, "PRIORITY of a wrong length")

    def _on_push_promise(self, _: int, __: int, ___: bytes) -> None:
        raise PeerFault(Code.PROTOCOL_ERROR, "PUSH_PROMISE from a client")  # §8.4

    # Ends.

    def _announce_leaving(self) -> None:
        self._write(frames.goaway(frames.MAX_WINDOW, Code.NO_ERROR))
        self._ping(_LEAVING)

    def _leave(self) -> None:
        if not self._table.has_left:
            self._final_id = self._table.last_id
            self._write(frames.goaway(self._final_id, Code.NO_ERROR))
            self._table.leave()

    def _fail(self, code: Code, reason: str) -> None:
        if self._has_preface:
            # Never more than a GOAWAY before it allowed (§6.8).
            self._write(frames.goaway(min(self._table.last_id, self._final_id), code, reason))
        for stream in list(self.streams.values()):
            stream.is_half_closed = True
            self._outgoing.forget(stream)
        self._buffer, self._incoming.block, self.has_more = b"", None, False
        self.events.append(Failed(code, reason))
        self._table.is_over = True

    # Time.

    def _count_time(self, now_s: float) -> None:
        self._table.now_s = now_s
        if now_s - self._second_s >= 1:
            self._second_s = now_s
            self._incoming.begin_second()

    def _ping(self, payload: bytes) -> None:
        self._pinged_s = self._table.now_s
        self._write(frames.frame(frames.PING, 0, 0, payload))

    def _cancel_stalled(self) -> None:
        """Cancels streams that for too long owe a message or the rest of one, or a window for what waits."""
        oldest_s = self._table.now_s - self._limits.stalled_s
        for stream in list(self.streams.values()):
            is_owing = (
                stream.is_waiting or stream.reader is not None
            ) and not stream.is_half_closed
            is_stuck = stream.queue is not None and stream.sent_s < oldest_s
            if is_stuck or (is_owing and stream.received_s < oldest_s):
                self.reset(stream, Code.CANCEL)


def _check_setting(name: int, value: int) -> None:
    """Every value that is given has to be allowed, the ones that a later one replaces as well (§6.5.2)."""
    match name:
        case frames.ENABLE_PUSH if value > 1:
            raise PeerFault(Code.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")
        case frames.INITIAL_WINDOW_SIZE if value > frames.MAX_WINDOW:
            raise PeerFault(Code.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE out of its range")
        case frames.MAX_FRAME_SIZE if not frames.MAX_FRAME_BYTES <= value < 2**24:
            raise PeerFault(Code.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of its range")
