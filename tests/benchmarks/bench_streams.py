"""What an open stream costs: memory of the service for 8,000 requests in flight, on both transports.

Straight at the service: streams whose headers and body were read, as while an answer streams.
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
from tests.benchmarks.report import Row, report
from tests.router.stream.conversations import BODY, headers
from tests.router.stream.wire import write
from tests.stack.ports import free_ports
from tests.stack.process import Process
from tests.stack.service import Service, pool

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
    report("streams", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
