"""The life of a stream (RFC 9113 §5.1): opened, half-closed, ended by either side, what comes after; ids."""

from collections.abc import Callable, Sequence

from hpack import Encoder

from extproc.grpc_server import frames
from extproc.grpc_server.calls import Status
from extproc.grpc_server.frames import Code, frame
from extproc.grpc_server.limits import WireLimits
from tests.grpc_server.peer import (
    ANSWER,
    END,
    REQUEST,
    Event,
    Field,
    Frame,
    Peer,
    data,
    framed,
    sent_reset,
)
from tests.tables import table

HEADERS_END = frames.END_HEADERS | END
CANCEL = frames.rst_stream(1, Code.CANCEL)
PRIORITY = frame(frames.PRIORITY, 0, 1, bytes(5))
TRAILERS = frame(frames.HEADERS, HEADERS_END, 1, b"")


def trailers_of(sent: list[Frame]) -> tuple[int, dict[str, str]]:
    """The last frame as trailers: its flags and fields."""
    kind, flags, _, payload = sent[-1]
    assert kind == frames.HEADERS
    return flags, {str(name): str(value) for name, value in Peer().decoder.decode(payload)}


# A conversation, frame by frame, and its events.
CALLS: dict[str, tuple[list[bytes], list[Event]]] = {
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
    "trailers": ([TRAILERS], [("half-closed", 1)]),
    "a refused message": (
        [data(1, framed(b"a") + b"\x01" * 5)],
        [("message", 1, b"a"), ("closed", 1)],
    ),
}


@table(("frames_sent", "expected"), CALLS.values(), ids=CALLS)
def test_a_call_has_its_events_in_order(frames_sent: list[bytes], expected: list[Event]) -> None:
    peer = Peer(calls=(1,))

    assert peer.say(*frames_sent) == expected
    assert peer.budget.used == 0


def test_answers_of_a_unary_call_are_headers_message_and_trailers() -> None:
    peer = Peer()
    assert peer.say(peer.request(1, END)) == [("opened", 1), ("half-closed", 1)]
    peer.send(1, b"hello")
    peer.finish(1)

    sent = peer.received()

    assert sent[0] == (frames.HEADERS, frames.END_HEADERS, 1, ANSWER)
    assert sent[1] == (frames.DATA, 0, 1, framed(b"hello"))
    assert trailers_of(sent) == (HEADERS_END, {"grpc-status": "0"})
    assert peer.events() == [("closed", 1)]
    assert peer.connection.streams == {}


def test_an_end_without_a_message_is_trailers_alone() -> None:
    peer = Peer()
    peer.say(peer.request(1, END))
    peer.finish(1, Status.NOT_FOUND, "no such thing")

    (only,) = sent = peer.received()

    assert only[3].startswith(ANSWER)
    base = {":status": "200", "content-type": "application/grpc"}
    assert trailers_of(sent) == (
        HEADERS_END,
        base | {"grpc-status": "5", "grpc-message": "no such thing"},
    )


@table("has_message", [True, False])
def test_a_client_that_still_sends_gets_a_reset_without_an_error(has_message: bool) -> None:
    """§8.1: a full response, then RST_STREAM(NO_ERROR)."""
    peer = Peer(calls=(1,))
    if has_message:
        peer.send(1, b"hello")
    peer.finish(1)

    *answer, reset = peer.received()

    assert reset == sent_reset(1, Code.NO_ERROR)
    assert answer[-1][1] == HEADERS_END


@table("way", ["finish", "reset", "cancelled"])
def test_a_call_closes_once_and_nothing_is_sent_after_it(way: str) -> None:
    peer = Peer(calls=(1,))
    peer.send(1, b"x")
    peer.received()
    if way == "finish":
        peer.finish(1)
    elif way == "reset":
        peer.reset(1, Code.INTERNAL_ERROR)
    else:
        peer.connection.receive(CANCEL, 0.0)
    events, sent = peer.events(), peer.received()
    peer.send(1, b"late")
    peer.finish(1, Status.INTERNAL)
    peer.reset(1)
    peer.connection.abort()

    assert (events, peer.events(), peer.received()) == ([("closed", 1)], [], [])
    if way == "reset":
        assert sent == [sent_reset(1, Code.INTERNAL_ERROR)]


