"""Flow control both ways (RFC 9113 §5.2, §6.9), and the settings that move it (§6.5)."""

from itertools import zip_longest

from hypothesis import given
from hypothesis import strategies as st

from extproc.grpc_server import frames
from extproc.grpc_server.calls import Status
from extproc.grpc_server.frames import Code
from extproc.grpc_server.limits import WireLimits
from tests.grpc_server.peer import END, Peer, cut_frames, data, framed, sent_reset
from tests.reach import size_of
from tests.tables import table

WINDOW = frames.INITIAL_WINDOW_SIZE


def calling(window: int = frames.DEFAULT_WINDOW, *stream_ids: int) -> Peer:
    """A peer that grants a window, with calls open whose headers are answered."""
    peer = Peer()
    peer.say(frames.settings({WINDOW: window}))
    peer.open(*(stream_ids or (1,)))
    return peer


def sent_data(peer: Peer) -> list[tuple[int, bytes]]:
    return [
        (stream_id, payload)
        for kind, _, stream_id, payload in peer.received()
        if kind == frames.DATA
    ]


def test_without_a_window_headers_go_and_data_waits() -> None:
    peer = calling(0)
    peer.send(1, b"abc")

    assert [frame[0] for frame in peer.received() if frame[2] == 1] == [frames.HEADERS]
    assert peer.budget.used == len(framed(b"abc"))

    assert peer.say(frames.rst_stream(1, Code.CANCEL)) == [("closed", 1)]
    assert peer.budget.used == 0

    peer.open(3)
    peer.finish(3, Status.OK)
    assert peer.events() == [("closed", 3)], "trailers need no window"


def test_long_messages_go_in_frames_that_every_peer_accepts() -> None:
    peer = calling(100_000)
    peer.say(frames.settings({frames.MAX_FRAME_SIZE: 100_000}), frames.window_update(0, 100_000))
    peer.send(1, bytes(40_000))

    assert [len(part) for _, part in sent_data(peer)] == [16_384, 16_384, 7_237]


def test_a_setting_opens_the_windows_of_all_calls() -> None:
    peer = calling(0, 1, 3, 5)
    for stream_id in (1, 3, 5):
        peer.send(stream_id, b"x")
        peer.finish(stream_id)
    peer.received()

    events = peer.say(frames.settings({WINDOW: 100}))
    sent = peer.received()

    assert events == [("closed", 1), ("closed", 3), ("closed", 5)]
    # The acknowledgement comes first: the peer counts by the new windows only from there on
    # (§6.5.3).
    assert sent[:1] == cut_frames(frames.SETTINGS_ACK)
    assert [(frame[2], frame[3]) for frame in sent if frame[0] == frames.DATA] == [
        (stream_id, framed(b"x")) for stream_id in (1, 3, 5)
    ]


def test_calls_that_wait_for_the_connection_go_on_in_turn() -> None:
    peer = calling(frames.MAX_WINDOW, 1, 3)
    peer.send(1, bytes(frames.DEFAULT_WINDOW - 5))
    for stream_id in (3, 1):
        peer.send(stream_id, b"abc")
    peer.received()

    peer.say(frames.window_update(0, 10))
    assert sent_data(peer) == [(3, framed(b"abc")), (1, framed(b"abc")[:2])]
    peer.say(frames.window_update(0, 100))
    assert sent_data(peer) == [(1, framed(b"abc")[2:])]
    peer.say(frames.window_update(0, 100))
    assert (sent_data(peer), peer.budget.used) == ([], 0)


def test_a_call_that_waits_for_both_windows_needs_both() -> None:
    peer = calling(frames.DEFAULT_WINDOW, 1, 3)
    peer.send(1, bytes(frames.DEFAULT_WINDOW))
    peer.send(3, b"abc")
    peer.say(frames.settings({WINDOW: 0}))
    peer.received()

    peer.say(frames.window_update(0, 100))
    assert sent_data(peer) == []
    peer.say(frames.window_update(3, 4))
    assert sent_data(peer) == [(3, framed(b"abc")[:4])]


