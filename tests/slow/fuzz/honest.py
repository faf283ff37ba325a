"""An honest client, `h2` itself, talks to our connection: all that both send is understood by the other.

Bytes go both ways in pieces and late, as on a wire. Every call that is not reset gets back what it sent,
byte for byte, with status 0; nothing that we send is refused by `h2`.
"""

from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    ResponseReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.settings import SettingCodes

from extproc.router.budget import Budget
from extproc.router.wire.connection import Connection
from extproc.router.wire.limits import WireLimits
from extproc.router.wire.streams import Failed, HalfClosed, Message
from tests.slow.fuzz.choices import Choices
from tests.slow.fuzz.http2_reference import TRANSITIONS

REQUEST: Final = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/echo.Echo/Say"),
    (":authority", "echo"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
LIMITS: Final = WireLimits(streams=100, stream_window_bytes=100)
ALL: Final = 1_000_000
PREFIX_BYTES: Final = 5


class Exchange:
    """One call, as its client sees it."""

    def __init__(self) -> None:
        self.to_send = b""
        self.sent = b""
        self.got = b""
        self.is_ending = self.has_ended = False
        self.is_over = self.is_reset = False
        self.status: bytes | None = None


class Conversation:
    """A client, our connection with a service that gives messages back, and the wires between them."""

    def __init__(self) -> None:
        self.client = H2Connection(H2Configuration(client_side=True))
        self.budget = Budget(ALL)
        self.ours = Connection(LIMITS, self.budget, 0.0)
        self.calls: dict[int, Exchange] = {}
        self.to_server = self.to_client = b""
        self.is_leaving = False
        self.client.state_machine._transitions = TRANSITIONS
        self.client.initiate_connection()
        # Until a client has our SETTINGS it takes our windows for larger than these tests make them.
        self.is_settled = False
        while not self.is_settled:
            self.deliver(ALL)

    def open(self, field: tuple[str, str]) -> None:
        if self.is_leaving or len(self.calls) >= LIMITS.streams:
            return
        stream_id = self.client.get_next_available_stream_id()
        self.client.send_headers(stream_id, [*REQUEST, field])
        self.calls[stream_id] = Exchange()

    def write(self, stream_id: int, message: bytes, pad: int) -> None:
        call = self.calls[stream_id]
        if not (call.is_ending or call.is_over):
            call.to_send += len(message).to_bytes(PREFIX_BYTES, "big") + message
            self.push(stream_id, pad)

    def end(self, stream_id: int) -> None:
        self.calls[stream_id].is_ending = True
        self.push(stream_id, 0)

    def reset(self, stream_id: int) -> None:
        call = self.calls[stream_id]
        if not call.is_over:
            self.client.reset_stream(stream_id)
            call.is_over = call.is_reset = True

    def push(self, stream_id: int, pad: int) -> None:
        """Sends what the windows let through, then the end if it is due."""
        call = self.calls[stream_id]
        while call.to_send and not call.is_over:
            room = self.client.local_flow_control_window(stream_id) - (pad + 1 if pad else 0)
            size = min(room, len(call.to_send), self.client.max_outbound_frame_size - 256)
            if size <= 0:
                return
            self.client.send_data(stream_id, call.to_send[:size], pad_length=pad or None)
            call.sent, call.to_send = call.sent + call.to_send[:size], call.to_send[size:]
        if call.is_ending and not (call.has_ended or call.is_over):
            self.client.end_stream(stream_id)
            call.has_ended = True

    def set(self, code: SettingCodes, value: int) -> None:
        # One at a time: `h2` takes the next value of every setting for acknowledged with each frame.
        if self.is_settled:
            self.client.update_settings({code: value})
            self.is_settled = False

    def deliver(self, count: int) -> None:
        """Carries up to `count` bytes each way."""
        self.to_server += self.client.data_to_send()
        data, self.to_server = self.to_server[:count], self.to_server[count:]
        self.ours.receive(data, 0.0)
        self._serve()
        self.to_client += self.ours.take_output()
        data, self.to_client = self.to_client[:count], self.to_client[count:]
        for event in self.client.receive_data(data):
            self._on(event)
        for stream_id in self.calls:
            self.push(stream_id, 0)

    def settle(self) -> None:
        """Lets everything come to its end."""
        for stream_id in self.calls:
            self.end(stream_id)
        while not (self.is_settled or self.ours.is_over):
            self.deliver(ALL)
        self.set(SettingCodes.INITIAL_WINDOW_SIZE, 65_535)
        before = None
        while before != (now := self._progress()):
            before = now
            self.deliver(ALL)
            self.deliver(ALL)

    def _progress(self) -> tuple[object, ...]:
        calls = self.calls.values()
        return (
            self.to_server,
            self.to_client,
            *((len(call.sent), len(call.got), call.is_over) for call in calls),
        )

    def _serve(self) -> None:
        for event in self.ours.events:
            if isinstance(event, Message):
                self.ours.send(event.stream, bytes(event.data))
            elif isinstance(event, HalfClosed):
                self.ours.finish(event.stream)
            assert not isinstance(event, Failed), event
        self.ours.events.clear()

    def _on(self, event: object) -> None:
        match event:
            case ResponseReceived() | TrailersReceived():
                self.calls[event.stream_id or 0].status = dict(event.headers or ()).get(b"grpc-status")
            case DataReceived():
                self.calls[event.stream_id or 0].got += event.data or b""
                self.client.acknowledge_received_data(event.flow_controlled_length or 0, event.stream_id or 0)
            case StreamEnded():
                self.calls[event.stream_id or 0].is_over = True
            case StreamReset():
                raise AssertionError(f"our connection reset an honest call: {event}")
            case SettingsAcknowledged():
                self.is_settled = True


def honest(data: bytes) -> None:
    """What an honest client sends comes back to it, and all that we send is understood by it."""
    choices, conversation = Choices(data), Conversation()
    while choices:
        _step(choices, conversation)
    conversation.settle()
    for call in conversation.calls.values():
        if not call.is_reset:
            assert (call.got, call.status) == (call.sent, b"0")
    conversation.ours.abort()
    assert conversation.budget.used == 0


def _step(choices: Choices, conversation: Conversation) -> None:
    way = choices.byte()
    stream_id = choices.one_of([*conversation.calls][-4:] or [0])
    match way % 16:
        case 0 | 1 | 2:
            conversation.open(
                (choices.one_of(("x-a", "x-b", "cookie")), choices.one_of(("", "1", "long" * 20)))
            )
        case 3 | 4 | 5 | 6 if stream_id:
            size = choices.byte() if way < 250 else 20_000
            conversation.write(stream_id, bytes(size), choices.byte() if way & 0x80 else 0)
        case 7 if stream_id:
            conversation.end(stream_id)
        case 8 if stream_id and way > 100:
            conversation.reset(stream_id)
        case 9:
            conversation.set(SettingCodes.INITIAL_WINDOW_SIZE, choices.one_of((0, 1, 7, 100, 65_535, 2**20)))
        case 10:
            conversation.set(SettingCodes.HEADER_TABLE_SIZE, choices.one_of((0, 100, 4_096, 65_536)))
        case 11:
            conversation.client.ping(b"a client")
        case 12 if way > 200:
            conversation.is_leaving = True
            conversation.ours.drain()
        case _:
            conversation.deliver(choices.one_of((1, 5, 20, 60, 200, ALL)))