def test_abort_resets_every_call() -> None:
    peer = Peer(calls=(1, 3))

    peer.connection.abort()

    assert peer.received() == [sent_reset(1, Code.CANCEL), sent_reset(3, Code.CANCEL)]
    assert peer.events() == [("closed", 1), ("closed", 3)]
    assert peer.connection.is_over


# Messages that are refused: what the client sends, and the status that it gets (gRPC over HTTP/2).
REFUSED = {
    "compressed": ([data(1, b"\x01" + framed(b"x")[1:])], Status.UNIMPLEMENTED),
    "compressed, by its first byte": ([data(1, b"\x01\x00\x00\x00\xff")], Status.UNIMPLEMENTED),
    "too long, before it came": ([data(1, b"\x00\x00\x00\x00\x65")], Status.RESOURCE_EXHAUSTED),
    "too long, in one frame": ([data(1, framed(bytes(101)))], Status.RESOURCE_EXHAUSTED),
    "too long, with END_STREAM": ([data(1, framed(bytes(101)), END)], Status.RESOURCE_EXHAUSTED),
    **{
        f"an end behind {size} bytes of a message": (
            [data(1, framed(b"abc")[:size]), end],
            Status.INTERNAL,
        )
        for size in (1, 4, 5, 7)
        for end in (data(1, b"", END), TRAILERS)
    },
}


@table(("frames_sent", "status"), REFUSED.values(), ids=REFUSED)
def test_a_message_that_will_not_be_read_ends_its_call_with_a_status(
    frames_sent: list[bytes], status: Status
) -> None:
    peer = Peer(WireLimits(message_bytes=100), calls=(1,))

    assert peer.say(*frames_sent) == [("closed", 1)]
    sent = [sent for sent in peer.received() if sent[0] == frames.HEADERS]
    assert trailers_of(sent)[1]["grpc-status"] == str(int(status))
    assert peer.budget.used == 0


def test_a_message_as_long_as_allowed_is_read() -> None:
    peer = Peer(WireLimits(message_bytes=100), calls=(1,))
    message = bytes(100)

    events = peer.say(
        data(1, framed(message)), data(1, framed(message)[:50]), data(1, framed(message)[50:])
    )

    assert events == [("message", 1, message)] * 2