@table("own", [1, 4])
def test_a_call_with_a_little_window_of_its_own_waits_for_the_connections(own: int) -> None:
    peer = calling(frames.DEFAULT_WINDOW, 1, 3)
    peer.send(1, bytes(frames.DEFAULT_WINDOW))
    peer.say(frames.settings({WINDOW: own}))
    peer.send(3, b"abc")
    peer.received()

    peer.say(frames.window_update(0, 100))
    assert sent_data(peer) == [(3, framed(b"abc")[:own])]


def test_a_closed_call_waits_for_nothing() -> None:
    peer = calling(frames.MAX_WINDOW, 1, 3)
    before = size_of(peer.connection)
    peer.send(1, bytes(frames.DEFAULT_WINDOW))
    peer.send(3, b"x")
    assert peer.budget.used == 5 + len(framed(b"x"))

    peer.say(frames.rst_stream(1, Code.CANCEL), frames.rst_stream(3, Code.CANCEL))

    assert peer.budget.used == 0
    peer.received()
    assert size_of(peer.connection) < before
    assert peer.say(frames.window_update(0, 100)) == peer.received() == []


@given(
    messages=st.lists(st.binary(max_size=60), max_size=6),
    initial=st.integers(0, 40),
    updates=st.lists(
        st.one_of(
            st.tuples(st.sampled_from([0, 1]), st.integers(1, 50)),
            st.tuples(st.just(-1), st.integers(0, 60)),
        ),
        max_size=30,
    ),
)
def test_whatever_the_windows_do_the_bytes_are_the_same_and_within_them(
    messages: list[bytes], initial: int, updates: list[tuple[int, int]]
) -> None:
    peer = calling(initial)
    windows = {1: initial, 0: frames.DEFAULT_WINDOW}
    got = b""

    def account() -> None:
        nonlocal got
        new = b"".join(part for _, part in sent_data(peer))
        got += new
        for where in windows:
            windows[where] -= len(new)
        assert not new or min(windows.values()) >= 0

    for message, update in zip_longest(messages, updates):
        if message is not None:
            peer.send(1, message)
            account()
        if update is not None:
            where, size = update
            if where < 0:
                peer.say(frames.settings({WINDOW: size}))
                windows[1] += size - initial
                initial = size
            else:
                peer.say(frames.window_update(where, size))
                windows[where] += size
            account()
    expected = b"".join(map(framed, messages))

    assert expected.startswith(got)
    assert peer.budget.used == len(expected) - len(got)
    assert windows[1] <= 0 or got == expected

    peer.finish(1)
    peer.say(frames.window_update(1, 10_000))
    assert got + b"".join(part for _, part in sent_data(peer)) == expected
    assert peer.budget.used == 0


TO_THE_BRIM = frames.MAX_WINDOW - frames.DEFAULT_WINDOW


INCREMENTS = [
    (0, Code.PROTOCOL_ERROR),
    (TO_THE_BRIM + 1, Code.FLOW_CONTROL_ERROR),
    (TO_THE_BRIM, None),
]


@table(("increment", "code"), INCREMENTS)
def test_a_window_is_opened_by_something_and_not_too_far(increment: int, code: Code | None) -> None:
    """Else a stream ends alone, the connection with all of them."""
    peer = calling()
    peer.received()

    assert peer.say(frames.window_update(1, increment)) == ([("closed", 1)] if code else [])
    assert peer.received() == ([sent_reset(1, code)] if code else [])
    assert not peer.connection.is_over
    assert Peer().say(frames.window_update(0, increment)) == ([("failed", code)] if code else [])


def test_the_reserved_bit_of_an_increment_is_ignored() -> None:
    peer = calling(0)
    peer.send(1, b"x")
    peer.received()

    peer.say(frames.window_update(1, 0x8000_0001))

    assert sent_data(peer) == [(1, framed(b"x")[:1])]


# Settings (§6.5.2).


