"""Both transports on the same bytes: whatever a client says, in whatever pieces, they answer alike."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest

from extproc.router.budget import Budget
from extproc.router.routing.picker import Picker
from extproc.router.service.transport import build_transport
from extproc.router.settings.server_settings import ServerSettings
from extproc.router.stream.events import (
    BodyMode,
    Continue,
    Phase,
    RequestBody,
    RequestTrailers,
    ResponseHeaders,
    ResponseTrailers,
)
from extproc.router.stream.names import CHECK, PROCESS
from extproc.router.stream.server import ExternalProcessor
from extproc.router.telemetry import Metrics
from tests.router.stream.conversations import BODY, MAX_BODY_BYTES, Went, headers, one_pool
from tests.router.stream.wire import read, write

CALLS = 12
SEEDS = range(40)
DUPLEX = BodyMode.FULL_DUPLEX_STREAMED

# What a call may say, one message after the other; the last ones are no messages of ext_proc.
MESSAGES = [
    write(headers(x_request_id="kept")),
    write(headers(DUPLEX, x_request_id="kept")),
    write(headers(end=True, x_request_id="kept", subset=["10.0.0.2:8000"])),
    write(headers(end=True, x_request_id="kept", subset=[])),
    write(RequestBody(BODY)),
    write(RequestBody(BODY[:20], end_of_stream=False)),
    write(RequestBody(b"not JSON")),
    write(RequestBody(b"x" * 1_000)),
    write(RequestTrailers()),
    write(ResponseHeaders()),
    write(ResponseTrailers()),
    b"",
    b"\xff\xff\xff",
]
PATHS = [PROCESS] * 6 + [CHECK, "/no.Such/Method"]
METADATA = [[], [("x-custom", "x" * 300)], [("x-bin-bin", "AAAA")], [("grpc-timeout", "50S")]]


@dataclass(slots=True)
class Outcome:
    """What became of one call."""

    messages: list[bytes] = field(default_factory=list)
    status: str = ""
    data: bytes = b""

    def take(self, data: bytes) -> None:
        self.data += data
        while len(self.data) >= 5 and len(self.data) >= (end := 5 + int.from_bytes(self.data[1:5], "big")):
            self.messages.append(self.data[5:end])
            self.data = self.data[end:]


class Client:
    """One connection whose calls are interleaved at random and whose messages are cut at random."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.outcomes: dict[int, Outcome] = {}

    def steps(self) -> Iterator[bytes]:
        """Yields the bytes of each step of the conversation."""
        rng, connection = self._rng, self._connection
        connection.initiate_connection()
        connection.increment_flow_control_window(1 << 20)
        yield connection.data_to_send()
        scripts: dict[int, list[bytes]] = {}
        for _ in range(CALLS):
            stream_id = connection.get_next_available_stream_id()
            head = [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", rng.choice(PATHS)),
                (":authority", "x"),
            ]
            more = [("content-type", "application/grpc"), ("te", "trailers"), *rng.choice(METADATA)]
            connection.send_headers(stream_id, head + more)
            self.outcomes[stream_id] = Outcome()
            scripts[stream_id] = [rng.choice(MESSAGES) for _ in range(rng.randrange(4))]
            yield connection.data_to_send()
        while scripts:
            stream_id = rng.choice(list(scripts))
            script = scripts[stream_id]
            if not script:
                del scripts[stream_id]
            yield self._speak(stream_id, script)

    def _speak(self, stream_id: int, script: list[bytes]) -> bytes:
        """Says the next message of a call, or its end; nothing on a call that the server has ended."""
        try:
            if not script:
                self._connection.end_stream(stream_id)
            else:
                message = script.pop(0)
                framed = b"\0" + len(message).to_bytes(4, "big") + message
                while framed:
                    size = self._rng.choice([1, 4, 7, 500, 16_000])
                    self._connection.send_data(stream_id, framed[:size])
                    framed = framed[size:]
        except h2.exceptions.StreamClosedError:
            script.clear()
        return self._connection.data_to_send()

    def hear(self, data: bytes) -> bytes:
        for event in self._connection.receive_data(data):
            match event:
                case h2.events.DataReceived(stream_id=int(stream_id), data=payload):
                    self.outcomes[stream_id].take(bytes(payload or b""))
                    self._connection.acknowledge_received_data(event.flow_controlled_length or 0, stream_id)
                case h2.events.ResponseReceived(stream_id=int(stream_id), headers=fields) | (
                    h2.events.TrailersReceived(stream_id=int(stream_id), headers=fields)
                ):
                    status = {str(name): str(value) for name, value in fields or []}.get("grpc-status")
                    self.outcomes[stream_id].status = status or self.outcomes[stream_id].status
        return self._connection.data_to_send()

    @property
    def is_done(self) -> bool:
        return len(self.outcomes) == CALLS and all(outcome.status for outcome in self.outcomes.values())


async def hear(client: Client, reader: asyncio.StreamReader, outbox: bytearray) -> None:
    while not client.is_done:
        data = await reader.read(65_536)
        assert data, "the server closed"
        outbox += client.hear(data)


async def pump(outbox: bytearray, writer: asyncio.StreamWriter, cuts: random.Random) -> None:
    """Writes what is there, in pieces of random sizes."""
    while True:
        size = cuts.choice([1, 9, 100, 20_000])
        writer.write(bytes(outbox[:size]))
        del outbox[:size]
        await asyncio.sleep(0)


def summary(outcome: Outcome) -> tuple[str, list[object]]:
    """A call's status and replies, but for which of equal endpoints was picked."""
    replies: list[object] = []
    for message in outcome.messages:
        try:
            reply = read(message)
        except (ValueError, AssertionError, TypeError):
            reply = Continue(Phase.REQUEST_HEADERS)  # a health answer
        replies.append(replace(reply, address=None) if isinstance(reply, Went) else reply)
    return outcome.status, replies


async def converse(transport: str, seed: int) -> tuple[list[Outcome], int]:
    """Returns what became of the calls of one seed, and how many requests stay counted."""
    picker = one_pool()
    settings = ServerSettings.model_validate({"listen": "127.0.0.1:0", "transport": transport})
    server = build_transport(settings, _processor(picker).routes(), Budget(1 << 26))
    port = await server.bind()
    await server.start()
    client = Client(random.Random(seed))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    outbox = bytearray()
    pumping = asyncio.create_task(pump(outbox, writer, random.Random(-seed)))
    hearing = asyncio.create_task(hear(client, reader, outbox))
    try:
        for data in client.steps():
            outbox += data
            await asyncio.sleep(0)
        await asyncio.wait_for(hearing, 20)
    finally:
        pumping.cancel()
        hearing.cancel()
        writer.close()
        await server.stop()
    return list(client.outcomes.values()), sum(route.pool.book.total for route in picker.routes.values())


def _processor(picker: Picker) -> ExternalProcessor:
    return ExternalProcessor(
        lambda: picker, Metrics(), max_body_bytes=MAX_BODY_BYTES, clear_route_cache=True, unseen_s=0
    )


@pytest.mark.parametrize("seed", SEEDS)
async def test_both_transports_answer_the_same_bytes_alike(seed: int) -> None:
    ours, counted = await converse("native", seed)
    theirs, _ = await converse("grpcio", seed)

    assert [summary(outcome) for outcome in theirs] == [summary(outcome) for outcome in ours]
    assert counted == 0
