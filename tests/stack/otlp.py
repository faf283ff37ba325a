"""A receiver of spans: OTLP over HTTP, as collectors take it, or over gRPC."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import grpc
from aiohttp import web
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan


def tracing_to(port: int) -> dict[str, str]:
    """The variables by which the service sends its spans to a receiver, soon."""
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }


@dataclass(frozen=True, slots=True)
class Span:
    """One span; ids are hexadecimal, `parent` is empty for a root."""

    service: str
    name: str
    trace: str
    id: str
    parent: str
    kind: int
    start_ns: int
    end_ns: int
    is_error: bool
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any] = field(repr=False)


class Receiver:
    """Keeps what it is sent, if it `keeps` anything. `answers` at once only while that is set."""

    def __init__(self, *, keeps: bool = True) -> None:
        self._keeps = keeps
        self.spans: list[Span] = []
        self.answers = Event()
        self.answers.set()
        self.status = 200
        self.port = 0

    def of(self, trace: str) -> list[Span]:
        return [span for span in self.spans if span.trace == trace]

    def build(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/traces", self._take)
        return app

    async def _take(self, request: web.Request) -> web.Response:
        body = await request.read()  # aiohttp unzips it
        await asyncio.to_thread(self.answers.wait, 60)
        if self._keeps and self.status == 200:
            self.keep(pb.ExportTraceServiceRequest.FromString(body))
        answer = pb.ExportTraceServiceResponse().SerializeToString()
        return web.Response(status=self.status, body=answer, content_type="application/x-protobuf")

    def keep(self, batch: pb.ExportTraceServiceRequest) -> None:
        for resource in batch.resource_spans:
            about = _attributes(resource.resource.attributes)
            self.spans += [
                _span(span, about) for scope in resource.scope_spans for span in scope.spans
            ]


@contextmanager
def receiving(port: int = 0, *, keeps: bool = True) -> Iterator[Receiver]:
    """A receiver on a loop and in a thread of its own: tests wait for processes with theirs."""
    receiver, loop = Receiver(keeps=keeps), asyncio.new_event_loop()
    runner = web.AppRunner(receiver.build(), access_log=None)

    async def start() -> None:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        receiver.port = runner.addresses[0][1]

    loop.run_until_complete(start())
    thread = Thread(target=loop.run_forever)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.answers.set()
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class _OverGrpc(TraceServiceServicer):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def Export(  # noqa: N802  # the service's own name
        self, request: pb.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> pb.ExportTraceServiceResponse:
        del context
        self._receiver.keep(request)
        return pb.ExportTraceServiceResponse()


@contextmanager
def receiving_grpc() -> Iterator[Receiver]:
    """A receiver of OTLP over gRPC."""
    receiver, server = Receiver(), grpc.server(ThreadPoolExecutor(1))
    add_TraceServiceServicer_to_server(_OverGrpc(receiver), server)  # type: ignore[no-untyped-call]  # generated
    receiver.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()


def until_spans(
    receiver: Receiver, count: int, trace: str = "", timeout_s: float = 30
) -> list[Span]:
    """Waits for so many spans, of one trace or of all."""
    deadline = time.monotonic() + timeout_s
    while len(spans := receiver.of(trace) if trace else list(receiver.spans)) < count:
        assert time.monotonic() < deadline, f"{len(spans)} of {count} spans came"
        time.sleep(0.02)
    return spans


def _span(span: OtlpSpan, resource: Mapping[str, Any]) -> Span:
    return Span(
        *(resource.get("service.name", ""), span.name, span.trace_id.hex(), span.span_id.hex()),
        *(span.parent_span_id.hex(), span.kind, span.start_time_unix_nano, span.end_time_unix_nano),
        *(span.status.code == 2, _attributes(span.attributes), resource),
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None
