"""The clients of bench_neighbours, each a process of its own: one asks at a steady rate, one attacks.

    python -m tests.benchmarks.neighbours normal grpc --port 9002 --seconds 5
    python -m tests.benchmarks.neighbours attack http --port 8080 --kind "open brackets"

Straight at the service over gRPC, as a proxy speaks, or as HTTP/1.1 through a real Envoy. The first prints
how long each request took, in ms, from when it was due; the second goes on until it is ended.
"""

import argparse
import asyncio
import time
from contextlib import suppress
from functools import lru_cache
from itertools import count
from typing import Protocol

import h2.config
import h2.connection
import h2.events
import orjson
import uvloop

from extproc.router.stream.events import RequestBody
from extproc.router.stream.names import PROCESS
from tests.benchmarks.gateway_arms import PROMPTS, build_requests
from tests.hostile import CHAT, HONEST, HOSTILE, Body
from tests.router.stream.conversations import headers
from tests.router.stream.wire import write

SIZE_BYTES = 31 * 1024 * 1024
PER_S = 100
ATTACKS_PER_S = 3
HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", PROCESS), (":authority", "bench")]
GRPC = [("content-type", "application/grpc"), ("te", "trailers")]


class Client(Protocol):
    async def ask(self, body: Body) -> None:
        """One request, until it is routed. Raises `ConnectionError` if it is not."""
        ...


class Proxy(asyncio.Protocol):
    """A proxy's connection: each request is a stream of headers and a body, and two answers."""

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
                self._answered(event.stream_id)
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
        self._bodies[stream_id] = written(body)
        self._connection.send_headers(stream_id, HEADERS + GRPC)
        self._connection.send_data(
            stream_id, framed(write(headers(path=body.path, content_type=body.content_type)))
        )
        self._waiting[stream_id] = asyncio.get_running_loop().create_future()
        self._flush()
        await self._waiting[stream_id]

    def _answered(self, stream_id: int) -> None:
        body = self._bodies.pop(stream_id, None)
        if body is not None:
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


class Browser:
    """Connections over HTTP/1.1, as many as there are requests at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, body: Body) -> None:
        streams = self._idle.pop() if self._idle else await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = streams
        head = f"POST {body.path} HTTP/1.1\r\nhost: bench\r\ncontent-type: {body.content_type}\r\n"
        writer.write(head.encode() + b"content-length: %d\r\n\r\n" % len(body.data))
        writer.write(body.data)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = answer.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        if not answer.startswith(b"HTTP/1.1 200"):
            raise ConnectionError(answer.partition(b"\r\n")[0].decode())
        self._idle.append(streams)


@lru_cache(maxsize=PROMPTS)
def written(body: Body) -> bytes:
    return framed(write(RequestBody(body.data)))


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


async def ask_steadily(client: Client, seconds: float) -> list[float]:
    """Asks at a steady rate, whatever was before; those that are not answered are missing."""
    bodies = [Body(CHAT, request.partition(b"\r\n\r\n")[2]) for request in build_requests()]
    took_ms: list[float] = []
    start_s = time.perf_counter()

    async def once(number: int) -> None:
        due_s = start_s + number / PER_S
        await asyncio.sleep(due_s - time.perf_counter())
        due_s = max(due_s, time.perf_counter() - 0.001)  # the client's own lateness is not the service's
        try:
            await client.ask(bodies[number % len(bodies)])
        except ConnectionError:
            return
        took_ms.append(1_000 * (time.perf_counter() - due_s))

    await asyncio.gather(*(once(number) for number in range(int(seconds * PER_S))))
    return took_ms


async def attack(client: Client, kind: str, at_once: int) -> None:
    body = (HONEST.get(kind) or HOSTILE[kind])(SIZE_BYTES)
    asking: set[asyncio.Task[None]] = set()
    for number in count():
        if number >= at_once:
            await asyncio.sleep(1 / ATTACKS_PER_S)
        if len(asking) < max(ATTACKS_PER_S, at_once):
            task = asyncio.create_task(_try(client, body))
            asking.add(task)
            task.add_done_callback(asking.discard)


async def _try(client: Client, body: Body) -> None:
    with suppress(ConnectionError):
        await client.ask(body)


async def run(options: argparse.Namespace) -> None:
    client: Client = Browser(options.port)
    if options.protocol == "grpc":
        loop = asyncio.get_running_loop()
        client = (await loop.create_connection(Proxy, "127.0.0.1", options.port))[1]
    if options.role == "attack":
        await attack(client, options.kind, options.at_once)
    else:
        await ask_steadily(client, 0.5)
        print(orjson.dumps(await ask_steadily(client, options.seconds)).decode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=("normal", "attack"))
    parser.add_argument("protocol", choices=("grpc", "http"))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--kind", default="open brackets")
    parser.add_argument("--at-once", type=int, default=0)
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
