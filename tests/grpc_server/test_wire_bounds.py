"""What a peer may cost us: floods, and what time alone brings, which is passed in; and leaving (§6.8)."""

from collections.abc import Callable

from extproc.grpc_server import frames
from extproc.grpc_server.budget import StreamPlaces
from extproc.grpc_server.frames import Code, frame
from extproc.grpc_server.limits import WireLimits
from tests.grpc_server.peer import (
    END,
    Event,
    Frame,
    Peer,
    code_of,
    cut_frames,
    data,
    framed,
    ping,
    sent_reset,
)
from tests.reach import size_of
from tests.tables import table

# Frames that cost us and not the peer (CVE-2019-9512 to 9518).
NOTHING = {
    "PING": ping(),
    "an answer to no PING": ping(flags=frames.ACK),
    "PRIORITY": frame(frames.PRIORITY, 0, 1, bytes(5)),
    "SETTINGS": frames.settings({}),
    "acknowledgements": frames.SETTINGS_ACK,
    "WINDOW_UPDATE of the connection": frames.window_update(0, 1),
    "WINDOW_UPDATE of a stream": frames.window_update(1, 1),
    "RST_STREAM of a stream that is gone": frames.rst_stream(3, Code.CANCEL),
    "unknown frames": frame(0x20, 0, 0, b"x" * 100),
    "GOAWAY": frames.goaway(0, Code.NO_ERROR),
    "DATA without bytes": data(1, b""),
    "DATA of padding": data(1, b"\x02\x00\x00", frames.PADDED),
    "late DATA": data(3, b"x"),
    "late HEADERS": frame(frames.HEADERS, frames.END_HEADERS, 3, b""),
    "DATA on a closed stream": data(5, b"x"),
}


@table("flood", NOTHING.values(), ids=NOTHING)
def test_frames_that_carry_nothing_are_bounded_per_second(flood: bytes) -> None:
    peer = Peer(WireLimits(control_frames_per_s=50), calls=(1, 3))
    peer.reset(3)
    peer.say(peer.request(5, END))
    peer.finish(5)
    peer.events()
    peer.now_s += 1

    assert peer.say(*[flood] * 50) == []
    peer.now_s += 1
    assert peer.say(*[flood] * 50) == []
    assert peer.say(flood) == [("closed", 1), ("failed", Code.ENHANCE_YOUR_CALM)]


def test_settings_weigh_more_with_many_streams() -> None:
    peer = Peer(WireLimits(control_frames_per_s=50))
    peer.open(*range(1, 321, 2))
    peer.now_s += 1

    # 160 streams: ten more for each.
    assert peer.say(*[frames.settings({})] * 4) == []
    assert ("failed", Code.ENHANCE_YOUR_CALM) in peer.say(frames.settings({}))


def test_messages_and_their_answers_are_no_flood() -> None:
    peer = Peer(WireLimits(control_frames_per_s=5, early_resets_per_s=5))
    for stream_id in range(1, 101, 2):
        events = peer.say(peer.request(stream_id), data(stream_id, framed(b"x"), END))
        peer.send(stream_id, b"y")
        peer.finish(stream_id)
        assert events == [
            ("opened", stream_id),
            ("message", stream_id, b"x"),
            ("half-closed", stream_id),
        ]
        assert peer.events() == [("closed", stream_id)]


# Streams that end before their answer, each way that a peer can make them.
EARLY: dict[str, Callable[[int], bytes]] = {
    "reset": lambda stream_id: frames.rst_stream(stream_id, Code.CANCEL),
    # CVE-2025-8671: it makes us reset them.
    "a window of nothing": lambda stream_id: frames.window_update(stream_id, 0),
    "a window too far": lambda stream_id: frames.window_update(stream_id, frames.MAX_WINDOW),
    "trailers without an end": lambda stream_id: frame(
        frames.HEADERS, frames.END_HEADERS, stream_id, b""
    ),
    "DATA beyond its window": lambda stream_id: data(stream_id, bytes(101)),
    "DATA after its end": lambda stream_id: data(stream_id, b"", END) + data(stream_id, b""),
    "HEADERS after its end": lambda stream_id: (
        data(stream_id, b"", END) + frame(frames.HEADERS, frames.END_HEADERS, stream_id, b"")
    ),
}


@table("end", EARLY.values(), ids=EARLY)
def test_streams_reset_before_their_answer_are_bounded_per_second(
    end: Callable[[int], bytes],
) -> None:
    peer = Peer(WireLimits(early_resets_per_s=10, stream_window_bytes=100))
    ids = iter(range(1, 1_000, 2))

    def churn(count: int) -> list[Event]:
        events: list[Event] = []
        for stream_id in [next(ids) for _ in range(count)]:
            events += peer.say(peer.request(stream_id), end(stream_id))
        return [event for event in events if event[0] == "failed"]

    assert churn(10) == []
    peer.now_s += 1
    assert churn(10) == []
    assert churn(1) == [("failed", Code.ENHANCE_YOUR_CALM)]


