"""Spans by OpenTelemetry's SDK. The only importer of it; imported where traces are configured."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from threading import Thread
from time import time_ns
from typing import Final

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from extproc import __version__
from extproc.router.stream.events import Answer, Routed
from extproc.router.stream.names import TRACEPARENT, TRACESTATE
from extproc.router.stream.spans import Origin, Sampling, describe_span

log = logging.getLogger(__name__)

SPAN: Final = "extproc.pick"

# The specification's, in spans.
_QUEUE: Final = 2_048
_PROTOCOLS: Final[Mapping[str, str]] = {
    "": "otlp_proto_http",
    "http/protobuf": "otlp_proto_http",
    "grpc": "otlp_proto_grpc",
}


def build_exporter(environment: Mapping[str, str]) -> SpanExporter:
    """The exporter that `OTEL_TRACES_EXPORTER` names, by the name under which its package offers it.

    Raises `ValueError` where no package does.
    """
    name = environment.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if name == "otlp":
        protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL", ""
        )
        name = _PROTOCOLS.get(protocol, protocol)
    for offered in entry_points(group="opentelemetry_traces_exporter", name=name):
        exporter = offered.load()()
        if isinstance(exporter, SpanExporter):
            return exporter
    raise ValueError(f"no package here exports traces by {name!r}")


class OtelTracer:
    """Makes a span of every decision whose trace is sampled, and sends them in batches from a thread.

    Unless `OTEL_TRACES_SAMPLER` says otherwise, the caller alone samples: a request without a trace
    begins none.
    """

    def __init__(
        self,
        exporter: SpanExporter,
        environment: Mapping[str, str],
        count: Callable[[str, int], None],
    ) -> None:
        sampler = environment.get("OTEL_TRACES_SAMPLER", "").strip().lower()
        self.sampling = Sampling(
            unsampled=bool(sampler) and not sampler.startswith("parentbased_"),
            roots=bool(sampler) and not sampler.endswith("always_off"),
        )
        self._count = count
        self._provider = TracerProvider(
            sampler=None
            if sampler
            else ParentBased(ALWAYS_OFF),  # `None`: the SDK reads the variable
            resource=_resource(),
            shutdown_on_exit=False,
        )
        size = environment.get("OTEL_BSP_MAX_QUEUE_SIZE", "")
        self._limit = int(size) if size.isascii() and size.isdigit() and int(size) else _QUEUE
        self._counted = _Counted(exporter, count)
        self._given = 0
        self._provider.add_span_processor(
            BatchSpanProcessor(self._counted, max_queue_size=self._limit)
        )
        self._tracer = self._provider.get_tracer("extproc", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def record(self, origin: Origin, event: Routed | Answer, elapsed_s: float) -> None:
        try:
            self._record(origin, event, elapsed_s)
        except Exception as error:  # noqa: BLE001  # no span is worth a request
            self._count("dropped", 1)
            log.error("no span: %s", type(error).__name__)  # noqa: TRY400  # its text may be a client's

    async def stop(self, timeout_s: float) -> None:
        """Sends what waits, for so long at most; what is left is lost."""
        # A daemon thread: the process ends even if no collector takes the spans.
        thread = Thread(target=self._provider.shutdown, name="flush", daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, timeout_s)

    def _record(self, origin: Origin, event: Routed | Answer, elapsed_s: float) -> None:
        end_ns = time_ns()
        span = self._tracer.start_span(
            SPAN, self._context(origin), SpanKind.SERVER, start_time=end_ns - int(elapsed_s * 1e9)
        )
        if not span.is_recording():
            return
        # The SDK would log each that finds no room, here on the loop, and lose the oldest one for
        # it. Two counters, each written by one thread: no lock.
        if self._given - self._counted.taken >= self._limit:
            self._count("dropped", 1)
            return
        self._given += 1
        span.set_attributes(describe_span(event, origin.path))
        if isinstance(event, Answer) and event.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(end_ns)

    def _context(self, origin: Origin) -> Context:
        if not origin.traceparent:
            return Context()
        carrier = {TRACEPARENT: origin.traceparent, TRACESTATE: origin.tracestate}
        return self._propagator.extract(carrier, Context())


class _Counted(SpanExporter):
    """An exporter that counts its spans by result."""

    def __init__(self, exporter: SpanExporter, count: Callable[[str, int], None]) -> None:
        self.taken = 0
        self._exporter = exporter
        self._count = count

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            self._count("sent" if result is SpanExportResult.SUCCESS else "refused", len(spans))
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _resource() -> Resource:
    """What the variables say, beside a name and a version of our own."""
    environment = Resource.create()
    ours = Resource({SERVICE_VERSION: __version__})
    if str(environment.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        ours = ours.merge(Resource({SERVICE_NAME: "extproc"}))
    return environment.merge(ours)
