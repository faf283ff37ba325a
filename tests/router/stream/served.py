"""The ext_proc service on a real socket, and a channel to it."""

from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import grpc
import grpc.aio

from extproc.grpc_server.budget import Budget, unlimited
from extproc.router.routing.picker import Picker
from extproc.router.service.transport import Transport, bind_transport
from extproc.router.settings.server_settings import ServerSettings
from extproc.router.stream.events import Event
from extproc.router.stream.names import PROCESS
from extproc.router.stream.server import ExternalProcessor
from extproc.router.stream.session import SessionOptions
from extproc.router.telemetry import Metrics
from tests.router.stream.conversations import MAX_BODY_BYTES, Expected, picks_in_flight
from tests.router.stream.wire import read_response, write_request
from tests.waiting import until

Call = grpc.aio.StreamStreamCall[bytes, bytes]

UNSEEN_S = 7.0


@dataclass
class ServedProcessor:
    """A running service and a channel to it."""

    picker: Picker
    processor: ExternalProcessor
    metrics: Metrics
    server: Transport
    target: str
    unseen: list[tuple[float, Callable[[], None]]]

    def __post_init__(self) -> None:
        self.channel = grpc.aio.insecure_channel(self.target)
        self._open = self.channel.stream_stream(PROCESS, None, None)

    async def until_idle(self) -> None:
        await until(lambda: self.processor.streams_open == 0)

    def open(self, pool: str | None = None) -> Call:
        return self._open(
            None, metadata=grpc.aio.Metadata(("x-extproc-pool", pool)) if pool else None
        )

    async def say(self, *events: Event, pool: str | None = None) -> Call:
        """A new stream on which these messages are sent."""
        call = self.open(pool)
        for event in events:
            await call.write(write_request(event))
        return call

    async def ask(self, *events: Event, pool: str | None = None) -> tuple[Call, Expected]:
        """A new stream whose messages wait for an answer each; and the last of these."""
        call = self.open(pool)
        for event in events:
            await call.write(write_request(event))
            answer = read_response(await receive(call))
        return call, answer

    @property
    def in_flight(self) -> int:
        return picks_in_flight(self.picker)

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


# Which transport `serving` uses: each test runs on both.
chosen = {"transport": "native"}
# Who reads long bodies; and then each is one.
reader: dict[str, Executor | None] = {"reader": None}


def build_processor(
    picker: Picker, metrics: Metrics | None = None, **options: Any
) -> ExternalProcessor:
    common = {
        name: options.pop(name) for name in SessionOptions.__struct_fields__ if name in options
    }
    common = {"max_body_bytes": MAX_BODY_BYTES, "reads_apart": bool(options.get("reader"))} | common
    session = SessionOptions(lambda: str(uuid4()), **common)
    return ExternalProcessor(lambda: picker, metrics or Metrics(), session, **options)


@asynccontextmanager
async def serving_processor(
    picker: Picker, budget: Budget | None = None
) -> AsyncIterator[ServedProcessor]:
    metrics = Metrics()
    unseen: list[tuple[float, Callable[[], None]]] = []
    processor = build_processor(
        picker,
        metrics,
        clear_route_cache=True,
        budget=budget or unlimited(),
        unseen_s=UNSEEN_S,
        later=lambda delay_s, action: unseen.append((delay_s, action)),
        reader=reader["reader"],
    )
    metrics.streams_open.set_function(lambda: processor.streams_open)
    settings = ServerSettings.model_validate({"listen": "127.0.0.1:0", **chosen})
    server = await bind_transport(settings, processor.routes(), Budget(1 << 26))
    await server.start()
    served = ServedProcessor(picker, processor, metrics, server, f"127.0.0.1:{server.port}", unseen)
    async with served.channel:
        yield served
    await server.stop()


async def receive(call: Call) -> bytes:
    message = await call.read()
    assert isinstance(message, bytes), "the stream ended"
    return message
