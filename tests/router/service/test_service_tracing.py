"""Spans by the SDK: when they are made, what they belong to, what becomes of them when nobody takes them."""

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident

import grpc.aio
import orjson
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from extproc.errors import NoEndpoint
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import ClockAndRandom
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.router.service.otel import SPAN, OtelTracer, build_exporter
from extproc.router.service.tracer import build_tracer, wants_traces
from extproc.router.stream.answers import refuse
from extproc.router.stream.events import Answer, Phase, Routed
from extproc.router.stream.names import PROCESS
from extproc.router.stream.spans import MODEL_CHARS, Origin
from tests.router.stream.conversations import headers
from tests.router.stream.wire import write
from tests.stack.otlp import Receiver, receiving, receiving_grpc, tracing_to, until_spans
from tests.stack.service import Service, pool
from tests.tables import table
from tests.waiting import wait_until

CHAT = "/v1/chat/completions"
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ORIGIN = Origin(f"00-{TRACE}-{CALLER}-01", "vendor=1", CHAT)


def routed(model: str = '"llama"') -> Routed:
    """The span of a request that names `model`, which is JSON."""
    pool = Pool("llama", PrefixCache(ClockAndRandom(random.Random(0), lambda: 0.0)))
    pool.replace([Endpoint("a", "10.0.0.1:80"), Endpoint("b", "10.0.0.2:80")])
    body = b'{"model": %s, "messages": [{"role": "user", "content": "Why?"}]}' % model.encode()
    return Routed(Phase.REQUEST_BODY, Picker([Route(pool)]).pick(Query("POST", CHAT, {}, body)))


class Kept:
    """A tracer whose spans stay here."""

    def __init__(
        self, environment: Mapping[str, str], exporter: SpanExporter | None = None
    ) -> None:
        self.exporter = InMemorySpanExporter()
        self.counts = Counter[str]()
        self.tracer = OtelTracer(exporter or self.exporter, environment, self.count)

    def count(self, result: str, count: int) -> None:
        self.counts[result] += count

    async def stop(self) -> None:
        await self.tracer.stop(30)

    async def record(self, told: Routed | Answer, origin: Origin | None = ORIGIN) -> None:
        """And stops."""
        if origin is not None:
            self.tracer.record(origin, told, 0.002)
        await self.stop()


def exporting_to(receiver: Receiver) -> OTLPSpanExporter:
    return OTLPSpanExporter(endpoint=f"http://127.0.0.1:{receiver.port}/v1/traces")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


OTLP = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}


