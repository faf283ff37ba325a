"""Connections take turns: what one peer sends, however much of it, lets the others in between."""

import asyncio
import socket
from collections.abc import Callable
from itertools import chain

import uvloop
from hpack import Encoder

from extproc.grpc_server import frames
from extproc.grpc_server.accepting import bind
from extproc.grpc_server.budget import Budget
from extproc.grpc_server.calls import Call
from extproc.grpc_server.frames import frame
from extproc.grpc_server.limits import WireLimits
from extproc.grpc_server.listener import Listener
from tests.grpc_server.peer import REQUEST, Event, Peer, framed
from tests.tables import table

GREETING = frames.PREFACE + frames.settings({})
PATH = dict(REQUEST)[":path"]
MESSAGE_BYTES = 8_000
READ_BYTES = 65_536
BLOCK_BYTES = 16_000
SMALL = 8_000


class MessageSizes:
    """A service that notes from whom a message came, by its size."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def __call__(self, call: Call) -> "MessageSizes":
        del call
        return self

    def on_message(self, message: bytes | bytearray) -> None:
        self.sizes.append(len(message))
        sum(range(2_000))  # what the smallest message costs a service: some 20 µs

    def on_skipped(self, size: int) -> None: ...

    def on_half_close(self) -> None: ...

    def on_close(self) -> None: ...


def headers_frame(stream_id: int, block: bytes) -> bytes:
    return frame(frames.HEADERS, frames.END_HEADERS, stream_id, block)


def long_block(number: int) -> bytes:
    """A request of Huffman codes all through, and unlike any other: it has to be decoded."""
    fields = [*REQUEST, ("x-long", f"{number:04d}" + "a" * (BLOCK_BYTES * 8 // 5 // 2))]
    return Encoder().encode(
        [(name, value, True) for name, value in fields]
    )  # sensitive: never in a table


LONG_BLOCKS = b"".join(headers_frame(1 + 2 * number, long_block(number)) for number in range(6))


def flood(kind: str) -> bytes:
    begun = GREETING + headers_frame(1, Encoder().encode(REQUEST))
    if kind == "messages":
        return begun + frames.message_frame(1, bytes(MESSAGE_BYTES)) * 30
    if kind == "small messages":
        return begun + frame(frames.DATA, 0, 1, framed(b"ab") * (SMALL // 4)) * 4
    return GREETING + b"".join(
        headers_frame(1 + 2 * number, long_block(number)) for number in range(8)
    )


async def count_before(kind: str) -> tuple[int, int]:
    """How many messages, or blocks, of a flood are worked off before another peer's request; of how many."""
    received = MessageSizes()
    opened: list[int] = []

    def open_call(call: Call) -> MessageSizes:
        opened.append(len(call.metadata.get("x-long", "")))
        return received(call)

    listener = Listener({PATH: open_call}, limits=WireLimits(), budget=Budget(1 << 26))
    port = listener.listen(await bind("127.0.0.1:0"))
    await listener.start()
    with socket.socket() as flooder, socket.socket() as other:
        for each in (flooder, other):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            each.connect(("127.0.0.1", port))
        await until_in_turns(lambda: len(listener.links) == 2)
        # The loop sees both at once: nothing is awaited in between.
        flooder.setblocking(False)
        data = flood(kind)
        sent = flooder.send(data)
        assert sent == len(data)
        other.sendall(
            GREETING + headers_frame(1, Encoder().encode(REQUEST)) + frames.message_frame(1, b"x")
        )
        await until_in_turns(lambda: 1 in received.sizes)
        before = opened.index(0) if kind == "blocks" else received.sizes.index(1)
        await until_in_turns(lambda: len(received.sizes) in {31, SMALL + 1} or len(opened) == 9)
    await listener.stop()
    return before, len(opened if kind == "blocks" else received.sizes) - 1


async def until_in_turns(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_true():  # noqa: ASYNC110  # a claim over the loop's turns
            await asyncio.sleep(0)


@table(
    ("kind", "count", "most"),
    [
        ("messages", 30, 2 * READ_BYTES // MESSAGE_BYTES),
        # 8,000 of two bytes fit into one read; once the loop was theirs until the last was
        # answered.
        ("small messages", SMALL, SMALL // 4),
        ("blocks", 8, 4),
    ],
)
def test_who_sends_much_has_so_much_of_it_taken_a_turn(kind: str, count: int, most: int) -> None:
    # On the loop that serves: it reads on while there is more, where asyncio's own reads once.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        before, of_all = runner.run(count_before(kind))

    assert of_all == count
    assert before <= most


def turns_of(peer: Peer, data: bytes) -> list[list[Event]]:
    """The events, turn by turn."""
    turns = [peer.say(data)]
    while peer.connection.has_more:
        turns.append(peer.say(b""))
    return turns


def test_a_turn_ends_behind_256_frames_however_small() -> None:
    pieces = b"".join(
        frame(frames.DATA, 0, 1, bytes([byte])) for byte in b"\0\0\0\4\0" + bytes(1_024)
    )
    turns = turns_of(Peer(calls=(1,)), pieces)

    assert len(turns) == 5
    assert [event[0] for event in chain(*turns)] == ["message"]


def test_a_turn_ends_behind_128_events_however_small() -> None:
    """Once 64 KiB of empty messages were read in one turn: 11 ms."""
    empty = frame(frames.DATA, 0, 1, framed(b"") * 200) * 4
    opened = b"".join(
        headers_frame(1 + 2 * number, Encoder().encode(REQUEST)) for number in range(200)
    )

    assert [len(events) for events in turns_of(Peer(calls=(1,)), empty)] == [200] * 4
    assert [len(events) for events in turns_of(Peer(), opened)] == [128, 72]


def test_a_turn_ends_behind_8_kb_of_header_blocks_and_the_next_one_goes_on() -> None:
    turns = turns_of(Peer(), LONG_BLOCKS)

    assert [("opened", 1 + 2 * number) for number in range(6)] == [*chain(*turns)]
    assert {len(events) for events in turns} == {len(turns[0])}
    assert len(turns) == 3


def test_what_waited_for_its_turn_is_gone_with_the_connection() -> None:
    peer = Peer()
    turns = turns_of(peer, LONG_BLOCKS + frame(frames.PING, 0, 0, b"short"))

    assert turns[-1][-1][0] == "failed"
    assert peer.connection.is_over
    assert not peer.connection.has_more