# A setting, values that it may have, and those that it may not, with the code.
RANGES: list[tuple[int, list[int], list[int], Code | None]] = [
    (frames.ENABLE_PUSH, [0, 1], [2], Code.PROTOCOL_ERROR),
    (WINDOW, [frames.MAX_WINDOW], [frames.MAX_WINDOW + 1], Code.FLOW_CONTROL_ERROR),
    (frames.MAX_FRAME_SIZE, [16_384, 2**24 - 1], [16_383, 2**24], Code.PROTOCOL_ERROR),
    *((name, [0, 2**32 - 1], [], None) for name in (frames.MAX_CONCURRENT_STREAMS, 8, 0xFFFF)),
    *(
        (name, [0, 2**32 - 1], [], None)
        for name in (frames.MAX_HEADER_LIST_SIZE, frames.HEADER_TABLE_SIZE)
    ),
]


@table(
    ("name", "value", "code"),
    [
        (name, value, code if value in bad else None)
        for name, good, bad, code in RANGES
        for value in (*good, *bad)
    ],
)
def test_settings_have_their_ranges(name: int, value: int, code: Code | None) -> None:
    peer = Peer()

    assert peer.say(frames.settings({name: value})) == ([("failed", code)] if code else [])
    assert (peer.received() == cut_frames(frames.SETTINGS_ACK)) is (code is None)


def test_a_setting_must_not_open_a_streams_window_too_far() -> None:
    peer = calling(10)
    peer.say(frames.window_update(1, frames.MAX_WINDOW - 20))

    assert peer.say(frames.settings({WINDOW: 20})) == []
    assert peer.say(frames.settings({WINDOW: 21})) == [
        ("closed", 1),
        ("failed", Code.FLOW_CONTROL_ERROR),
    ]


@table("way", ["trailers alone", "refused"])
def test_whatever_block_comes_first_says_it(way: str) -> None:
    peer = Peer()
    peer.say(frames.settings({frames.HEADER_TABLE_SIZE: 0}))
    peer.received()
    if way == "refused":
        peer.say(peer.request(1, fields=[(":method", "GET"), (":scheme", "http"), (":path", "/")]))
    else:
        peer.open(1)
        peer.finish(1)

    assert peer.received()[0][3].startswith(b"\x20")


@table("window", [1, 2, 3, 10, 100])
def test_a_stream_of_ours_opens_its_window_before_it_is_used_up(window: int) -> None:
    peer = Peer(WireLimits(stream_window_bytes=window), calls=(1,))
    granted, message = window, framed(bytes(300))
    events = []
    while message:
        part, message = message[:granted], message[granted:]
        granted -= len(part)
        events += peer.say(data(1, part))
        for kind, _, stream_id, payload in peer.received():
            assert (kind, stream_id) == (frames.WINDOW_UPDATE, 1)
            granted += int.from_bytes(payload, "big")
        assert 0 < granted <= window

    assert events == [("message", 1, bytes(300))]


@table(
    "beyond", [data(1, bytes(101)), data(1, bytes((95,)) + framed(b"") + bytes(95), frames.PADDED)]
)
def test_data_beyond_a_streams_window_is_a_stream_error_and_padding_counts(beyond: bytes) -> None:
    peer = Peer(WireLimits(stream_window_bytes=100), calls=(1,))

    assert peer.say(beyond) == [("closed", 1)]
    assert peer.received() == [sent_reset(1, Code.FLOW_CONTROL_ERROR)]


def test_a_stream_whose_answers_wait_is_granted_no_more() -> None:
    """What a peer sends and does not take back in is bounded by one window."""
    peer = Peer(WireLimits(stream_window_bytes=100))
    peer.say(frames.settings({WINDOW: 5}))
    peer.open(1)
    peer.send(1, b"waits")
    peer.received()

    peer.say(data(1, framed(bytes(90))))
    assert peer.received() == []

    peer.say(frames.window_update(1, 100))
    assert cut_frames(frames.window_update(1, 95))[0] in peer.received()

    peer.say(data(1, framed(bytes(90)), END))
    assert peer.received() == [], "nor one that has ended its side"


def test_the_connections_window_is_opened_for_all_data_even_of_closed_streams() -> None:
    limits = WireLimits(connection_window_bytes=frames.DEFAULT_WINDOW + 1)
    peer = Peer(limits, calls=(1,))
    peer.reset(1)
    peer.received()

    peer.say(*[data(1, bytes(16_384))] * 2)
    assert peer.received() == []
    peer.say(data(1, b"x"))

    assert peer.received() == cut_frames(frames.window_update(0, 32_769))