@table(
    ("environment", "is_wanted"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x"}, False),
        (OTLP, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c:4318/v1/metrics"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (OTLP | {"OTEL_TRACES_EXPORTER": "none"}, False),
        (OTLP | {"OTEL_SDK_DISABLED": "true"}, False),
        (OTLP | {"OTEL_SDK_DISABLED": "false"}, True),
    ],
)
def test_the_standard_variables_say_whether(
    environment: dict[str, str], *, is_wanted: bool
) -> None:
    assert wants_traces(environment) is is_wanted


def run_python(code: str, environment: Mapping[str, str]) -> list[str]:
    return subprocess.check_output(
        [sys.executable, "-c", code], text=True, env=dict(environment)
    ).splitlines()


STARTED = """
import asyncio, logging, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
from extproc.router.app import Application, Start
from extproc.router.settings.reading import parse_settings
async def open_one():
    text = 'pools: [{name: llama, endpoints: {static: ["10.0.0.1:80"]}}]'
    app = Application(Start(parse_settings(text, {})))
    app.pools.apply(app.configuration.settings.pools)
    for each in app.pools:
        await each.keeper.synced.wait()
    stream = app.processor.open(type("Call", (), {"metadata": {}, "peer": ""})())
    print(app.tracer, type(stream).__name__)
    await app.pools.stop()
asyncio.run(open_one())
print([name for name in sys.modules if name.partition(".")[0] == "opentelemetry"])
"""


def test_nothing_is_imported_and_no_stream_looks_for_a_trace_unless_asked_for() -> None:
    assert run_python(STARTED, {}) == ["None _Stream", "[]"]


def test_without_the_extra_the_service_starts_and_says_so() -> None:
    without = "import sys; sys.modules['opentelemetry'] = None\n" + STARTED
    said, told, _ = run_python(without, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"})

    assert said == "no traces: opentelemetry.context is not here; install the extra `otel`"
    assert told == "None _Stream"


def test_otlp_means_http_and_an_unknown_exporter_is_a_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    odd = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}

    assert isinstance(build_exporter(OTLP), OTLPSpanExporter)
    for environment in ({"OTEL_TRACES_EXPORTER": "carrier-pigeon"}, odd):
        assert build_tracer(environment, lambda *_: None) is None
    said = caplog.messages
    assert [text.startswith("no traces: no package here exports traces by ") for text in said] == [
        True,
        True,
    ]


async def test_a_decision_is_a_span_of_its_callers_trace() -> None:
    kept = Kept({})
    await kept.record(routed())
    (span,) = kept.exporter.get_finished_spans()

    assert span.name == SPAN
    told = json.loads(span.to_json())
    assert told["parent_id"] == f"0x{CALLER}"
    assert told["context"]["trace_id"] == f"0x{TRACE}"
    assert span.context is not None
    assert span.context.trace_state.to_header() == "vendor=1"
    assert (span.end_time or 0) - (span.start_time or 0) == 2_000_000
    assert span.resource.attributes["service.name"] == "extproc"
    assert kept.counts == {"sent": 1}


async def test_a_refusal_is_a_span_and_only_ours_is_an_error() -> None:
    kept = Kept({})
    await kept.record(refuse(NoEndpoint("nobody", pool="llama"), CHAT))
    (span,) = kept.exporter.get_finished_spans()

    assert not span.status.is_ok
    assert span.attributes == {
        "gen_ai.operation.name": "chat",
        "extproc.pool": "llama",
        "extproc.outcome": "no_endpoint",
        "http.response.status_code": 503,
        "error.type": "no_endpoint",
    }


SAMPLED, UNSAMPLED = f"00-{TRACE}-{CALLER}-01", f"00-{TRACE}-{CALLER}-00"


@pytest.mark.parametrize(
    ("variables", "traceparent", "count"),
    [
        ({}, "", 0),
        ({}, UNSAMPLED, 0),
        ({}, SAMPLED, 1),
        ({}, f"00-{'0' * 32}-{CALLER}-01", 0),
        ({}, "x" * 54 + "1", 0),
        ({"": "parentbased_always_on"}, "", 1),
        ({"": "parentbased_always_on"}, UNSAMPLED, 0),
        ({"": "always_on"}, UNSAMPLED, 1),
        ({"": "always_off"}, SAMPLED, 0),
        ({"": "parentbased_always_off"}, SAMPLED, 1),
        ({"": "parentbased_traceidratio", "_ARG": "0"}, "", 0),
        ({"": "parentbased_traceidratio", "_ARG": "1"}, "", 1),
    ],
)
async def test_the_caller_samples_unless_a_variable_says_otherwise(
    variables: dict[str, str], traceparent: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {f"OTEL_TRACES_SAMPLER{name}": value for name, value in variables.items()}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    kept = Kept(environment)
    origin = kept.tracer.sampling.origin({}, {"traceparent": traceparent, ":path": CHAT})
    await kept.record(routed(), origin)

    assert len(kept.exporter.get_finished_spans()) == count


@pytest.mark.parametrize(
    "model", [r'"\ud800 half"', '"' + "x " * 50_000 + '"', r'"\u0000\u001b[31m"', '"ü€😀"']
)
async def test_a_hostile_model_is_cut_text_that_a_receiver_can_read(
    model: str, receiver: Receiver
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in tracing_to(receiver.port).items():
            patch.setenv(name, value)
        kept = Kept({}, OTLPSpanExporter())
    await kept.record(routed(model))
    (span,) = until_spans(receiver, 1)

    assert kept.counts == {"sent": 1}
    expected = orjson.loads(model.replace(r"\ud800", "?"))[:MODEL_CHARS]
    assert span.attributes["gen_ai.request.model"] == expected


async def test_who_takes_no_spans_costs_spans_and_nobody_waits(receiver: Receiver) -> None:
    """The receiver hangs: the queue fills, what finds no room is counted, another thread does the waiting."""
    receiver.answers.clear()
    exporter = Threads(exporting_to(receiver))
    environment = {"OTEL_BSP_MAX_QUEUE_SIZE": "600"}
    kept = Kept(environment, exporter)
    told = routed()
    for _ in range(600):
        kept.tracer.record(ORIGIN, told, 0.001)
    await asyncio.to_thread(wait_until, lambda: exporter.taken >= 512)
    for _ in range(2_000):
        kept.tracer.record(ORIGIN, told, 0.001)

    assert kept.counts["dropped"] == 2_600 - 600 - exporter.taken
    assert get_ident() not in exporter.threads
    receiver.answers.set()
    await kept.stop()
    assert kept.counts["sent"] + kept.counts["dropped"] == 2_600
    assert len(receiver.spans) == kept.counts["sent"]


class Threads(SpanExporter):
    """Says who sends, and how much was taken from the queue."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.taken = 0
        self.threads = set[int]()
        self._exporter = exporter

    def export(self, spans):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201  # the base's types
        self.threads.add(get_ident())
        self.taken += len(spans)
        return self._exporter.export(spans)

    def shutdown(self) -> None:
        self._exporter.shutdown()


async def test_what_a_receiver_refuses_is_counted(receiver: Receiver) -> None:
    receiver.status = 400
    kept = Kept({}, exporting_to(receiver))
    await kept.record(routed())

    assert kept.counts == {"refused": 1}


async def test_a_span_that_cannot_be_made_harms_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept({})

    def fail(*_: object) -> None:
        raise RuntimeError("the prompt says: secret")

    monkeypatch.setattr("extproc.router.service.otel.describe_span", fail)
    await kept.record(routed())

    assert kept.counts == {"dropped": 1}
    assert caplog.messages == ["no span: RuntimeError"]


async def test_the_end_does_not_wait_for_the_answer_of_a_receiver_that_hangs(
    receiver: Receiver,
) -> None:
    receiver.answers.clear()
    kept = Kept({}, exporting_to(receiver))
    kept.tracer.record(ORIGIN, routed(), 0.001)
    await kept.tracer.stop(0.2)

    # The exporter alone would wait 10 s for its answer, and count it.
    assert kept.counts == {}


@contextmanager
def serving(folder: Path, receiver: Receiver, **variables: str) -> Iterator[Service]:
    service = Service(folder, environment=tracing_to(receiver.port) | variables)
    service.configure([pool(["127.0.0.1:1"])])
    with service:
        service.wait_ready()
        yield service


async def decide(service: Service) -> None:
    """One sampled request from its headers to its end."""
    async with grpc.aio.insecure_channel(service.listen) as channel:
        call = channel.stream_stream(PROCESS, None, None)(None)
        await call.write(write(headers(end=True, traceparent=ORIGIN.traceparent)))
        await call.read()
        await call.done_writing()
        await call.code()


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, True])
async def test_a_drain_sends_what_waits_and_ends(
    tmp_path: Path, receiver: Receiver, *, hangs: bool
) -> None:
    if hangs:
        receiver.answers.clear()
    # Long: nothing is sent before the end.
    with serving(tmp_path, receiver, OTEL_BSP_SCHEDULE_DELAY="600000") as service:
        await decide(service)
        assert receiver.spans == []
        service.send(signal.SIGTERM)
        assert await asyncio.to_thread(service.wait, 60) == 0

    assert [span.trace for span in receiver.spans] == ([] if hangs else [TRACE])


async def test_spans_leave_over_grpc_where_the_variable_says_so(tmp_path: Path) -> None:
    """The service as it runs, with the exporter's own package, and a receiver on the official gRPC."""
    with (
        receiving_grpc() as receiver,
        serving(tmp_path, receiver, OTEL_EXPORTER_OTLP_PROTOCOL="grpc") as service,
    ):
        await decide(service)
        [span] = await asyncio.to_thread(until_spans, receiver, 1, TRACE, 60)
        service.send(signal.SIGTERM)
        assert await asyncio.to_thread(service.wait, 60) == 0

    assert (span.service, span.name, span.parent) == ("extproc", SPAN, CALLER)
    assert span.attributes["extproc.pool"] == "vllm"
