"""ZMTP from the bytes alone: a handshake, messages, and publishers that mean harm."""

from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import ProtocolError
from extproc.router.events.zmtp import Sign, ZmtpConnection
from tests.router.events.zmtp_frames import GREETING, READY, frame, frames
from tests.tables import table

MOST = 1_000


def drain(connection: ZmtpConnection) -> list[object]:
    """All that comes until it needs bytes; `ProtocolError` ends it."""
    events: list[object] = []
    try:
        while (event := connection.next_event()) is not Sign.NEEDS_BYTES:
            events.append(event)
    except ProtocolError:
        events.append(ProtocolError)
    return events


def opened(kind: str = "SUB") -> ZmtpConnection:
    connection = ZmtpConnection(kind, MOST)
    connection.feed(GREETING + READY)
    assert drain(connection) == [Sign.COMMAND]
    assert connection.is_open
    return connection


def test_a_subscriber_greets_says_what_it_is_and_subscribes_to_all() -> None:
    connection = ZmtpConnection("SUB", MOST)
    assert (len(connection.to_send), bytes(connection.to_send[10:16])) == (64, b"\x03\x00NULL")
    connection.to_send.clear()
    connection.feed(GREETING)
    assert drain(connection) == []
    assert connection.to_send == b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB"
    connection.to_send.clear()
    connection.feed(READY)
    assert drain(connection) == [Sign.COMMAND]
    assert connection.to_send == b"\x00\x01\x01"


def test_a_ping_between_the_parts_of_a_message_is_answered_with_its_context() -> None:
    connection = opened()
    connection.to_send.clear()
    connection.feed(frame(b"kv", 1) + frame(b"\x04PING\0\x0acontext", 4) + frame(b"x" * 300))

    assert drain(connection) == [Sign.COMMAND, [b"kv", b"x" * 300]]
    assert connection.to_send == b"\x04\x0c\x04PONGcontext"


def test_a_question_is_a_message_of_short_parts() -> None:
    connection = opened("DEALER")
    connection.to_send.clear()
    connection.ask(b"", bytes(8))

    assert connection.to_send == b"\x01\x00\x00\x08" + bytes(8)


@table(
    "parts",
    [
        (b"x" * 1_001,),
        (b"x" * 600, b"", b"x" * 600),
        (b"x" * 1_001, b"", b"y", b""),
        (b"x", b"y" * 70_000),
    ],
)
def test_a_long_message_is_skipped_as_it_comes_and_the_next_one_counts(
    parts: tuple[bytes, ...],
) -> None:
    connection, most = opened(), 0
    for byte in frames(*parts):
        connection.feed(bytes((byte,)))
        assert connection.next_event() in {Sign.NEEDS_BYTES, Sign.TOO_LONG}
        most = max(most, connection.kept_bytes)
    connection.feed(frames(b"kv", b"1"))

    assert drain(connection)[-1] == [b"kv", b"1"]
    assert most < 2 * MOST


ENDED = {
    "another protocol": b"HTTP/1.1 200 OK\r\n" * 4,
    "ZMTP 2": GREETING[:10] + b"\x01" + GREETING[11:],
    "credentials": GREETING.replace(b"NULL", b"CURV"),
    "a message before READY": GREETING + frames(b"kv"),
    "a command before READY": GREETING + frame(b"\x04PING\0\0", 4),
    "an error": GREETING + READY + frame(b"\x05ERROR\x02no", 4),
    "a message without end": GREETING + READY + frame(b"", 1) * 5,
    "a part of an exabyte": GREETING + READY + b"\x02" + b"\x0f" * 8,
    "a long command": GREETING + READY + b"\x06" + (2_000).to_bytes(8),
    "unknown flags": GREETING + READY + b"\x08\x00",
    "a command that goes on": GREETING + READY + b"\x05\x00",
}


@table("said", ENDED.values(), ids=ENDED)
def test_what_no_publisher_sends_ends_the_connection(said: bytes) -> None:
    connection = ZmtpConnection("SUB", MOST)
    connection.feed(said)

    assert drain(connection)[-1] is ProtocolError


HOSTILE_FRAMES = st.builds(
    frame, st.binary(max_size=40) | st.just(b"x" * 600), st.sampled_from([0, 1, 4, 2, 5, 8])
)
SAID = st.binary(max_size=80) | st.builds(
    lambda sent, end: GREETING + READY + b"".join(sent) + end,
    st.lists(HOSTILE_FRAMES, max_size=8),
    st.binary(max_size=20),
)


@given(SAID)
def test_any_bytes_parse_or_raise_one_error_whole_and_byte_by_byte(said: bytes) -> None:
    whole, slow = ZmtpConnection("SUB", MOST), ZmtpConnection("SUB", MOST)
    whole.feed(said)
    expected, found = drain(whole), list[object]()
    for byte in said:
        slow.feed(bytes((byte,)))
        found += drain(slow)
        assert slow.kept_bytes < 2 * MOST
        if found[-1:] == [ProtocolError]:
            break

    assert found == expected
    assert slow.to_send == whole.to_send
