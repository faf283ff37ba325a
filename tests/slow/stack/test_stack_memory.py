"""The service's memory has a bound, whatever bodies come: the one that the README states."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import pytest

from extproc.router.stream.events import RequestBody
from extproc.router.stream.ext_proc_pb2 import NONE, ProcessingResponse
from extproc.router.stream.names import PROCESS
from tests.hostile import HONEST, HOSTILE, Body, chat
from tests.router.stream.conversations import headers
from tests.router.stream.wire import write
from tests.stack.ports import free_ports
from tests.stack.service import Service, pool

AT_ONCE = 12
SIZE_BYTES = 31 * 1024 * 1024
HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", PROCESS), (":authority", "bench")]
GRPC = [("content-type", "application/grpc"), ("te", "trailers")]
# The container of the manifests has 512 MiB.
BOUND_BYTES = 400_000_000
NORMAL = chat(b'{"role":"user","content":"one of the others"}')


class Proxy(asyncio.Protocol):
    """A proxy's connection: each request is a stream of headers and a body, and two answers.

    Told to skip the body it sends none, as Envoy does.
    """

    def __init__(self) -> None:
        self._connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._unsent: dict[int, memoryview] = {}
        self._bodies: dict[int, bytes] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._connection.initiate_connection()
        self._connection.increment_flow_control_window(1 << 30)
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        for waiting in self._waiting.values():
            waiting.set_exception(error or ConnectionError())

    def data_received(self, data: bytes) -> None:
        for event in self._connection.receive_data(data):
            if isinstance(event, h2.events.DataReceived) and event.stream_id in self._waiting:
                self._answered(event.stream_id, event.data)
            elif isinstance(event, h2.events.StreamReset | h2.events.StreamEnded) and event.stream_id:
                self._unsent.pop(event.stream_id, None)
                waiting = self._waiting.pop(event.stream_id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_exception(ConnectionError("a stream that ended without an answer"))
        for stream_id in list(self._unsent):
            self._send(stream_id)
        self._flush()

    async def ask(self, body: Body) -> None:
        stream_id = self._connection.get_next_available_stream_id()
        self._bodies[stream_id] = framed(write(RequestBody(body.data)))
        self._connection.send_headers(stream_id, HEADERS + GRPC)
        self._connection.send_data(
            stream_id, framed(write(headers(path=body.path, content_type=body.content_type)))
        )
        self._waiting[stream_id] = asyncio.get_running_loop().create_future()
        self._flush()
        await self._waiting[stream_id]

    def _answered(self, stream_id: int, data: bytes) -> None:
        answer = ProcessingResponse.FromString(data[5:])
        is_skipped = answer.HasField("mode_override") and answer.mode_override.request_body_mode == NONE
        body = self._bodies.pop(stream_id, None)
        if body is not None and not is_skipped:
            self._unsent[stream_id] = memoryview(body)
            return
        self._waiting.pop(stream_id).set_result(None)
        self._unsent.pop(stream_id, None)
        self._connection.end_stream(stream_id)

    def _send(self, stream_id: int) -> None:
        rest = self._unsent[stream_id]
        while rest and (room := min(self._connection.local_flow_control_window(stream_id), 16_384)):
            self._connection.send_data(stream_id, bytes(rest[:room]))
            rest = rest[room:]
        if rest:
            self._unsent[stream_id] = rest
        else:
            del self._unsent[stream_id]

    def _flush(self) -> None:
        assert hasattr(self._transport, "write")
        self._transport.write(self._connection.data_to_send())


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    port, admin_port = free_ports(2)
    service = Service(tmp_path, port=port, admin_port=admin_port)
    service.configure([pool(["127.0.0.1:1", "127.0.0.1:2"], probe=False)])
    with service:
        service.wait_ready()
        yield service


def peak_bytes(service: Service) -> int:
    status = Path(f"/proc/{service.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1_024


async def send(service: Service, *bodies: Body) -> None:
    """All of them at once, on one connection as a proxy has it; each is routed."""
    loop = asyncio.get_running_loop()
    transport, proxy = await loop.create_connection(Proxy, "127.0.0.1", service.port)
    async with asyncio.timeout(50):
        await asyncio.gather(*(proxy.ask(body) for body in (*bodies, NORMAL)))
    transport.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["text", "an image", "a chat of 2,000 messages"])
async def test_twelve_honest_bodies_at_once_are_served_or_routed_without(service: Service, kind: str) -> None:
    await send(service, *[HONEST[kind](SIZE_BYTES)] * AT_ONCE)

    assert peak_bytes(service) <= BOUND_BYTES
    assert service.metric("extproc_requests_total", outcome="routed") == AT_ONCE + 1
    # Four and a half fit: four are read at least, the others are not refused for that, and counted.
    assert 1 <= service.metric("extproc_prompt_errors_total", why="budget") <= AT_ONCE + 1 - 4


@pytest.mark.timeout(300)
async def test_no_hostile_body_takes_more_memory_than_is_stated(service: Service) -> None:
    for build in HOSTILE.values():
        await send(service, *[build(SIZE_BYTES)] * 3)

    assert peak_bytes(service) <= BOUND_BYTES
    assert service.metric("extproc_requests_total", outcome="routed") == 4 * len(HOSTILE)
