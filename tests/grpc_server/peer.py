"""A client that says exactly what a test wants, and what our connection makes of it."""

from collections.abc import Sequence
from typing import Any

from hpack import Decoder, Encoder

from extproc.grpc_server import frames, streams
from extproc.grpc_server.budget import Budget, StreamPlaces
from extproc.grpc_server.calls import Status
from extproc.grpc_server.connection import Connection
from extproc.grpc_server.frames import Code
from extproc.grpc_server.limits import WireLimits

Field = tuple[str, str]
# An event in short: ("opened", 1), ("message", 1, b"…"), ("failed", Code.PROTOCOL_ERROR).
Event = tuple[Any, ...]
# A frame in short: type, flags, stream, payload.
Frame = tuple[int, int, int, bytes]

PATH = "/test.Service/Echo"
REQUEST: tuple[Field, ...] = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "extproc"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
END = frames.END_STREAM
# The header block that comes before our first message.
ANSWER = b"\x88\x0f\x10\x10application/grpc"


class Peer:
    """Frames in, events and frames out. `say` returns the events; `received` the frames sent since.

    The streams `calls` are open from the start.
    """

    def __init__(
        self,
        limits: WireLimits | None = None,
        *,
        budget_bytes: int = 1_000_000,
        greets: bool = True,
        places: StreamPlaces | None = None,
        calls: Sequence[int] = (),
    ) -> None:
        self.budget = Budget(budget_bytes)
        self.now_s = 0.0
        self.connection = Connection(limits or WireLimits(), self.budget, self.now_s, places)
        self.encoder = Encoder()
        self.decoder = Decoder()
        self._streams: dict[int, streams.Stream] = {}
        if greets:
            self.say(frames.PREFACE + frames.settings({}))
            self.received()
        self.open(*calls)

    def say(self, *data: bytes) -> list[Event]:
        events: list[Event] = []
        for part in data:
            self.connection.receive(part, self.now_s)
            events += self.events()
        return events

    def events(self) -> list[Event]:
        events = [self._in_short(event) for event in self.connection.events]
        self.connection.events.clear()
        return events

    def received(self) -> list[Frame]:
        return cut_frames(self.connection.take_output())

    def wait(self, seconds: float) -> list[Event]:
        self.now_s += seconds
        self.connection.tick(self.now_s)
        return self.events()

    def block(self, fields: Sequence[Field] = REQUEST) -> bytes:
        return self.encoder.encode(fields)

    def request(self, stream_id: int, flags: int = 0, fields: Sequence[Field] = REQUEST) -> bytes:
        return frames.frame(
            frames.HEADERS, flags | frames.END_HEADERS, stream_id, self.block(fields)
        )

    def open(self, *stream_ids: int) -> None:
        self.say(*map(self.request, stream_ids))

    def send(self, stream_id: int, message: bytes) -> None:
        self.connection.send(self._streams[stream_id], message)

    def finish(self, stream_id: int, status: Status = Status.OK, details: str = "") -> None:
        self.connection.finish(self._streams[stream_id], status, details)

    def reset(self, stream_id: int, code: Code = Code.CANCEL) -> None:
        self.connection.reset(self._streams[stream_id], code)

    def stream(self, stream_id: int) -> streams.Stream:
        return self._streams[stream_id]

    def _in_short(self, event: streams.Event) -> Event:
        match event:
            case streams.Opened():
                self._streams[event.stream.id] = event.stream
                return ("opened", event.stream.id)
            case streams.Message():
                return ("message", event.stream.id, event.data)
            case streams.MessageSkipped():
                return ("skipped", event.stream.id, event.size)
            case streams.HalfClosed():
                return ("half-closed", event.stream.id)
            case streams.Closed():
                return ("closed", event.stream.id)
            case streams.Failed():
                return ("failed", event.code)


def cut_frames(data: bytes) -> list[Frame]:
    """Cuts bytes into frames."""
    parts = []
    while data:
        size = int.from_bytes(data[:3], "big")
        parts.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
        data = data[9 + size :]
    return parts


def data(stream_id: int, payload: bytes, flags: int = 0) -> bytes:
    return frames.frame(frames.DATA, flags, stream_id, payload)


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(5, "big") + message


def ping(payload: bytes = b"12345678", flags: int = 0) -> bytes:
    return frames.frame(frames.PING, flags, 0, payload)


def sent_reset(stream_id: int, code: Code) -> Frame:
    (reset,) = cut_frames(frames.rst_stream(stream_id, code))
    return reset


def code_of(frame: Frame) -> Code:
    """The code of a GOAWAY."""
    assert frame[0] == frames.GOAWAY
    return Code(int.from_bytes(frame[3][4:8], "big"))