def test_malformed_requests_count_likewise() -> None:
    peer = Peer(WireLimits(early_resets_per_s=2))
    bad = [("a", "b")]

    assert peer.say(peer.request(1, fields=bad), peer.request(3, fields=bad)) == []
    assert peer.say(peer.request(5, fields=bad)) == [("failed", Code.ENHANCE_YOUR_CALM)]


@table("way", ["reset", "a window of nothing"])
def test_streams_reset_after_their_answer_began_are_no_flood(way: str) -> None:
    peer = Peer(WireLimits(early_resets_per_s=1))
    for stream_id in (1, 3, 5):
        peer.open(stream_id)
        peer.send(stream_id, b"x")
        assert peer.say(EARLY[way](stream_id)) == [("closed", stream_id)]


def test_rapid_resets_leave_nothing_behind() -> None:
    peer = Peer(WireLimits(early_resets_per_s=30_000, control_frames_per_s=30_000))
    events, sizes = [], []
    for stream_id in range(1, 4_003, 2):
        events += peer.say(peer.request(stream_id), frames.rst_stream(stream_id, Code.CANCEL))
        sizes.append(size_of(peer.connection))

    assert len(events) == 4_002
    assert peer.connection.streams == {}
    assert sizes[2:] == [sizes[2]] * 1_999, "after the proxy's kinds of header blocks are known"
    assert peer.received() == []


@table("data", [b"", frames.PREFACE[:10], frames.PREFACE])
def test_a_preface_must_come_in_time(data: bytes) -> None:
    peer = Peer(greets=False)
    peer.say(data)

    assert peer.wait(10) == []
    assert peer.wait(0.1) == [("failed", Code.SETTINGS_TIMEOUT)]
    assert peer.wait(100) == []
    # A GOAWAY only to one that speaks HTTP/2.
    sent = peer.received()
    assert [code_of(sent[-1])] == [Code.SETTINGS_TIMEOUT] if data == frames.PREFACE else sent == []


@table("is_answered", [True, False])
def test_silence_is_asked_and_any_frame_is_a_sign_of_life(is_answered: bool) -> None:
    peer = Peer()
    assert peer.wait(20) == peer.received() == []

    peer.wait(0.1)
    (asked,) = peer.received()
    assert asked[:3] == (frames.PING, 0, 0)
    peer.wait(9)
    assert peer.received() == []

    assert peer.say(ping(asked[3], frames.ACK) if is_answered else frames.window_update(0, 1)) == []
    assert peer.wait(20) == peer.received() == []
    peer.wait(0.1)
    assert peer.received() == [asked]


def test_a_peer_that_is_gone_releases_its_calls() -> None:
    peer = Peer(calls=(1, 3))
    peer.say(data(1, framed(b"x")), data(3, framed(b"x")))
    peer.wait(20.1)
    peer.received()

    assert peer.wait(10) == []
    assert peer.wait(0.1) == [("closed", 1), ("closed", 3), ("failed", Code.NO_ERROR)]
    assert code_of(peer.received()[-1]) is Code.NO_ERROR


# What a call may owe: what came, and whether it is cancelled for going on so.
OWING = {
    "no first message": (b"", True),
    "half a message": (data(1, framed(b"abc")[:6]), True),
    "half a prefix": (data(1, b"\x00"), True),
    "half a second message": (data(1, framed(b"a") + framed(b"abc")[:6]), True),
    "nothing more": (data(1, framed(b"abc")), False),
    "an answer": (data(1, b"", END), False),
}


@table(("data", "is_cancelled"), OWING.values(), ids=OWING)
def test_a_call_that_owes_a_message_for_too_long_is_cancelled(
    data: bytes, is_cancelled: bool
) -> None:
    peer = Peer(calls=(1,))
    peer.say(data)
    peer.events()
    for _ in range(3):
        assert peer.wait(10) == []
        peer.say(ping())
    peer.received()

    assert peer.wait(10) == ([("closed", 1)] if is_cancelled else [])
    assert peer.received() == ([sent_reset(1, Code.CANCEL)] if is_cancelled else [])


def test_a_call_that_goes_on_owes_nothing() -> None:
    peer = Peer(calls=(1,))
    for byte in framed(bytes(20)):
        assert not any(event[0] == "closed" for event in peer.say(data(1, bytes((byte,)))))
        assert peer.wait(15) == []


def test_a_call_that_is_given_no_window_for_too_long_is_cancelled() -> None:
    """Or whoever never opens a window keeps our memory and its request in flight (CVE-2019-9517)."""
    peer = Peer()
    peer.say(frames.settings({frames.INITIAL_WINDOW_SIZE: 1}))
    peer.say(peer.request(1, END), peer.request(3, END))
    for stream_id in (1, 3):
        peer.send(stream_id, b"x")
        peer.finish(stream_id)
    for _ in range(3):
        assert peer.wait(10) == []
        peer.say(frames.window_update(3, 1))

    assert peer.wait(10) == [("closed", 1)]
    assert peer.budget.used == 2
    for _ in range(2):
        peer.wait(10)
        peer.say(ping())
    assert peer.wait(20) == [("closed", 3)]
    assert peer.budget.used == 0


