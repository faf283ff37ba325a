"""gRPC's messages out of a stream's bytes, however they were cut, and the budget that they count against."""

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.grpc_server import frames
from extproc.grpc_server.budget import Budget
from extproc.grpc_server.messages import MessageReader, Refused
from extproc.grpc_server.streams import Stream
from tests.grpc_server.peer import END, Peer, data, framed
from tests.reach import reach

MESSAGES = st.lists(st.binary(max_size=40), max_size=8)
PLACES = st.lists(st.integers(0, 300), max_size=20)


def split_at(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({0, len(data), *(place for place in places if place < len(data))})
    return [data[start:end] for start, end in pairwise(ends)]


def feed_all(reader: MessageReader, pieces: list[bytes]) -> list[bytes | bytearray | int]:
    return [found for piece in pieces for found in reader.feed(piece)]


@given(MESSAGES, st.binary(min_size=1, max_size=40), PLACES, st.integers(0, 60))
def test_messages_cut_anywhere_come_out_whole_and_the_budget_holds_what_came_of_an_unfinished_one(
    messages: list[bytes], last: bytes, places: list[int], missing: int
) -> None:
    budget = Budget(10_000)
    reader = MessageReader(budget, 40)
    begun = framed(last)[: max(0, len(last) + 5 - max(1, missing))]
    whole = b"".join(map(framed, messages)) + begun

    assert messages == feed_all(reader, split_at(whole, places))
    assert budget.used == max(0, len(begun) - 5)
    assert reader.is_between is (not begun)

    reader.close()
    reader.close()
    assert budget.used == 0


@given(st.lists(st.binary(min_size=10, max_size=40), max_size=8), PLACES, st.integers(0, 30))
def test_a_message_without_room_is_skipped_and_the_next_one_read(
    messages: list[bytes], places: list[int], room: int
) -> None:
    budget = Budget(room)
    reader = MessageReader(budget, 40)

    received = feed_all(reader, split_at(b"".join(map(framed, messages)), places))
    # Small messages find half as much room again.
    most = room + room // 2

    assert received == [message if len(message) <= most else len(message) for message in messages]
    assert budget.used == 0


def test_a_large_message_finds_no_more_room_than_there_is() -> None:
    large = bytes(131_073)

    assert feed_all(MessageReader(Budget(131_072), 200_000), [framed(large)]) == [131_073]
    assert feed_all(MessageReader(Budget(131_071), 200_000), [framed(large[1:])]) == [large[1:]]


def test_a_skipped_message_holds_nothing_while_it_comes_and_room_that_comes_back_does_not_mend_it() -> (
    None
):
    budget = Budget(10)
    budget.hold(13)
    reader = MessageReader(budget, 1_000)
    message = framed(b"abcdef")

    assert feed_all(reader, [message[:8]]) == []
    budget.give(13)
    assert feed_all(reader, [message[8:], framed(b"next")]) == [6, b"next"]

    message = framed(bytes(500))

    assert feed_all(reader, [message[:13]]) == []
    assert budget.used == 8
    assert feed_all(reader, [message[13:100]]) == []
    assert budget.used == 0
    assert feed_all(reader, [message[100:]]) == [500]
    assert budget.used == 0


def test_the_word_for_a_length_reserves_nothing() -> None:
    budget = Budget(1_000)
    reader = MessageReader(budget, 2**32)

    assert feed_all(reader, [b"\x00\xff\xff\xff\xff", b"abc"]) == []
    assert budget.used == 3


@given(MESSAGES, PLACES, st.booleans(), st.binary(max_size=10))
def test_a_message_is_refused_by_its_prefix(
    messages: list[bytes], places: list[int], is_compressed: bool, rest: bytes
) -> None:
    budget = Budget(10_000)
    reader = MessageReader(budget, 40)
    prefix = b"\x01\x00\x00\x00\x01" if is_compressed else b"\x00\x00\x00\x00\x29"
    received: list[bytes | bytearray | int] = []

    def read_all() -> None:
        for piece in split_at(b"".join(map(framed, messages)) + prefix + rest, places):
            received.extend(reader.feed(piece))

    with pytest.raises(Refused) as refused:
        read_all()

    assert refused.value.is_compressed is is_compressed
    assert messages == received
    assert budget.used == 0
    with pytest.raises(Refused):
        list(reader.feed(b"more"))


@given(MESSAGES, PLACES, st.lists(st.integers(0, 20), max_size=20), st.booleans())
def test_a_connection_has_the_same_events_whatever_the_frames_and_their_padding(
    messages: list[bytes], places: list[int], paddings: list[int], is_ended: bool
) -> None:
    peer = Peer(calls=(1,))
    pieces = split_at(b"".join(map(framed, messages)), places)
    if is_ended:
        pieces = pieces or [b""]
    sent = []
    for place, piece in enumerate(pieces):
        padding = paddings[place] if place < len(paddings) else 0
        flags = END if is_ended and place == len(pieces) - 1 else 0
        if padding:
            sent.append(data(1, bytes((padding,)) + piece + bytes(padding), flags | frames.PADDED))
        else:
            sent.append(data(1, piece, flags))

    expected = [("message", 1, message) for message in messages]
    assert peer.say(*sent) == expected + ([("half-closed", 1)] if is_ended else [])
    assert peer.budget.used == 0


STREAMS = (1, 3, 5)
# What may happen to three calls: bytes come, answers wait for a window, an end of any kind.
HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(["data", "send", "finish", "reset", "cancel", "half-close", "window"]),
        st.sampled_from(STREAMS),
        st.integers(0, 50),
    ),
    max_size=40,
)


