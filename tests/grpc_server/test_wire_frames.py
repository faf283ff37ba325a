"""Bytes to frames: the preface, lengths, padding, header blocks in pieces (RFC 9113 §3.4, §4, §6)."""

from extproc.grpc_server import frames
from extproc.grpc_server.frames import Code, frame
from extproc.grpc_server.incoming import Block
from extproc.grpc_server.limits import WireLimits
from tests.grpc_server.peer import (
    END,
    REQUEST,
    Event,
    Peer,
    code_of,
    cut_frames,
    data,
    framed,
    ping,
)
from tests.reach import reach, size_of
from tests.tables import table

GREETING = frames.PREFACE + frames.settings({})


def test_greets_with_settings_and_a_wider_window_as_soon_as_the_preface_is_there() -> None:
    peer = Peer(greets=False)
    peer.say(frames.PREFACE[:-1])
    assert peer.received() == []

    peer.say(frames.PREFACE[-1:])
    settings, update = peer.received()

    limits = WireLimits()
    values = dict(frames.SETTING.iter_unpack(settings[3]))
    assert settings[:3] == (frames.SETTINGS, 0, 0)
    assert values == {
        frames.HEADER_TABLE_SIZE: 0,
        frames.MAX_CONCURRENT_STREAMS: limits.streams,
        frames.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
        frames.MAX_HEADER_LIST_SIZE: limits.header_bytes,
    }
    more = limits.connection_window_bytes - frames.DEFAULT_WINDOW
    assert update == (frames.WINDOW_UPDATE, 0, 0, more.to_bytes(4, "big"))


@table(
    ("begin", "reason"),
    [
        (b"POST /a HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1"),
        (b"GET / HTTP/1.1\r\n", "HTTP/1.1"),
        (b"\x16\x03\x01\x02\x00\x01\x00", "TLS"),
        (b"\x00" * 40, "no HTTP/2 preface"),
        (frames.PREFACE[:-2] + b"x", "no HTTP/2 preface"),
        (b"x", "no HTTP/2 preface"),
    ],
)
def test_says_what_else_speaks_on_the_port_and_neither_writes_nor_hears_more(
    begin: bytes, reason: str
) -> None:
    peer = Peer(greets=False)

    peer.connection.receive(begin, 0.0)

    (failed,) = peer.connection.events
    assert reason in repr(failed)
    assert peer.connection.is_over
    peer.connection.events.clear()

    size = size_of(peer.connection)
    assert peer.say(b"/ HTTP/1.1", GREETING) == peer.wait(100) == peer.received() == []
    assert size_of(peer.connection) == size


PRIORITY, UNKNOWN = frame(frames.PRIORITY, 0, 1, bytes(5)), frame(0x20, 0, 0, b"")


@table("first", [ping(), frames.SETTINGS_ACK, frames.window_update(0, 1), UNKNOWN, PRIORITY])
def test_anything_before_settings_is_a_connection_error(first: bytes) -> None:
    peer = Peer(greets=False)

    assert peer.say(frames.PREFACE + first) == [("failed", Code.PROTOCOL_ERROR)]
    assert code_of(peer.received()[-1]) is Code.PROTOCOL_ERROR


def test_settings_and_pings_are_acknowledged_each_time() -> None:
    peer = Peer(greets=False)

    peer.say(GREETING + frames.settings({frames.ENABLE_PUSH: 0}) + ping(b"\x00\x01\x02abcde"))

    assert peer.received()[2:] == cut_frames(
        frames.SETTINGS_ACK * 2 + ping(b"\x00\x01\x02abcde", frames.ACK)
    )