def test_a_refused_call_with_output_waiting_reads_nothing_more_and_ends_once() -> None:
    peer = Peer()
    peer.say(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    peer.open(1)
    peer.send(1, b"waits")

    assert peer.say(data(1, b"\x01" * 5), data(1, framed(b"more")), data(1, b"", END)) == []
    peer.received()
    assert peer.say(frames.window_update(1, 100)) == [("closed", 1)]
    assert trailers_of(peer.received())[1]["grpc-status"] == str(int(Status.UNIMPLEMENTED))


def peer_at(state: str) -> Peer:
    """One whose only call is so far."""
    peer = Peer(calls=(1,))
    match state:
        case "half-closed":
            peer.say(data(1, b"", END))
        case "ended by the client":
            peer.say(CANCEL)
        case "ended by both":
            peer.say(data(1, b"", END))
            peer.finish(1)
        case "ended by us":
            peer.finish(1)
        case "ended by us, then by the client":
            peer.finish(1)
            peer.say(data(1, framed(b"late"), END))
        case "ended by us, then reset":
            peer.reset(1)
            peer.say(CANCEL)
    peer.events()
    peer.received()
    return peer


CLOSED = (
    "ended by the client",
    "ended by both",
    "ended by us, then by the client",
    "ended by us, then reset",
)
ENDED: list[Event] = [("closed", 1)]
DATA = data(1, framed(b"x"))
REQUEST_AGAIN = frame(frames.HEADERS, frames.END_HEADERS, 1, Encoder().encode(REQUEST))
TRAILERS_WITHOUT_END = frame(frames.HEADERS, frames.END_HEADERS, 1, b"\x00\x01a\x01b")
WITH_PSEUDO_HEADER = frame(frames.HEADERS, HEADERS_END, 1, b"\x84")
WITH_CAPITALS = frame(frames.HEADERS, HEADERS_END, 1, b"\x00\x01A\x01b")
LATE = [data(1, framed(b"late")), data(1, b"\x01"), frame(frames.HEADERS, 4, 1, b""), TRAILERS]
NO_TRAILERS, NO_STREAM = Code.PROTOCOL_ERROR, Code.STREAM_CLOSED
# States, what comes there, its events, and the codes of our RST_STREAMs (§5.1, §8.1).
COMING: dict[str, tuple[Sequence[str], list[bytes], list[Event], list[Code]]] = {
    "trailers without END_STREAM": (["open"], [TRAILERS_WITHOUT_END, DATA], ENDED, [NO_TRAILERS]),
    "a pseudo-header": (["open"], [WITH_PSEUDO_HEADER, DATA], ENDED, [NO_TRAILERS, NO_STREAM]),
    "a name in capitals": (["open"], [WITH_CAPITALS, DATA], ENDED, [NO_TRAILERS, NO_STREAM]),
    "DATA after the client's end": (["half-closed"], [DATA], ENDED, [NO_STREAM]),
    "HEADERS after the client's end": (["half-closed"], [TRAILERS], ENDED, [NO_STREAM]),
    "what may follow the client's end": (
        ["half-closed"],
        [frames.window_update(1, 5), PRIORITY],
        [],
        [],
    ),
    "DATA after the end": (CLOSED, [DATA], [], [NO_STREAM]),
    # §5.1.1: ids may only rise; a header block that means nothing known cannot be let pass.
    "HEADERS after the end": (CLOSED, [REQUEST_AGAIN], [("failed", Code.PROTOCOL_ERROR)], []),
    "a reset after the end": ([*CLOSED, "ended by us"], [CANCEL], [], []),
    "an update after the end": ([*CLOSED, "ended by us"], [frames.window_update(1, 1)], [], []),
    "no update after the end": ([*CLOSED, "ended by us"], [frames.window_update(1, 0)], [], []),
    "a priority after the end": ([*CLOSED, "ended by us"], [PRIORITY], [], []),
    "what was sent before our end was known": (["ended by us"], LATE, [], []),
    "more than that": (["ended by us"], [*LATE, DATA], [], [NO_STREAM]),
}


@table(("states", "frames_sent", "events", "codes"), COMING.values(), ids=COMING)
def test_what_comes_means_what_the_streams_state_makes_of_it(
    states: Sequence[str], frames_sent: list[bytes], events: list[Event], codes: list[Code]
) -> None:
    for state in states:
        peer = peer_at(state)

        assert peer.say(*frames_sent) == events, state
        assert [sent for sent in peer.received() if sent[0] != frames.GOAWAY] == [
            sent_reset(1, code) for code in codes
        ], state


@table("way", ["trailers", "late", "refused"])
def test_a_block_goes_through_the_header_table_whatever_it_is(way: str) -> None:
    peer = Peer(WireLimits(streams=1), calls=(1,))
    extra = ("x-checksum", "abc")
    if way == "late":
        peer.finish(1)
    if way == "refused":
        peer.say(peer.request(3, END, (*REQUEST, extra)))
    else:
        peer.say(frame(frames.HEADERS, HEADERS_END, 1, peer.block([extra])))
    peer.say(CANCEL)

    assert peer.say(peer.request(5, fields=(*REQUEST, extra))) == [("opened", 5)]
    assert peer.stream(5).head.metadata["x-checksum"] == "abc"


def test_only_so_many_late_streams_are_remembered() -> None:
    peer = Peer()
    for stream_id in range(1, 2_003, 2):
        peer.open(stream_id)
        peer.finish(stream_id)
    peer.events()
    peer.received()

    assert peer.say(*(data(stream_id, b"") for stream_id in range(1, 2_003, 2))) == []
    assert peer.received() == [sent_reset(1, Code.STREAM_CLOSED)]


@table("stream_id", [2, 4, 1, 3, 5])
def test_ids_are_odd_and_rise(stream_id: int) -> None:
    peer = Peer()
    peer.say(peer.request(5, END))
    peer.finish(5)
    peer.events()

    assert peer.say(peer.request(stream_id)) == [("failed", Code.PROTOCOL_ERROR)]


def test_ids_may_be_left_out_and_are_closed_then() -> None:
    peer = Peer()
    last_id = frames.MAX_WINDOW

    assert peer.say(peer.request(7), peer.request(last_id)) == [("opened", 7), ("opened", last_id)]
    assert (
        peer.say(data(3, b"x"), frames.rst_stream(3, Code.CANCEL), frames.window_update(3, 1)) == []
    )
    assert peer.received() == [sent_reset(3, Code.STREAM_CLOSED)]


IDLE: dict[str, Callable[[int], bytes]] = {
    "DATA": lambda stream_id: data(stream_id, b""),
    "RST_STREAM": lambda stream_id: frames.rst_stream(stream_id, Code.CANCEL),
    "WINDOW_UPDATE": lambda stream_id: frames.window_update(stream_id, 1),
}


@table("kind", IDLE)
@table("stream_id", [2, 7, frames.MAX_WINDOW])
def test_frames_on_idle_streams_are_a_connection_error(kind: str, stream_id: int) -> None:
    peer = Peer(calls=(5,))

    assert peer.say(IDLE[kind](stream_id)) == [("closed", 5), ("failed", Code.PROTOCOL_ERROR)]


def test_a_stream_too_many_is_refused_and_the_others_go_on() -> None:
    peer = Peer(WireLimits(streams=2), calls=(1, 3))

    assert peer.say(peer.request(5)) == []
    assert peer.received() == [sent_reset(5, Code.REFUSED_STREAM)]
    assert peer.say(data(5, framed(b"late"), END)) == []

    peer.finish(1)
    assert peer.say(peer.request(7, END)) == [("closed", 1), ("opened", 7), ("half-closed", 7)]


NO_LENGTHS = ["-1", "1,1", "0x1", "", "1" * 19]


@table("fields", [REQUEST[1:], *([*REQUEST, ("content-length", length)] for length in NO_LENGTHS)])
def test_a_malformed_request_is_a_stream_error(fields: Sequence[Field]) -> None:
    """Without a method, or with a length that is no number."""
    peer = Peer()

    assert peer.say(peer.request(1, fields=fields)) == []
    assert peer.received() == [sent_reset(1, Code.PROTOCOL_ERROR)]
    assert peer.say(data(1, framed(b"late"), END), peer.request(3)) == [("opened", 3)]


def test_a_refused_connection_ends_with_a_goaway_that_blames_nobody() -> None:
    """It names the last stream that was served, so that the peer tries later ones elsewhere; once."""
    peer = Peer()
    peer.say(peer.request(1), CANCEL)
    peer.connection.refuse("too many")
    peer.connection.refuse("too many")

    assert frames.goaway(1, Code.NO_ERROR, "too many") == b"".join(
        frame(*sent) for sent in peer.received()
    )
    assert peer.connection.is_over


# The length that a request announces (RFC 9113 §8.1.1): whether DATA may be so long.
LENGTHS: dict[str, tuple[str, list[bytes], bool]] = {
    "as announced": ("6", [data(1, framed(b"a"), END)], True),
    "in two parts": ("12", [data(1, framed(b"a")), data(1, framed(b"b"), END)], True),
    "before trailers": ("6", [data(1, framed(b"a")), TRAILERS], True),
    "more": ("5", [data(1, framed(b"a"))], False),
    "less": ("7", [data(1, framed(b"a"), END)], False),
    "less before trailers": ("7", [data(1, framed(b"a")), TRAILERS], False),
}


@table(("length", "frames_sent", "is_right"), LENGTHS.values(), ids=LENGTHS)
def test_data_of_another_length_than_announced_ends_its_stream_alone(
    length: str, frames_sent: list[bytes], is_right: bool
) -> None:
    peer = Peer()
    peer.say(peer.request(1, 0, [*REQUEST, ("content-length", length)]))

    events = [each[0] for each in peer.say(*frames_sent)]

    assert ("half-closed" in events) is is_right
    assert ("closed" in events) is not is_right
    assert peer.say(peer.request(3, END)) == [("opened", 3), ("half-closed", 3)]
    nothing = peer.say(peer.request(5, END, [*REQUEST, ("content-length", "8")]))
    assert [each[0] for each in nothing] == ["opened", "closed"]