def held_by(stream: Stream, came: bytes) -> int:
    """What waits to be sent, and what it keeps of the message begun in what `came`, but not its prefix."""
    while len(came) >= 5 and not came[0] and len(came) >= (end := 5 + int.from_bytes(came[:5])):
        came = came[end:]
    is_begun = len(came) >= 5 and not came[0]
    kept = sum(len(found) for found in reach(stream.reader) if isinstance(found, bytearray))
    return sum(map(len, stream.queue or ())) + is_begun * kept


def happen(peer: Peer, verb: str, stream_id: int, size: int) -> bytes:
    """Returns what DATA came of it; leaves the events to the test."""
    piece = framed(bytes(size))[: size // 2] if verb == "data" else b""
    match verb:
        case "send":
            peer.send(stream_id, bytes(size))
        case "finish":
            peer.finish(stream_id)
        case "reset":
            peer.reset(stream_id)
    sent = {
        "data": data(stream_id, piece),
        "cancel": frames.rst_stream(stream_id, frames.Code.CANCEL),
        "half-close": data(stream_id, b"", END),
        "window": frames.window_update(stream_id, size + 1),
    }
    peer.connection.receive(sent.get(verb, b""), 0.0)
    return piece


@given(HAPPENINGS, st.integers(0, 200), st.sampled_from(["abort", "fault", "silence"]))
def test_the_budget_is_given_back_however_it_ends(
    happenings: list[tuple[str, int, int]], budget_bytes: int, end: str
) -> None:
    peer = Peer(budget_bytes=budget_bytes)
    peer.say(frames.settings({frames.INITIAL_WINDOW_SIZE: 10}))
    peer.open(*STREAMS)
    events, came = [], defaultdict[int, bytes](bytes)
    for verb, stream_id, size in happenings:
        came[stream_id] += happen(peer, verb, stream_id, size)
        events += peer.events()
        open_ = peer.connection.streams.values()
        assert peer.budget.used == sum(held_by(stream, came[stream.id]) for stream in open_)
    match end:
        case "abort":
            peer.connection.abort()
        case "fault":
            events += peer.say(frames.rst_stream(99, frames.Code.CANCEL))
        case "silence":
            events += peer.wait(25) + peer.wait(25)
    events += peer.events()

    assert peer.budget.used == 0
    assert sorted(event[1] for event in events if event[0] == "closed") == list(STREAMS)


def test_bytes_that_wait_to_be_sent_leave_less_room_for_messages() -> None:
    peer = Peer(budget_bytes=40)
    peer.say(frames.settings({frames.INITIAL_WINDOW_SIZE: 0}))
    peer.open(1)
    peer.send(1, bytes(45))
    message = framed(bytes(20))

    assert peer.say(data(1, message[:10]), data(1, message[10:])) == [("skipped", 1, 20)]

    # A whole one in one frame needs none.
    assert peer.say(data(1, message)) == [("message", 1, bytes(20))]
    peer.say(frames.window_update(1, 100))
    assert peer.say(data(1, message[:10]), data(1, message[10:])) == [("message", 1, bytes(20))]
