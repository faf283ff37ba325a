"""Traces through a real Envoy: client, Envoy and decision are one trace, with the right parents."""

from collections.abc import Iterator

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

from tests.stack.client import MODEL, chat_about, connect, send
from tests.stack.gateway import Tree, find, load
from tests.stack.otlp import Receiver, Span, receiving, until_spans
from tests.stack.service import pool
from tests.stack.stack import Stack

pytestmark = pytest.mark.envoy

TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CLIENT_ID = "11111111-2222-4333-8444-555555555555"


@pytest.fixture(scope="module")
def collector() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def traced_stack(tmp_path_factory: pytest.TempPathFactory, collector: Receiver) -> Iterator[Stack]:
    """The shipped configuration with exactly its block for traces uncommented."""
    stack = Stack(tmp_path_factory.mktemp("traces"), otlp_port=collector.port)
    with stack.running(pool(stack.addresses, {"name": "prefix_cache"})):
        yield stack


def parents(spans: list[Span], span: Span) -> list[Span]:
    """The chain above a span, as far as it was received."""
    by_id = {each.id: each for each in spans}
    above = []
    while span.parent in by_id:
        span = by_id[span.parent]
        above.append(span)
    return above


async def test_client_envoy_and_decision_are_one_trace(
    traced_stack: Stack, collector: Receiver
) -> None:
    headers = {
        "traceparent": f"00-{TRACE}-{CLIENT}-01",
        "tracestate": "vendor=1",
        "x-request-id": CLIENT_ID,
    }
    async with connect(traced_stack.url) as session:
        answer = await send(session, chat_about("What is a trace?"), headers=headers)
    spans = until_spans(collector, 4, TRACE)
    (decision,) = [span for span in spans if span.service == "extproc"]
    stream, request = parents(spans, decision)

    assert (answer.status, answer.headers["x-request-id"]) == (200, CLIENT_ID)
    # The request's span is the client's child; of it the ext_proc stream's, and the decision's of
    # that.
    assert (request.service, stream.service) == ("envoy", "envoy")
    assert request.parent == CLIENT
    assert request.kind == decision.kind == OtlpSpan.SPAN_KIND_SERVER
    assert request.start_ns <= decision.start_ns <= decision.end_ns
    expected = {
        "extproc.pool": "vllm",
        "extproc.endpoint": answer.served_by,
        "extproc.match_tokens": 0,
    }
    expected |= {"gen_ai.request.model": MODEL, "gen_ai.operation.name": "chat"}
    assert (
        expected.items()
        <= {k: v for k, v in decision.attributes.items() if k != "extproc.candidates"}.items()
    )
    assert decision.attributes["extproc.candidates"][0] == answer.served_by


async def test_who_is_not_sampled_makes_no_span(traced_stack: Stack, collector: Receiver) -> None:
    unsampled, sampled = "1" * 32, "2" * 32
    async with connect(traced_stack.url) as session:
        for _ in range(20):
            await send(
                session, chat_about("no"), headers={"traceparent": f"00-{unsampled}-{CLIENT}-00"}
            )
        await send(session, chat_about("yes"), headers={"traceparent": f"00-{sampled}-{CLIENT}-01"})
    until_spans(collector, 4, sampled)

    assert collector.of(unsampled) == []


@pytest.mark.parametrize("shipped", ["standalone.yaml", "sidecar.yaml", "xds.yaml"])
def test_the_block_is_one_comment_in_every_shipped_file(shipped: str) -> None:
    plain, traced = load(shipped), load(shipped, marks="otlp")

    def manager(tree: Tree) -> set[str]:
        (found,) = [
            c for c in find(tree, "typed_config") if "http_filters" in c and "access_log" in c
        ][:1]
        return set(found)

    def clusters(tree: Tree) -> set[str]:
        return {cluster["name"] for cluster in tree["static_resources"]["clusters"]}

    assert manager(traced) - manager(plain) == {"tracing", "request_id_extension"}
    assert clusters(traced) - clusters(plain) == {"otlp"}