# A frame, and the code of the connection error that it is.
CONNECTION_ERRORS = {
    "longer than allowed": (b"\x00\x40\x01\x00\x00\x00\x00\x00\x01", Code.FRAME_SIZE_ERROR),
    "DATA on the connection": (data(0, b"x"), Code.PROTOCOL_ERROR),
    "HEADERS on the connection": (frame(frames.HEADERS, 4, 0, b""), Code.PROTOCOL_ERROR),
    "PRIORITY on the connection": (frame(frames.PRIORITY, 0, 0, bytes(5)), Code.PROTOCOL_ERROR),
    "RST_STREAM on the connection": (frames.rst_stream(0, Code.CANCEL), Code.PROTOCOL_ERROR),
    "SETTINGS on a stream": (frame(frames.SETTINGS, 0, 1, b""), Code.PROTOCOL_ERROR),
    "PING on a stream": (frame(frames.PING, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "GOAWAY on a stream": (frame(frames.GOAWAY, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
    "short PRIORITY": (frame(frames.PRIORITY, 0, 1, bytes(4)), Code.FRAME_SIZE_ERROR),
    "long PRIORITY": (frame(frames.PRIORITY, 0, 1, bytes(6)), Code.FRAME_SIZE_ERROR),
    "short RST_STREAM": (frame(frames.RST_STREAM, 0, 1, bytes(3)), Code.FRAME_SIZE_ERROR),
    "long RST_STREAM": (frame(frames.RST_STREAM, 0, 1, bytes(5)), Code.FRAME_SIZE_ERROR),
    "short PING": (frame(frames.PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    "short GOAWAY": (frame(frames.GOAWAY, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    "short WINDOW_UPDATE": (frame(frames.WINDOW_UPDATE, 0, 0, bytes(3)), Code.FRAME_SIZE_ERROR),
    "half a setting": (frame(frames.SETTINGS, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
    "an acknowledgement with settings": (
        frame(frames.SETTINGS, 1, 0, bytes(6)),
        Code.FRAME_SIZE_ERROR,
    ),
    "a forbidden setting that a later one replaces": (
        frame(frames.SETTINGS, 0, 0, frames.SETTING.pack(2, 2) + frames.SETTING.pack(2, 0)),
        Code.PROTOCOL_ERROR,
    ),
    "PUSH_PROMISE": (frame(frames.PUSH_PROMISE, 4, 1, bytes(4)), Code.PROTOCOL_ERROR),
    "CONTINUATION of nothing": (frame(frames.CONTINUATION, 4, 1, b""), Code.PROTOCOL_ERROR),
    "HEADERS too short for its priority": (
        frame(frames.HEADERS, 0x24, 3, bytes(4)),
        Code.FRAME_SIZE_ERROR,
    ),
    "DATA padded beyond its end": (data(1, b"\x03ab", frames.PADDED), Code.PROTOCOL_ERROR),
    # §6.1 knows no exception; a stream's state is looked at after the frame is read.
    "padded beyond its end on a closed stream": (
        frames.rst_stream(1, Code.CANCEL) + data(1, b"\x01", frames.PADDED),
        Code.PROTOCOL_ERROR,
    ),
    "DATA padded without a length": (data(1, b"", frames.PADDED), Code.PROTOCOL_ERROR),
    "HEADERS padded beyond its end": (
        frame(frames.HEADERS, 0xC, 3, b"\x03ab"),
        Code.PROTOCOL_ERROR,
    ),
    # RFC 7541 §4.2 allows two; 16,384 of them would take 35 ms of everybody's time.
    "a header block of three table sizes": (
        frame(frames.HEADERS, 4, 3, b"\x20" * 3),
        Code.COMPRESSION_ERROR,
    ),
    "a header block that is none": (
        frame(frames.HEADERS, 4, 3, b"\xff\xff\xff"),
        Code.COMPRESSION_ERROR,
    ),
}


@table(("wrong", "code"), CONNECTION_ERRORS.values(), ids=CONNECTION_ERRORS)
def test_a_frame_that_is_wrong_ends_the_connection_and_every_call(wrong: bytes, code: Code) -> None:
    peer = Peer(calls=(1,))

    assert peer.say(wrong) == [("closed", 1), ("failed", code)]
    (goaway,) = peer.received()
    assert code_of(goaway) is code
    # Of all of them only the header block that is none opens a stream.
    assert int.from_bytes(goaway[3][:4], "big") == (3 if code is Code.COMPRESSION_ERROR else 1)
    assert peer.connection.is_over


UNKNOWNS = frame(0x20, 0xFF, 1, b"anything"), frame(0x0A, 0, 0, b"\xff"), frame(0xFF, 0, 7, b"")
PRIORITIES = PRIORITY, frame(frames.PRIORITY, 0, 9, b"\x00\x00\x00\x09\x00")
ANSWERS = frames.SETTINGS_ACK, ping(flags=frames.ACK), ping(b"extproc!", frames.ACK)


@table("ignored", [*UNKNOWNS, *PRIORITIES, *ANSWERS, frames.goaway(0, Code.NO_ERROR, "bye")])
def test_what_has_no_meaning_here_is_ignored(ignored: bytes) -> None:
    peer = Peer(calls=(1,))

    assert peer.say(ignored) == []
    assert peer.received() == []
    assert peer.say(peer.request(11)) == [("opened", 11)]


LONGEST = bytes(frames.MAX_FRAME_BYTES - 5)
ALLOWED: dict[str, tuple[bytes, list[Event]]] = {
    "as long as allowed": (data(1, framed(LONGEST)), [("message", 1, LONGEST)]),
    "a reserved bit": (b"\0\0\x06\0\0\x80\0\0\x01" + framed(b"x"), [("message", 1, b"x")]),
    "all padding": (data(1, b"\x02\x00\x00", frames.PADDED), []),
    "all padding, with END_STREAM": (data(1, b"\x00", frames.PADDED | END), [("half-closed", 1)]),
}


@table(("data", "events"), ALLOWED.values(), ids=ALLOWED)
def test_a_strange_frame_is_taken(data: bytes, events: list[Event]) -> None:
    assert Peer(calls=(1,)).say(data) == events


@table("size", [0, 1, 255])
def test_padding_is_taken_off(size: int) -> None:
    peer = Peer()
    padding = bytes((size,)), bytes(size)
    flags = frames.PADDED | frames.END_HEADERS | frames.HAS_PRIORITY

    events = peer.say(
        frame(frames.HEADERS, flags, 1, padding[0] + bytes(5) + peer.block() + padding[1])
    )
    events += peer.say(data(1, padding[0] + framed(b"x") + padding[1], frames.PADDED))

    assert events == [("opened", 1), ("message", 1, b"x")]


def in_pieces(stream_id: int, block: bytes, count: int, flags: int = 0) -> list[bytes]:
    """HEADERS and `count` CONTINUATION frames."""
    size = len(block) // count + 1
    parts = [b"", *(block[place * size : (place + 1) * size] for place in range(count))]
    kinds = [frames.HEADERS, *[frames.CONTINUATION] * count]
    marks = [flags, *[0] * (count - 1), frames.END_HEADERS]
    return [
        frame(kind, mark, stream_id, part)
        for kind, mark, part in zip(kinds, marks, parts, strict=True)
    ]


@table("count", [1, 2, 7, 8])
def test_a_header_block_may_come_in_pieces(count: int) -> None:
    peer = Peer()

    events = peer.say(*in_pieces(1, peer.block(), count, END))

    assert events == [("opened", 1), ("half-closed", 1)]
    assert dict(REQUEST)["te"] == peer.stream(1).head.metadata["te"]


def test_more_pieces_or_bytes_than_allowed_are_a_flood() -> None:
    peer = Peer()
    *pieces, last = in_pieces(1, peer.block(), 9)

    assert peer.say(*pieces) == []
    assert peer.say(last) == [("failed", Code.ENHANCE_YOUR_CALM)]

    peer = Peer(WireLimits(header_bytes=100))
    start = frame(frames.HEADERS, 0, 1, bytes(60))

    assert peer.say(start, frame(frames.CONTINUATION, 0, 1, bytes(40))) == []
    assert peer.say(frame(frames.CONTINUATION, 0, 1, b"x")) == [("failed", Code.ENHANCE_YOUR_CALM)]


OTHERS = frame(frames.CONTINUATION, 4, 3, b""), frame(frames.HEADERS, 4, 1, b"")


@table("between", [ping(), data(1, b""), *OTHERS, UNKNOWN, frames.rst_stream(1, Code.CANCEL)])
def test_nothing_may_stand_within_a_header_block(between: bytes) -> None:
    peer = Peer()

    assert peer.say(in_pieces(1, peer.block(), 2)[0]) == []
    assert Block in map(type, reach(peer.connection))
    assert peer.say(between) == [("failed", Code.PROTOCOL_ERROR)]
    assert Block not in map(type, reach(peer.connection))
