"""The life of a stream (RFC 9113 §5.1): opened, half-closed, ended by either side, and what comes after."""

from collections.abc import Callable

from extproc.router.wire import frames
from extproc.router.wire.calls import Status
from extproc.router.wire.frames import Code, frame
from extproc.router.wire.limits import WireLimits
from tests.router.wire.peer import ANSWER, END, REQUEST, Frame, Peer, Told, data, framed, sent_reset
from tests.tables import table

CANCEL = frames.rst_stream(1, Code.CANCEL)
HEADERS_END = frames.END_HEADERS | END


def trailers_of(sent: list[Frame]) -> tuple[int, dict[str, str]]:
    """The last frame as trailers: its flags and fields."""
    kind, flags, _, payload = sent[-1]
    assert kind == frames.HEADERS
    return flags, {str(name): str(value) for name, value in Peer().decoder.decode(payload)}


# A conversation, frame by frame, and what is told of it.
CALLS: dict[str, tuple[list[bytes], list[Told]]] = {
    "unary": ([data(1, framed(b"a"), END)], [("message", 1, b"a"), ("half-closed", 1)]),
    "streaming": (
        [data(1, framed(b"a")), data(1, framed(b"b")), data(1, b"", END)],
        [("message", 1, b"a"), ("message", 1, b"b"), ("half-closed", 1)],
    ),
    "no message": ([data(1, b"", END)], [("half-closed", 1)]),
    "empty messages": ([data(1, framed(b"") * 2)], [("message", 1, b""), ("message", 1, b"")]),
    "cancelled": ([CANCEL], [("closed", 1)]),
    "cancelled within a message": ([data(1, b"\x00\x00"), CANCEL], [("closed", 1)]),
    "cancelled twice": ([CANCEL, CANCEL], [("closed", 1)]),
    "trailers": ([frame(frames.HEADERS, HEADERS_END, 1, b"")], [("half-closed", 1)]),
}


@table(("said", "expected"), CALLS.values(), ids=CALLS)
def test_a_call_is_told_as_it_goes(said: list[bytes], expected: list[Told]) -> None:
    peer = Peer()
    peer.open(1)

    assert peer.say(*said) == expected
    assert peer.budget.used == 0


def test_a_call_may_end_where_it_begins() -> None:
    peer = Peer()

    assert peer.say(peer.request(1, END)) == [("opened", 1), ("half-closed", 1)]


def test_answers_of_a_unary_call_are_headers_message_and_trailers() -> None:
    peer = Peer()
    peer.say(peer.request(1, END))
    peer.send(1, b"hello")
    peer.finish(1)

    sent = peer.heard()

    assert sent[0] == (frames.HEADERS, frames.END_HEADERS, 1, ANSWER)
    assert sent[1] == (frames.DATA, 0, 1, framed(b"hello"))
    assert trailers_of(sent) == (HEADERS_END, {"grpc-status": "0"})
    assert peer.told() == [("closed", 1)]
    assert peer.connection.streams == {}


def test_an_end_without_a_message_is_trailers_alone() -> None:
    peer = Peer()
    peer.say(peer.request(1, END))
    peer.finish(1, Status.NOT_FOUND, "no such thing")

    (only,) = sent = peer.heard()

    assert only[3].startswith(ANSWER)
    assert trailers_of(sent) == (
        HEADERS_END,
        {
            ":status": "200",
            "content-type": "application/grpc",
            "grpc-status": "5",
            "grpc-message": "no such thing",
        },
    )


@table("has_message", [True, False])
def test_a_client_that_still_sends_is_told_that_nobody_reads_it(has_message: bool) -> None:
    """§8.1: a full response, then RST_STREAM(NO_ERROR)."""
    peer = Peer()
    peer.open(1)
    if has_message:
        peer.send(1, b"hello")
    peer.finish(1)

    *answer, reset = peer.heard()

    assert reset == sent_reset(1, Code.NO_ERROR)
    assert answer[-1][1] == HEADERS_END


def test_what_is_said_after_the_end_is_not_sent() -> None:
    peer = Peer()
    peer.open(1)
    peer.finish(1)
    peer.heard()
    told = peer.told()

    peer.send(1, b"late")
    peer.finish(1, Status.INTERNAL)
    peer.reset(1)

    assert peer.heard() == []
    assert (told, peer.told()) == ([("closed", 1)], [])


@table("way", ["finish", "reset", "cancelled"])
def test_an_end_is_told_once(way: str) -> None:
    peer = Peer()
    peer.open(1)

    if way == "finish":
        peer.finish(1)
    elif way == "reset":
        peer.reset(1)
    else:
        peer.connection.receive(CANCEL, 0.0)
    peer.connection.abort()

    assert peer.told() == [("closed", 1)]


