"""What `h2`, as a server, and a plain reading of gRPC make of a client's frames.

`h2` judges frames, streams, windows and header blocks. What it leaves to its user stands here once
more, written for reading and not for speed: which headers are a gRPC call, where a message ends,
which streams are late. Our server's output is told to `h2` as if it had sent it, so it also judges
what we send.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from typing import Final

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import ProtocolError, StreamClosedError
from h2.settings import SettingCodes, Settings
from h2.utilities import HeaderValidationFlags, validate_headers
from hpack import Decoder

from extproc.grpc_server import frames
from extproc.grpc_server.calls import Status
from extproc.grpc_server.frames import Code
from extproc.grpc_server.limits import WireLimits

Fields = tuple[tuple[bytes, bytes], ...]
# What a step shows from outside: calls opened, their messages, their half-closes, their ends.
Fact = tuple[str, int, object]

CONFIG: Final = H2Configuration(
    client_side=False,
    header_encoding=None,
    # Malformed headers are stream errors; `h2` would end the connection. They are looked at here.
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)
REQUEST: Final = HeaderValidationFlags(
    is_client=False, is_trailer=False, is_response_header=False, is_push_promise=False
)
TRAILERS: Final = REQUEST._replace(is_trailer=True)
PREFIX_BYTES: Final = 5


class Call:
    """One stream that is open."""

    def __init__(self, lengths: bytes) -> None:
        self.received = bytearray()
        self.unsent = int(lengths) if lengths else None  # of the DATA that its client announced
        self.is_half_closed = False
        self.status: Status | None = None  # how it is to end
        self.is_refused = False  # it ends for what the client sent: nothing more is read of it
        self.to_send = b""  # what our server has still to send
        self.is_answered = False
        self.heard_s = self.sent_s = 0.0
        self.is_waiting = True

    @property
    def is_owing(self) -> bool:
        return (self.is_waiting or bool(self.received)) and not self.is_half_closed


class Reference:
    """The same connection, seen by `h2`. `take` frames one at a time, then `sent` what our server sent."""

    def __init__(self, limits: WireLimits) -> None:
        self.limits = limits
        self.calls: dict[int, Call] = {}
        self.late: set[int] = set()
        self.last_id = 0
        self._goaway_id = frames.MAX_WINDOW
        self.has_left = False
        self.now_s = 0.0
        # What the step in hand should show.
        self.facts: list[Fact] = []
        self.resets: dict[int, Code] = {}
        self.answers: dict[int, int] = {}
        self.acks: list[bytes] = []
        self.is_draining = False
        self._block: tuple[int, int] | None = None
        self._table_bytes: int | None = None  # which our next block must not exceed
        self._h2 = H2Connection(CONFIG)
        values = {SettingCodes.MAX_CONCURRENT_STREAMS: 2**31 - 1}
        values[SettingCodes.INITIAL_WINDOW_SIZE] = limits.stream_window_bytes
        self._h2.local_settings = Settings(client=False, initial_values=values)
        self._h2.decoder.max_header_list_size = limits.header_bytes
        self._h2.initiate_connection()

    def begin(self) -> None:
        """Begins a step: nothing is expected of it yet."""
        self.facts, self.resets, self.answers, self.acks = [], {}, {}, []

    def take(self, frame: bytes) -> ProtocolError | None:
        """Takes one frame in; returns the error that ends the connection, if it is one."""
        self.begin()
        kind, flags, stream_id, _ = head_of(frame)
        is_stray = stream_id not in self.calls and stream_id & 1 and 0 < stream_id <= self.last_id
        # `h2` forgets closed streams only when it counts the open ones.
        _ = self._h2.open_inbound_streams
        state = self._h2.state_machine.state
        try:
            events = self._h2.receive_data(frame)
        except ProtocolError as error:
            return error
        if kind == frames.GOAWAY:
            # `h2` is deaf after a GOAWAY from its peer; but what is open goes on (RFC 9113 §6.8).
            self._h2.state_machine.state = state
        if is_stray:
            self._on_stray(kind, flags, stream_id)
        for event in events:
            self._on(event)
        return None

    def _on_stray(self, kind: int, flags: int, stream_id: int) -> None:
        """A frame on a stream that was closed before it came."""
        if kind == frames.DATA and stream_id not in self.late:
            self.resets[stream_id] = Code.STREAM_CLOSED
        if kind == frames.HEADERS and not flags & frames.END_HEADERS:
            self._block = (stream_id, flags)
        elif kind == frames.CONTINUATION and flags & frames.END_HEADERS and self._block:
            flags, self._block = self._block[1], None
        is_end = (
            kind in (frames.DATA, frames.HEADERS, frames.CONTINUATION) and flags & frames.END_STREAM
        )
        if kind == frames.RST_STREAM or is_end:
            self.late.discard(stream_id)

    def _on(self, event: events.Event) -> None:
        stream_id = getattr(event, "stream_id", None) or 0
        match event:
            case events.RequestReceived():
                self._on_request(stream_id, _fields(event.headers))
            case events.DataReceived():
                self._on_data(stream_id, event.data or b"")
            case events.TrailersReceived() if is_malformed(_fields(event.headers), TRAILERS):
                self.resets[stream_id] = Code.PROTOCOL_ERROR
            case events.StreamEnded():
                self._on_end(stream_id)
            case events.StreamReset(remote_reset=True):
                del self.calls[stream_id]
                self.facts.append(("closed", stream_id, None))
            case events.StreamReset():
                self.resets[stream_id] = Code(event.error_code or 0)
            case events.PingReceived():
                self.acks.append(event.ping_data or b"")
            case events.PingAckReceived():
                self.has_left |= self.is_draining and event.ping_data == b"extproc!"
            case events.RemoteSettingsChanged():
                self._on_settings(event)
            case _:
                pass

    def _on_request(self, stream_id: int, fields: Fields) -> None:
        self.last_id = stream_id
        self.late.add(stream_id)
        lengths = b",".join(value for name, value in fields if name == b"content-length")
        if is_malformed(fields, REQUEST) or (lengths and not lengths.isdigit()):
            self.resets[stream_id] = Code.PROTOCOL_ERROR
        elif self.has_left or len(self.calls) >= self.limits.streams:
            self.resets[stream_id] = Code.REFUSED_STREAM
        elif refusal := refusal_of(fields):
            self.answers[stream_id] = refusal
        else:
            self.late.discard(stream_id)
            self.calls[stream_id] = Call(lengths)
            self.calls[stream_id].heard_s = self.now_s
            self.facts.append(("opened", stream_id, metadata_of(fields)))

    def _on_data(self, stream_id: int, data: bytes) -> None:
        call = self.calls[stream_id]
        call.heard_s = self.now_s
        call.received += data
        call.unsent = call.unsent and call.unsent - len(data)
        if call.is_refused:
            return
        for found in deframe(call.received, self.limits.message_bytes):
            if isinstance(found, Status):
                call.is_refused = True
                call.status = found if call.status is None else call.status
            else:
                call.is_waiting = False
                self.facts.append(("message", stream_id, found))

    def _on_end(self, stream_id: int) -> None:
        call = self.calls.get(stream_id)
        self.late.discard(stream_id)
        if call is None:
            return
        call.is_half_closed = True
        if call.unsent:
            self.resets[stream_id] = Code.PROTOCOL_ERROR  # §8.1.1
        if stream_id in self.resets:
            return
        if not call.received:
            self.facts.append(("half-closed", stream_id, None))
        elif call.status is None:
            call.status = Status.INTERNAL

    def _on_settings(self, event: events.RemoteSettingsChanged) -> None:
        self.acks.append(b"SETTINGS")
        change = event.changed_settings.get(SettingCodes.HEADER_TABLE_SIZE)
        if change is not None and change.new_value < frames.DEFAULT_TABLE_BYTES:
            smallest = change.new_value if self._table_bytes is None else self._table_bytes
            self._table_bytes = min(change.new_value, smallest)

    def on_send(self, stream_id: int, message: bytes) -> None:
        call = self.calls.get(stream_id)
        if call is not None and call.status is None:
            call.sent_s = call.sent_s if call.to_send else self.now_s
            call.to_send += len(message).to_bytes(PREFIX_BYTES, "big") + message

    def on_finish(self, stream_id: int, status: Status) -> None:
        call = self.calls.get(stream_id)
        if call is not None and call.status is None:
            call.status = status

    def on_reset(self, stream_id: int) -> None:
        if stream_id in self.calls:
            self.resets[stream_id] = Code.CANCEL

    def sent(self, output: bytes) -> None:
        """Holds each frame of `output` against what may be sent, and against what should have been."""
        acks, resets, answers = [], {}, {}
        ended = -1  # the stream that the frame before ended
        for kind, flags, stream_id, payload in frames_of(output):
            is_end = kind == frames.HEADERS and bool(flags & frames.END_STREAM)
            if kind == frames.HEADERS and stream_id in self.calls:
                self._sent_headers(stream_id, self._block_of(payload), is_end=is_end)
            elif kind == frames.HEADERS:
                answers[stream_id] = self._sent_answer(stream_id, self._block_of(payload))
            elif kind == frames.DATA:
                self._sent_data(stream_id, payload)
            elif kind == frames.RST_STREAM:
                code = Code(int.from_bytes(payload, "big"))
                if code is Code.NO_ERROR:
                    assert ended == stream_id, "NO_ERROR for a stream that has not ended"
                else:
                    resets[stream_id] = code
                self._sent_reset(stream_id, code)
            elif kind == frames.WINDOW_UPDATE:
                self._h2.increment_flow_control_window(
                    int.from_bytes(payload, "big"), stream_id or None
                )
            elif kind == frames.GOAWAY:
                self.sent_goaway(payload)
            elif kind in (frames.SETTINGS, frames.PING) and flags & frames.ACK:
                acks.append(payload or b"SETTINGS")
            ended = stream_id if is_end else -1
        assert (acks, resets, answers) == (self.acks, self.resets, self.answers)
        self._check_nothing_is_stuck()

    def _sent_headers(self, stream_id: int, fields: Fields, *, is_end: bool) -> None:
        call = self.calls[stream_id]
        answer = (
            ()
            if call.is_answered
            else ((b":status", b"200"), (b"content-type", b"application/grpc"))
        )
        if is_end:
            assert call.status is not None, "an end that nobody asked for"
            assert not call.to_send, "an end before all was sent"
            status = b"%d" % call.status
            assert fields[: len(answer) + 1] == (*answer, (b"grpc-status", status))
            more = {name for name, _ in fields[len(answer) + 1 :]}
            assert more <= {b"grpc-message", b"grpc-accept-encoding"}
        else:
            assert fields == answer
        call.is_answered = True
        self._h2.send_headers(stream_id, [(b":status", b"200")], end_stream=is_end)
        if is_end:
            self._closed(stream_id)

    def _sent_answer(self, stream_id: int, fields: Fields) -> int:
        ((name, value),) = fields
        assert name == b":status"
        self._h2.send_headers(stream_id, [(b":status", value)], end_stream=True)
        return int(value)

    def _sent_data(self, stream_id: int, payload: bytes) -> None:
        call = self.calls[stream_id]
        assert call.to_send.startswith(payload), "other bytes than the service sent"
        assert call.is_answered, "DATA before the headers"
        call.to_send = call.to_send[len(payload) :]
        call.sent_s = self.now_s
        self._h2.send_data(stream_id, payload)

    def sent_goaway(self, payload: bytes) -> None:
        last_id = int.from_bytes(payload[:4], "big")
        assert last_id <= self._goaway_id, "GOAWAY took back what it had said (§6.8)"
        self._goaway_id = last_id

    def _sent_reset(self, stream_id: int, code: Code) -> None:
        is_open = stream_id in self.calls
        # `h2` may have reset it of itself, for the same frame.
        with suppress(StreamClosedError):
            self._h2.reset_stream(stream_id, code)
        if is_open:
            self._closed(stream_id)

    def _closed(self, stream_id: int) -> None:
        if not self.calls.pop(stream_id).is_half_closed:
            self.late.add(stream_id)
        self.facts.append(("closed", stream_id, None))

    def _block_of(self, block: bytes) -> Fields:
        if self._table_bytes is not None:
            is_update = block[0] >> 5 == 1
            assert is_update, "no update of the table's size"
            assert block[0] & 31 <= self._table_bytes
            self._table_bytes = None
        return _decoded(block)

    def _check_nothing_is_stuck(self) -> None:
        for stream_id, call in self.calls.items():
            if call.to_send:
                window = self._h2.local_flow_control_window(stream_id)
                assert window <= 0, "bytes wait while there is a window for them"
            else:
                assert call.status is None, "a call that should have ended"


def deframe(received: bytearray, limit_bytes: int) -> Iterator[bytes | Status]:
    """Takes whole messages off the front; ends with a status where the next one may not be read."""
    while len(received) >= PREFIX_BYTES:
        size = int.from_bytes(received[1:PREFIX_BYTES], "big")
        if received[0] or size > limit_bytes:
            yield Status.UNIMPLEMENTED if received[0] else Status.RESOURCE_EXHAUSTED
            return
        if len(received) < PREFIX_BYTES + size:
            return
        yield bytes(received[PREFIX_BYTES : PREFIX_BYTES + size])
        del received[: PREFIX_BYTES + size]


@cache
def is_malformed(fields: Fields, flags: HeaderValidationFlags) -> bool:
    """Whether these fields are malformed as `h2` sees it, but for what is meant to differ.

    - it wants `:authority` or `host`, one of each and alike; only a client has to (RFC 9113
      §8.3.1);
    - it takes CONNECT, which no gRPC call is, without scheme and path (§8.5), and `:protocol`,
      which nobody may send before we announce it (RFC 8441 §3);
    - it takes an empty method or scheme, which are none (§8.3.1).
    """
    seen = {name: value for name, value in fields if name.startswith(b":")}
    if not flags.is_trailer and (
        b":protocol" in seen
        or not all(seen.get(name) for name in (b":method", b":scheme", b":path"))
    ):
        return True
    checked = {(b":method", b"CONNECT"): (b":method", b"POST")}
    try:
        found = [
            (b"x-host", field[1]) if field[0] == b"host" else checked.get(field, field)
            for field in fields
        ]
        list(validate_headers(found, flags))
    except ProtocolError as error:
        return "an :authority or Host" not in str(error)
    return False


def refusal_of(fields: Fields) -> int:
    """The HTTP status for a request that is no gRPC call (gRPC over HTTP/2, "Requests")."""
    if (b":method", b"POST") not in fields:
        return 405
    kind = b",".join(value for name, value in fields if name == b"content-type")
    return 0 if kind == b"application/grpc" or kind.startswith(b"application/grpc+") else 415


def metadata_of(fields: Fields) -> dict[str, str]:
    joined: dict[str, list[str]] = {}
    for name, value in fields:
        if not name.startswith(b":"):
            joined.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
    path = dict(fields)[b":path"].decode("latin-1")
    return {":path": path} | {name: ",".join(values) for name, values in joined.items()}


def frames_of(output: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Cuts our output into frames: type, flags, stream, payload."""
    while output:
        kind, flags, stream_id, payload = head_of(output)
        assert 0 <= kind <= frames.CONTINUATION, "half a frame, or none"
        assert len(payload) <= frames.MAX_FRAME_BYTES
        yield kind, flags, stream_id, payload
        output = output[frames.HEADER_BYTES + len(payload) :]


def head_of(data: bytes) -> tuple[int, int, int, bytes]:
    """Type, flags, stream and payload of the first frame; of a part of a frame, what no frame has."""
    size = int.from_bytes(data[:3], "big")
    payload = data[frames.HEADER_BYTES : frames.HEADER_BYTES + size]
    if len(data) < frames.HEADER_BYTES + size:
        return -1, 0, 0, b""
    return data[3], data[4], int.from_bytes(data[5:9], "big") & frames.MAX_WINDOW, payload


def _fields(headers: Iterable[tuple[object, object]] | None) -> Fields:
    return tuple((name, value) for name, value in headers or ())  # type: ignore[misc]


@cache
def _decoded(block: bytes) -> Fields:
    return tuple((bytes(name), bytes(value)) for name, value in Decoder().decode(block, raw=True))
