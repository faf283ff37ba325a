"""What an open stream costs: memory of the service for 8,000 requests in flight, on both transports.

Straight at the service: streams whose headers and body were read, as while an answer streams.
"""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc.aio

from extproc.router.stream.events import RequestBody
from extproc.router.stream.names import PROCESS
from tests.benchmarks.report import Row, report
from tests.router.stream.conversations import BODY, headers
from tests.router.stream.wire import write
from tests.stack.ports import free_ports
from tests.stack.process import memory_bytes
from tests.stack.service import Service, pool
from tests.waiting import until

STREAMS = 8_000
CONNECTIONS = 4
AT_ONCE = 200
WAVES = 3
TRANSPORTS = ("native", "grpcio")
MESSAGES = [write(headers()), write(RequestBody(BODY))]


async def open_stream(channel: grpc.aio.Channel) -> Any:
    call = channel.stream_stream(PROCESS, None, None)(None)
    for message in MESSAGES:
        await call.write(message)
        await call.read()
    return call


async def hold(service: Service, port: int) -> tuple[float, float]:
    """Returns memory per open stream, and what remains per stream once they are closed, in bytes."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) for _ in range(CONNECTIONS)]

    async def wave(count: int) -> float:
        """Opens that many, some at a time; returns the memory meanwhile."""
        calls: list[Any] = []
        while len(calls) < count:
            some = (open_stream(channels[number % CONNECTIONS]) for number in range(AT_ONCE))
            calls += await asyncio.gather(*some)
        assert service.metric("extproc_streams_open") == count
        during = memory_bytes(service.pid)
        for call in calls:
            await call.done_writing()
        await until(lambda: service.metric("extproc_streams_open") == 0)
        return during

    await wave(AT_ONCE)
    before = memory_bytes(service.pid)
    during = await wave(STREAMS)
    left = memory_bytes(service.pid)
    for channel in channels:
        await channel.close(None)
    return (during - before) / STREAMS, (left - before) / STREAMS


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
                    held.append(asyncio.run(hold(service, port)))
            rows.append(Row(f"{transport}: an open stream", [one for one, _ in held], "bytes"))
            rows.append(Row(f"{transport}: a closed one", [left for _, left in held], "bytes"))
    report("streams", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