def test_a_reset_says_its_code_alone() -> None:
    peer = Peer()
    peer.open(1)
    peer.send(1, b"x")
    peer.heard()
    peer.reset(1, Code.INTERNAL_ERROR)

    assert peer.heard() == [sent_reset(1, Code.INTERNAL_ERROR)]


def test_abort_resets_every_call() -> None:
    peer = Peer()
    peer.open(1, 3)

    peer.connection.abort()

    assert peer.heard() == [sent_reset(1, Code.CANCEL), sent_reset(3, Code.CANCEL)]
    assert peer.told() == [("closed", 1), ("closed", 3)]
    assert peer.connection.is_over


# Messages that are refused: what the client sends, and the status that it gets (gRPC over HTTP/2).
REFUSED = {
    "compressed": (data(1, b"\x01" + framed(b"x")[1:]), Status.UNIMPLEMENTED),
    "compressed, by its first byte": (data(1, b"\x01\x00\x00\x00\xff"), Status.UNIMPLEMENTED),
    "too long, before it came": (data(1, b"\x00\x00\x00\x00\x65"), Status.RESOURCE_EXHAUSTED),
    "too long, in one frame": (data(1, framed(bytes(101))), Status.RESOURCE_EXHAUSTED),
    "too long, with END_STREAM": (data(1, framed(bytes(101)), END), Status.RESOURCE_EXHAUSTED),
}


@table(("said", "status"), REFUSED.values(), ids=REFUSED)
def test_a_message_that_will_not_be_read_ends_its_call_with_a_status(said: bytes, status: Status) -> None:
    peer = Peer(WireLimits(message_bytes=100))
    peer.open(1)

    assert peer.say(said) == [("closed", 1)]
    sent = [sent for sent in peer.heard() if sent[0] == frames.HEADERS]
    assert trailers_of(sent)[1]["grpc-status"] == str(int(status))
    assert peer.budget.used == 0


def test_a_message_as_long_as_allowed_is_read() -> None:
    peer = Peer(WireLimits(message_bytes=100))
    peer.open(1)
    message = bytes(100)

    told = peer.say(data(1, framed(message)), data(1, framed(message)[:50]), data(1, framed(message)[50:]))

    assert told == [("message", 1, message)] * 2


def test_messages_before_a_refused_one_are_told() -> None:
    peer = Peer()
    peer.open(1)

    assert peer.say(data(1, framed(b"a") + b"\x01" * 5)) == [("message", 1, b"a"), ("closed", 1)]


@table("cut_at", [1, 4, 5, 7])
@table("end", [data(1, b"", END), frame(frames.HEADERS, HEADERS_END, 1, b"")])
def test_an_end_within_a_message_is_internal(cut_at: int, end: bytes) -> None:
    peer = Peer()
    peer.open(1)

    told = peer.say(data(1, framed(b"abc")[:cut_at]), end)
    sent = peer.heard()

    assert told == [("closed", 1)]
    assert trailers_of(sent)[1]["grpc-status"] == str(int(Status.INTERNAL))
    assert peer.budget.used == 0