def first_goaway(sent: list[Frame]) -> bytes:
    """Checks that it is one that still allows every stream, and a PING; returns that one's payload."""
    goaway, asked = sent
    assert goaway == cut_frames(frames.goaway(frames.MAX_WINDOW, Code.NO_ERROR))[0]
    assert asked[:3] == (frames.PING, 0, 0)
    return asked[3]


def draining(*calls: int) -> tuple[Peer, bytes]:
    """A peer that has our GOAWAY, and what its answer has to say."""
    peer = Peer(calls=calls)
    peer.connection.drain()
    return peer, first_goaway(peer.received())


def test_drain_serves_what_comes_until_the_peer_knows() -> None:
    peer, payload = draining(1)
    peer.connection.drain()
    assert peer.received() == []

    assert peer.say(peer.request(3)) == [("opened", 3)]
    peer.say(ping(payload, frames.ACK))
    assert peer.received() == cut_frames(frames.goaway(3, Code.NO_ERROR))
    assert peer.say(ping(payload, frames.ACK), peer.request(5)) == []
    assert peer.received() == [sent_reset(5, Code.REFUSED_STREAM)]

    peer.finish(1)
    assert not peer.connection.is_over
    peer.finish(3)
    assert peer.connection.is_over


def test_drain_without_calls_ends_with_the_answer_to_its_ping_alone() -> None:
    peer = Peer()
    peer.say(ping(b"extproc!", frames.ACK))
    peer.connection.drain()
    payload = first_goaway(peer.received())
    peer.say(ping(b"other...", frames.ACK), ping(payload))
    assert peer.received() == cut_frames(ping(payload, frames.ACK))
    was_over = peer.connection.is_over

    peer.say(ping(payload, frames.ACK))

    assert (was_over, peer.connection.is_over) == (False, True)
    assert peer.received() == cut_frames(frames.goaway(0, Code.NO_ERROR))


def test_drain_before_the_preface_waits_for_it() -> None:
    """SETTINGS come first, whatever else is to be said (§3.4)."""
    peer = Peer(greets=False)
    peer.connection.drain()
    assert peer.received() == []

    peer.say(frames.PREFACE + frames.settings({}))
    settings, update, *leaving, acknowledgement = peer.received()

    assert (settings[0], update[0]) == (frames.SETTINGS, frames.WINDOW_UPDATE)
    first_goaway(leaving)
    assert [acknowledgement] == cut_frames(frames.SETTINGS_ACK)


def test_a_peer_that_does_not_answer_the_drain_is_given_up() -> None:
    peer = Peer(calls=(1,))
    peer.say(data(1, framed(b"x")))
    peer.connection.drain()

    assert peer.wait(10) == []
    assert peer.wait(0.1) == [("closed", 1), ("failed", Code.NO_ERROR)]
    peer.received()
    peer.connection.drain()
    assert peer.received() == [], "it is over"


def test_a_later_goaway_never_allows_more_than_the_one_before() -> None:
    peer, payload = draining(1)
    peer.say(ping(payload, frames.ACK), peer.request(3))
    peer.received()

    peer.say(data(0, b""))
    (goaway,) = peer.received()

    assert int.from_bytes(goaway[3][:4], "big") == 1
    assert code_of(goaway) is Code.PROTOCOL_ERROR


@table("way", ["finish", "cancel", "reset"])
def test_the_last_calls_end_ends_the_connection_that_leaves(way: str) -> None:
    peer, payload = draining(1)
    peer.say(ping(payload, frames.ACK))
    assert not peer.connection.is_over

    if way == "finish":
        peer.finish(1)
    elif way == "reset":
        peer.reset(1)
    else:
        peer.say(frames.rst_stream(1, Code.CANCEL))

    assert peer.connection.is_over


def test_streams_of_all_connections_are_bounded_and_each_connection_has_its_share() -> None:
    """1. One connection fills the twelve places. 2. Another one opens three, its share of four; no more."""
    places = StreamPlaces(12)
    places.connections = 3
    flood, proxy = (Peer(places=places) for _ in range(2))
    for stream_id in range(1, 25, 2):
        flood.open(stream_id)
    flood.received()
    flood.say(flood.request(25))
    assert flood.received() == [sent_reset(25, Code.REFUSED_STREAM)]
    for stream_id in (1, 3, 5, 7):
        assert proxy.say(proxy.request(stream_id)) == [("opened", stream_id)]
    proxy.received()
    proxy.say(proxy.request(9))
    assert proxy.received() == [sent_reset(9, Code.REFUSED_STREAM)]

    flood.connection.abort()
    proxy.connection.abort()
    assert places.used == 0
