"""The gRPC client against a server of the documented method."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from extproc.bench.processors.client import Wiring
from extproc.bench.processors.grpc import GrpcClient
from extproc.bench.processors.jetstream_pb2 import DecodeRequest, DecodeResponse
from extproc.bench.record import Record, RunClock
from extproc.bench.spec.tree import Target
from tests.bench.scripted import ASK

Context = grpc.aio.ServicerContext[DecodeRequest, DecodeResponse]
Decode = Callable[[DecodeRequest, Context], AsyncIterator[DecodeResponse]]


def piece(text: str) -> DecodeResponse:
    sample = DecodeResponse.StreamContent.Sample(text=text, token_ids=[1])
    return DecodeResponse(stream_content=DecodeResponse.StreamContent(samples=[sample]))


@asynccontextmanager
async def serving(decode: Decode) -> AsyncIterator[int]:
    server = grpc.aio.server()
    handler = grpc.unary_stream_rpc_method_handler(
        decode,
        request_deserializer=DecodeRequest.FromString,
        response_serializer=DecodeResponse.SerializeToString,
    )
    service = grpc.method_handlers_generic_handler("jetstream_proto.Orchestrator", {"Decode": handler})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def ask(decode: Decode, target: Target | None = None) -> Record:
    record = Record(0, 0, 0, 0.0, estimated_input_tokens=4)
    async with serving(decode) as port:
        wiring = Wiring(f"http://127.0.0.1:{port}", target or Target(), "secret", RunClock())
        client = GrpcClient(wiring)
        await client.send(ASK, record)
        await client.close()
    return record


async def test_pieces_are_stamped_as_they_arrive() -> None:
    asked: list[DecodeRequest] = []
    yielded_s: list[float] = []

    async def decode(request: DecodeRequest, context: Context) -> AsyncIterator[DecodeResponse]:
        del context
        asked.append(request)
        yield piece("")
        for wait_s, text in ((0.2, "hel"), (0.1, "lo")):
            await asyncio.sleep(wait_s)
            yielded_s.append(asyncio.get_running_loop().time())
            yield piece(text)

    record = await ask(decode)

    assert (asked[0].text_content.text, asked[0].max_tokens) == ("hello there", 10)
    assert record.is_ok
    assert (record.text, record.output_tokens, record.input_tokens) == ("hello", 3, 4)
    assert record.first_token_s == record.chunk_s[0]
    assert record.sent_s is not None
    assert record.chunk_s[0] - record.sent_s >= 0.2
    gap_s = record.chunk_s[1] - record.chunk_s[0]
    assert gap_s == pytest.approx(yielded_s[1] - yielded_s[0], abs=0.05)


async def test_overload_is_a_failure_of_its_own_kind() -> None:
    async def decode(request: DecodeRequest, context: Context) -> AsyncIterator[DecodeResponse]:
        del request
        yield piece("a")
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full")

    record = await ask(decode)

    assert (record.failure, record.failure_detail) == ("grpc resource_exhausted", "queue is full")
    assert record.text == "a"


async def test_server_that_says_nothing_exceeds_its_deadline() -> None:
    async def decode(request: DecodeRequest, context: Context) -> AsyncIterator[DecodeResponse]:
        del request, context
        await asyncio.sleep(5)
        yield piece("late")

    record = await ask(decode, Target(timeout=0.2))

    assert record.failure == "grpc deadline_exceeded"


async def test_key_travels_as_metadata() -> None:
    seen: dict[str, str | bytes] = {}

    async def decode(request: DecodeRequest, context: Context) -> AsyncIterator[DecodeResponse]:
        del request
        seen.update(dict(context.invocation_metadata() or ()))
        yield piece("a")

    await ask(decode, Target(headers={"x-team": "blue"}))

    assert seen["authorization"] == "Bearer secret"
    assert seen["x-team"] == "blue"