def test_a_refused_call_with_output_waiting_reads_nothing_more_and_ends_once() -> None:
    peer = Peer()
    peer.say(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    peer.open(1)
    peer.send(1, b"waits")

    told = peer.say(data(1, b"\x01" * 5), data(1, framed(b"more")), data(1, b"", END))
    assert told == []

    peer.heard()
    assert peer.say(frames.window_update(1, 100)) == [("closed", 1)]
    assert trailers_of(peer.heard())[1]["grpc-status"] == str(int(Status.UNIMPLEMENTED))


# Trailers (§8.1).
BAD_TRAILERS = {
    "without END_STREAM": (frame(frames.HEADERS, frames.END_HEADERS, 1, b"\x00\x01a\x01b"), False),
    "with a pseudo-header": (frame(frames.HEADERS, HEADERS_END, 1, b"\x84"), True),
    "with a name in capitals": (frame(frames.HEADERS, HEADERS_END, 1, b"\x00\x01A\x01b"), True),
}


@table(("said", "is_end"), BAD_TRAILERS.values(), ids=BAD_TRAILERS)
def test_bad_trailers_are_a_stream_error(said: bytes, is_end: bool) -> None:
    peer = Peer()
    peer.open(1)

    assert peer.say(said) == [("closed", 1)]
    assert peer.heard() == [sent_reset(1, Code.PROTOCOL_ERROR)]
    assert (1 not in peer.connection._late) is is_end


def test_trailers_go_through_the_header_table() -> None:
    peer = Peer()
    peer.open(1)
    peer.say(frame(frames.HEADERS, HEADERS_END, 1, peer.block([("x-checksum", "abc")])))

    told = peer.say(peer.request(3, fields=(*REQUEST, ("x-checksum", "abc"))))

    assert told == [("opened", 3)]
    assert peer.stream(3).head.metadata["x-checksum"] == "abc"


# What comes after the client has ended its side (§5.1, half-closed (remote)).


@table("said", [data(1, framed(b"x")), frame(frames.HEADERS, HEADERS_END, 1, b"")])
def test_more_after_the_clients_end_is_a_stream_error(said: bytes) -> None:
    peer = Peer()
    peer.say(peer.request(1, END))

    assert peer.say(said) == [("closed", 1)]
    assert peer.heard() == [sent_reset(1, Code.STREAM_CLOSED)]


def test_window_updates_and_priorities_may_follow_the_clients_end() -> None:
    peer = Peer()
    peer.say(peer.request(1, END))

    assert peer.say(frames.window_update(1, 5), frame(frames.PRIORITY, 0, 1, bytes(5))) == []
    assert peer.heard() == []


# What comes after the end of a stream. Each row: how it ended, what comes, what we say.
def ended(way: str) -> Peer:
    peer = Peer()
    peer.open(1)
    match way:
        case "by the client":
            peer.say(CANCEL)
        case "by both":
            peer.say(data(1, b"", END))
            peer.finish(1)
        case "by us":
            peer.finish(1)
        case "by us, then by the client":
            peer.finish(1)
            peer.say(data(1, framed(b"late"), END))
        case "by us, then reset":
            peer.reset(1)
            peer.say(CANCEL)
    peer.told()
    peer.heard()
    return peer


CLOSED = ["by the client", "by both", "by us, then by the client", "by us, then reset"]


@table("way", CLOSED)
def test_data_on_a_closed_stream_is_a_stream_error(way: str) -> None:
    peer = ended(way)

    assert peer.say(data(1, framed(b"x"))) == []
    assert peer.heard() == [sent_reset(1, Code.STREAM_CLOSED)]


@table("way", CLOSED)
def test_headers_on_a_closed_stream_are_a_connection_error(way: str) -> None:
    """§5.1.1: ids may only rise; a header block that means nothing known cannot be let pass."""
    peer = ended(way)

    assert peer.say(peer.request(1)) == [("failed", Code.PROTOCOL_ERROR)]


@table("way", [*CLOSED, "by us"])
@table(
    "said",
    [CANCEL, frames.window_update(1, 1), frames.window_update(1, 0), frame(frames.PRIORITY, 0, 1, bytes(5))],
)
def test_resets_updates_and_priorities_may_come_after_the_end(way: str, said: bytes) -> None:
    peer = ended(way)

    assert peer.say(said) == []
    assert peer.heard() == []


def test_what_a_client_sent_before_it_knew_of_our_end_means_nothing() -> None:
    peer = ended("by us")

    told = peer.say(data(1, framed(b"late")), data(1, b"\x01"), frame(frames.HEADERS, 4, 1, b""))
    told += peer.say(frame(frames.HEADERS, HEADERS_END, 1, b""))

    assert told == []
    assert peer.heard() == []
    assert peer.connection._late == {}


def test_a_late_header_block_goes_through_the_header_table() -> None:
    peer = ended("by us")

    peer.say(frame(frames.HEADERS, HEADERS_END, 1, peer.block([("x-checksum", "abc")])))
    peer.say(peer.request(3, fields=(*REQUEST, ("x-checksum", "abc"))))

    assert peer.stream(3).head.metadata["x-checksum"] == "abc"


def test_late_data_counts_against_the_connections_window() -> None:
    peer = ended("by us")
    before = peer.connection._receive_window

    peer.say(data(1, bytes(1_000)))

    assert peer.connection._receive_window == before - 1_000


def test_only_so_many_late_streams_are_remembered() -> None:
    peer = Peer()
    for stream_id in range(1, 2_003, 2):
        peer.open(stream_id)
        peer.finish(stream_id)
    peer.told()
    peer.heard()

    assert len(peer.connection._late) == 1_000
    assert peer.say(data(1, b""), data(3, b"")) == []
    assert peer.heard() == [sent_reset(1, Code.STREAM_CLOSED)]


# Ids (§5.1.1).


@table("stream_id", [2, 4, 1, 3, 5])
def test_ids_are_odd_and_rise(stream_id: int) -> None:
    peer = Peer()
    peer.say(peer.request(5, END))
    peer.finish(5)
    peer.told()

    assert peer.say(peer.request(stream_id)) == [("failed", Code.PROTOCOL_ERROR)]


def test_ids_may_be_left_out() -> None:
    peer = Peer()

    assert peer.say(peer.request(7), peer.request(frames.MAX_WINDOW)) == [
        ("opened", 7),
        ("opened", frames.MAX_WINDOW),
    ]


IDLE: dict[str, Callable[[int], bytes]] = {
    "DATA": lambda stream_id: data(stream_id, b""),
    "RST_STREAM": lambda stream_id: frames.rst_stream(stream_id, Code.CANCEL),
    "WINDOW_UPDATE": lambda stream_id: frames.window_update(stream_id, 1),
}


@table("kind", IDLE)
@table("stream_id", [2, 7, frames.MAX_WINDOW])
def test_frames_on_idle_streams_are_a_connection_error(kind: str, stream_id: int) -> None:
    peer = Peer()
    peer.open(5)

    assert peer.say(IDLE[kind](stream_id)) == [("closed", 5), ("failed", Code.PROTOCOL_ERROR)]


def test_ids_that_were_left_out_are_closed() -> None:
    peer = Peer()
    peer.open(5)

    assert peer.say(data(3, b"x"), frames.rst_stream(3, Code.CANCEL), frames.window_update(3, 1)) == []
    assert peer.heard() == [sent_reset(3, Code.STREAM_CLOSED)]


# Calls that are not taken.


def test_a_stream_too_many_is_refused_and_the_others_go_on() -> None:
    peer = Peer(WireLimits(streams=2))
    peer.open(1, 3)

    assert peer.say(peer.request(5)) == []
    assert peer.heard() == [sent_reset(5, Code.REFUSED_STREAM)]
    assert peer.say(data(5, framed(b"late"), END)) == []

    peer.finish(1)
    assert peer.say(peer.request(7, END)) == [("closed", 1), ("opened", 7), ("half-closed", 7)]


def test_a_refused_header_block_goes_through_the_header_table() -> None:
    peer = Peer(WireLimits(streams=1))
    peer.open(1)
    fields = (*REQUEST, ("x-checksum", "abc"))
    peer.say(peer.request(3, END, fields), CANCEL)

    peer.say(peer.request(5, fields=fields))

    assert peer.stream(5).head.metadata["x-checksum"] == "abc"


def test_a_malformed_request_is_a_stream_error() -> None:
    peer = Peer()

    assert peer.say(peer.request(1, fields=REQUEST[1:])) == []
    assert peer.heard() == [sent_reset(1, Code.PROTOCOL_ERROR)]
    assert peer.say(data(1, framed(b"late"), END), peer.request(3)) == [("opened", 3)]


def test_a_refused_connection_ends_with_a_goaway_that_blames_nobody() -> None:
    """It names the last stream that was served, so that the peer tries later ones elsewhere; once."""
    peer = Peer()
    peer.say(peer.request(1), CANCEL)
    peer.connection.refuse("too many")
    peer.connection.refuse("too many")

    assert frames.goaway(1, Code.NO_ERROR, "too many") == b"".join(
        frame(kind, flags, stream_id, payload) for kind, flags, stream_id, payload in peer.heard()
    )
    assert peer.connection.is_over


# The length that a request announces (RFC 9113 §8.1.1): whether DATA may be so long.
LENGTHS: dict[str, tuple[str, list[bytes], bool]] = {
    "as announced": ("6", [data(1, framed(b"a"), END)], True),
    "in two parts": ("12", [data(1, framed(b"a")), data(1, framed(b"b"), END)], True),
    "before trailers": ("6", [data(1, framed(b"a")), frame(frames.HEADERS, HEADERS_END, 1, b"")], True),
    "more": ("5", [data(1, framed(b"a"))], False),
    "less": ("7", [data(1, framed(b"a"), END)], False),
    "less before trailers": ("7", [data(1, framed(b"a")), frame(frames.HEADERS, HEADERS_END, 1, b"")], False),
}


@table(("length", "said", "is_right"), LENGTHS.values(), ids=LENGTHS)
def test_data_of_another_length_than_announced_ends_its_stream_alone(
    length: str, said: list[bytes], is_right: bool
) -> None:
    peer = Peer()
    peer.say(peer.request(1, 0, [*REQUEST, ("content-length", length)]))

    told = [each[0] for each in peer.say(*said)]

    assert ("half-closed" in told) is is_right
    assert ("closed" in told) is not is_right
    assert peer.say(peer.request(3, END)) == [("opened", 3), ("half-closed", 3)]


@table("length", ["-1", "1,1", "0x1", "", "1" * 19])
def test_a_length_that_is_no_number_opens_no_stream(length: str) -> None:
    peer = Peer()

    assert peer.say(peer.request(1, 0, [*REQUEST, ("content-length", length)])) == []
    assert peer.heard()[-1] == sent_reset(1, Code.PROTOCOL_ERROR)
