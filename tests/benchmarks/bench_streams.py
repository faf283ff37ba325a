"""What an open stream costs: memory of the service for 8,000 requests in flight, on both transports.

Once straight at the service (a stream whose headers and body were read, as while an answer streams), and once
through a real Envoy with as many streaming answers at the same time: every one must be answered, be counted
exactly while it runs, and leave nothing behind.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import uvloop

from extproc.router.stream.events import RequestBody
from extproc.router.stream.names import PROCESS
from tests.benchmarks.gateway_arms import build_requests
from tests.benchmarks.report import Row, report
from tests.router.stream.conversations import BODY, headers
from tests.router.stream.wire import write
from tests.stack.ports import free_ports
from tests.stack.process import Process
from tests.stack.service import Service, pool
from tests.stack.stack import Stack

STREAMS = 8_000
CONNECTIONS = 4
WAVES = 3
TRANSPORTS = ("native", "grpcio")
HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", PROCESS), (":authority", "bench")]
GRPC = [("content-type", "application/grpc"), ("te", "trailers")]


def memory_bytes(process: Process) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1_024


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


class Proxy(asyncio.Protocol):
    """A proxy's connection that opens streams, sends headers and a body on each, and leaves them open."""

    def __init__(self) -> None:
        self._connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
        self._messages = [framed(write(headers())), framed(write(RequestBody(BODY)))]
        self.answered: dict[int, int] = {}
        self.has_heard = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._connection.initiate_connection()
        self._connection.increment_flow_control_window(1 << 30)
        self.flush()

    def data_received(self, data: bytes) -> None:
        for event in self._connection.receive_data(data):
            if isinstance(event, h2.events.DataReceived) and event.stream_id:
                self.answered[event.stream_id] += 1
                if self.answered[event.stream_id] == 1:
                    self._connection.send_data(event.stream_id, self._messages[1])
        self.flush()
        self.has_heard.set()

    def open(self, count: int) -> None:
        for _ in range(count):
            stream_id = self._connection.get_next_available_stream_id()
            self._connection.send_headers(stream_id, HEADERS + GRPC)
            self._connection.send_data(stream_id, self._messages[0])
            self.answered[stream_id] = 0
            self.flush()

    async def all_answered(self) -> None:
        while any(count < 2 for count in self.answered.values()):
            self.has_heard.clear()
            await self.has_heard.wait()

    def end_all(self) -> None:
        for stream_id in self.answered:
            self._connection.end_stream(stream_id)
        self.answered = {}
        self.flush()

    def flush(self) -> None:
        assert hasattr(self._transport, "write")
        self._transport.write(self._connection.data_to_send())


async def hold(service: Service, port: int) -> tuple[float, float]:
    """Returns memory per open stream, and what remains per stream once they are closed, in bytes."""
    loop = asyncio.get_running_loop()
    proxies = [(await loop.create_connection(Proxy, "127.0.0.1", port))[1] for _ in range(CONNECTIONS)]

    async def wave(count: int) -> None:
        for proxy in proxies:
            for _ in range(0, count // CONNECTIONS, 50):
                proxy.open(50)
                await proxy.all_answered()

    async def end() -> None:
        for proxy in proxies:
            proxy.end_all()
        while service.metric("extproc_streams_open"):  # noqa: ASYNC110  # another process's state
            await asyncio.sleep(0.05)

    await wave(200)
    await end()
    before = memory_bytes(service)
    await wave(STREAMS)
    assert service.metric("extproc_streams_open") == STREAMS
    during = memory_bytes(service)
    await end()
    return (during - before) / STREAMS, (memory_bytes(service) - before) / STREAMS


@contextmanager
def serving(directory: Path, transport: str) -> Iterator[tuple[Service, int]]:
    port, admin_port = free_ports(2)
    below = directory / f"{transport}-{port}"
    below.mkdir()
    service = Service(below, port=port, admin_port=admin_port, transport=transport)
    service.configure([pool(["127.0.0.1:1", "127.0.0.1:2"])])
    with service:
        service.wait_ready()
        yield service, port


class Answering(asyncio.Protocol):
    """An endpoint that begins each answer at once and ends it when told."""

    open: "list[Answering]"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._heard = b""

    def data_received(self, data: bytes) -> None:
        self._heard += data
        head, separator, body = self._heard.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0) if separator else 0
        if separator and len(body) >= length:
            self._heard = b""
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            self._write(head + b"6\r\ndata:\n\r\n")
            type(self).open.append(self)

    def end(self) -> None:
        self._write(b"0\r\n\r\n")

    def _write(self, data: bytes) -> None:
        assert hasattr(self._transport, "write")
        self._transport.write(data)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


async def stream_all(stack: Stack, count: int) -> int:
    """Opens `count` streaming answers, checks them in flight, ends them; returns the memory meanwhile."""
    Answering.open = []
    loop = asyncio.get_running_loop()
    servers = [
        await loop.create_server(Answering, "127.0.0.1", port, backlog=4_096)
        for port in map(port_of, stack.addresses)
    ]
    request = build_requests()[0]
    port = int(stack.url.rpartition(":")[2])
    clients = []
    for first in range(0, count, 200):
        clients += [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        for _, writer in clients[first:]:
            writer.write(request)
        while len(Answering.open) < len(clients):  # noqa: ASYNC110  # the endpoints' state
            await asyncio.sleep(0.01)
    [seen] = await asyncio.to_thread(stack.service.pools)
    assert seen["in_flight"] == count, seen["in_flight"]
    memory = memory_bytes(stack.service)
    for endpoint in Answering.open:
        endpoint.end()
    answers = [await reader.readuntil(b"0\r\n\r\n") for reader, _ in clients]
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    for _, writer in clients:
        writer.close()
    while await asyncio.to_thread(stack.service.metric, "extproc_streams_open"):  # noqa: ASYNC110  # as above
        await asyncio.sleep(0.05)
    for server in servers:
        server.close()
    return memory


def through_envoy(directory: Path, transport: str) -> list[Row]:
    below = directory / f"envoy-{transport}"
    below.mkdir()
    with Stack(below, simulate=None).running(transport=transport) as stack:
        uvloop.run(stream_all(stack, 1_000))
        before = memory_bytes(stack.service)
        waves = [(uvloop.run(stream_all(stack, STREAMS)), memory_bytes(stack.service)) for _ in range(WAVES)]
        assert stack.gateway.ext_proc()["failure_mode_allowed"] == 0
    during, after = ([value / before for value in values] for values in zip(*waves, strict=True))
    return [
        Row(f"{transport}, {STREAMS} answers through Envoy: memory / before", during, "x"),
        Row(f"{transport}, after them: memory / before", after, "x"),
    ]


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for transport in TRANSPORTS:
            held = []
            for _ in range(WAVES):
                # A new process each time: memory that was used once costs nothing the second time.
                with serving(Path(folder), transport) as (service, port):
                    held.append(uvloop.run(hold(service, port)))
            rows.append(Row(f"{transport}: an open stream", [one for one, _ in held], "bytes"))
            rows.append(Row(f"{transport}: a closed one", [left for _, left in held], "bytes"))
        for transport in TRANSPORTS:
            rows += through_envoy(Path(folder), transport)
    report("streams", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
