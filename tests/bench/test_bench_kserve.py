"""The client of the Open Inference Protocol against a real gRPC server that speaks it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import orjson
import pytest

from extproc.bench.experiments.run import run
from extproc.bench.load.registry import build_registry
from extproc.bench.processors.client import Client, Wiring
from extproc.bench.processors.kserve import read_text
from extproc.bench.processors.kserve_pb2 import (
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from extproc.bench.processors.processor import Query
from extproc.bench.record import Record, RunClock
from extproc.bench.spec.tree import Target
from extproc.errors import SettingsError
from tests.bench.scripted import ASK
from tests.bench.test_bench_runner import Silence, build_spec

Context = grpc.aio.ServicerContext[Any, Any]
Stream = Callable[[AsyncIterator[ModelInferRequest], Context], AsyncIterator[ModelStreamInferResponse]]
SERVICE = "inference.GRPCInferenceService"


def whole(text: str, *, is_raw: bool = False) -> ModelInferResponse:
    """An answer as Triton sends it, raw, or as the protocol has it."""
    output = ModelInferResponse.InferOutputTensor(name="text_output", datatype="BYTES", shape=[1])
    data = text.encode()
    if is_raw:
        raw = len(data).to_bytes(4, "little") + data
        return ModelInferResponse(outputs=[output], raw_output_contents=[raw])
    output.contents.CopyFrom(InferTensorContents(bytes_contents=[data]))
    return ModelInferResponse(outputs=[output])


def piece(text: str, *, is_raw: bool = False) -> ModelStreamInferResponse:
    return ModelStreamInferResponse(infer_response=whole(text, is_raw=is_raw))


@asynccontextmanager
async def serving(stream: Stream, infer: Any = None) -> AsyncIterator[int]:
    async def refuse(request: ModelInferRequest, context: Context) -> ModelInferResponse:
        del request
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "decoupled models stream only")
        raise AssertionError

    handlers = {
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(
            stream,
            request_deserializer=ModelInferRequest.FromString,
            response_serializer=ModelStreamInferResponse.SerializeToString,
        ),
        "ModelInfer": grpc.unary_unary_rpc_method_handler(
            infer or refuse,
            request_deserializer=ModelInferRequest.FromString,
            response_serializer=ModelInferResponse.SerializeToString,
        ),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def open_client(port: int, **target: Any) -> Client:
    known = Target.model_validate({"api": "kserve-grpc", **target})
    build = build_registry().client(known.api.name)
    return build(Wiring(f"http://127.0.0.1:{port}", known, "secret", RunClock()))


async def ask(stream: Stream, infer: Any = None, query: Query = ASK, **target: Any) -> Record:
    record = Record(0, 0, 0, 0.0, estimated_input_tokens=4)
    async with serving(stream, infer) as port:
        client = open_client(port, **target)
        await client.send(query, record)
        await client.close()
    return record


@pytest.mark.parametrize("is_raw", [False, True])
async def test_pieces_are_stamped_as_they_arrive(is_raw: bool) -> None:
    asked: list[ModelInferRequest] = []

    async def stream(
        requests: AsyncIterator[ModelInferRequest], context: Context
    ) -> AsyncIterator[ModelStreamInferResponse]:
        del context
        async for request in requests:
            asked.append(request)
            for text in ("hel", "", "lo ", "wörld"):
                await asyncio.sleep(0.05)
                yield piece(text, is_raw=is_raw)

    record = await ask(stream)

    (request,) = asked
    inputs = {each.name: each.contents for each in request.inputs}
    assert request.model_name == "m"
    assert inputs["text_input"].bytes_contents == [b"hello there"]
    assert inputs["stream"].bool_contents == [True]
    assert orjson.loads(inputs["sampling_parameters"].bytes_contents[0])["max_tokens"] == "10"
    assert record.is_ok
    assert (record.text, len(record.chunk_s)) == ("hello wörld", 3)
    assert record.sent_s is not None
    assert record.first_token_s == record.chunk_s[0] >= record.sent_s + 0.05
    assert record.chunk_s == sorted(record.chunk_s)


async def test_tensorrts_ensemble_gets_its_own_inputs() -> None:
    asked: list[ModelInferRequest] = []

    async def stream(
        requests: AsyncIterator[ModelInferRequest], context: Context
    ) -> AsyncIterator[ModelStreamInferResponse]:
        del context
        async for request in requests:
            asked.append(request)
            yield piece("a")

    await ask(stream, api={"name": "triton-grpc", "layout": "tensorrt-llm"})

    tensors = {each.name: (each.datatype, list(each.shape)) for each in asked[0].inputs}
    assert tensors == {
        "text_input": ("BYTES", [1, 1]),
        "max_tokens": ("INT32", [1, 1]),
        "stream": ("BOOL", [1, 1]),
    }


async def test_answers_that_hold_all_text_so_far_are_told_apart() -> None:
    async def stream(
        requests: AsyncIterator[ModelInferRequest], context: Context
    ) -> AsyncIterator[ModelStreamInferResponse]:
        del context
        async for _ in requests:
            for text in ("a", "ab", "ab", "abc"):
                yield piece(text)

    record = await ask(stream, api={"name": "kserve-grpc", "is-cumulative": True})

    assert (record.text, len(record.chunk_s)) == ("abc", 3)


async def test_error_within_a_stream_is_the_servers() -> None:
    async def stream(
        requests: AsyncIterator[ModelInferRequest], context: Context
    ) -> AsyncIterator[ModelStreamInferResponse]:
        del context
        async for _ in requests:
            yield piece("a")
            yield ModelStreamInferResponse(error_message="out of memory")

    record = await ask(stream)

    assert (record.failure, record.failure_detail, record.text) == ("server error", "out of memory", "a")


async def test_status_is_a_failure_and_the_key_travels() -> None:
    seen: dict[str, str | bytes] = {}

    async def stream(
        requests: AsyncIterator[ModelInferRequest], context: Context
    ) -> AsyncIterator[ModelStreamInferResponse]:
        seen.update(dict(context.invocation_metadata() or ()))
        async for _ in requests:
            yield piece("a")
        await context.abort(grpc.StatusCode.UNAVAILABLE, "no such model")

    record = await ask(stream)

    assert seen["authorization"] == "Bearer secret"
    assert (record.failure, record.failure_detail) == ("grpc unavailable", "no such model")


async def test_whole_answer_is_a_plain_call() -> None:
    async def stream(
        requests: AsyncIterator[ModelInferRequest], context: Context
    ) -> AsyncIterator[ModelStreamInferResponse]:
        del requests, context
        yield piece("never")

    async def infer(request: ModelInferRequest, context: Context) -> ModelInferResponse:
        del context
        return whole(f"{request.model_name} says all", is_raw=True)

    query = Query(ASK.model, ASK.messages, ASK.max_tokens, is_streaming=False)
    record = await ask(stream, infer, query)

    assert (record.text, record.chunk_s, record.first_token_s) == ("m says all", [], None)
    assert record.is_ok


async def test_run_over_the_protocol_counts_every_request() -> None:
    async def stream(
        requests: AsyncIterator[ModelInferRequest], context: Context
    ) -> AsyncIterator[ModelStreamInferResponse]:
        del context
        async for _ in requests:
            yield piece("bab ")
            yield piece("bab ")

    async with serving(stream) as port:
        target = {"model": "m", "api": "kserve-grpc"}
        result = await run(
            build_spec(port, {"req-rate": 30, "total-prompts": 12}, target=target), progress=Silence()
        )

    assert [record.text for record in result.records] == ["bab bab "] * 12


@pytest.mark.parametrize("api", [{"layout": "other"}, {"speed": 1}])
def test_options_that_there_are_not_are_refused(api: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="no such options"):
        open_client(1, api={"name": "kserve-grpc", **api})


def test_answer_without_text_is_empty() -> None:
    assert read_text(ModelInferResponse()) == ""
