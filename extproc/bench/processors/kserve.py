"""gRPC: text generation over the Open Inference Protocol (`protos/kserve.proto`), as Triton serves it."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Literal

import grpc.aio
import orjson

from extproc.bench.datasets.conversation import join_prompt
from extproc.bench.datasets.text import estimate_tokens
from extproc.bench.processors.client import Wiring
from extproc.bench.processors.collector import apply_usage, fail
from extproc.bench.processors.credentials import NoToken, open_keys
from extproc.bench.processors.grpc import list_metadata, open_channel, refuse_signing
from extproc.bench.processors.kserve_pb2 import (
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from extproc.bench.processors.processor import Query, Usage
from extproc.bench.record import Record

_SERVICE = "/inference.GRPCInferenceService"
_TEXT = "text_output"
# An output's length comes before it in raw contents.
_LENGTH_BYTES = 4

Input = ModelInferRequest.InferInputTensor
Answer = tuple[float, ModelInferResponse]


@dataclass(frozen=True, slots=True)
class KServeOptions:
    """`layout`: the inputs of Triton's backend for vLLM, or those of TensorRT-LLM's ensemble.

    `is_cumulative`: an answer's pieces hold all text so far, as older vLLM backends send it.
    """

    layout: Literal["vllm", "tensorrt-llm"] = "vllm"
    is_cumulative: bool = False

    def __post_init__(self) -> None:
        if self.layout not in {"vllm", "tensorrt-llm"}:
            raise ValueError(self.layout)


class KServeClient:
    """Asks over one HTTP/2 connection: a stream for each request, or a plain call for a whole answer."""

    def __init__(self, wiring: Wiring, options: KServeOptions) -> None:
        refuse_signing(wiring)
        self._wiring, self._options, self._clock = wiring, options, wiring.clock
        self._keys = open_keys(wiring.target, wiring.api_key, wiring.clock)
        self._channel = open_channel(wiring.base_url)
        self._stream = self._channel.stream_stream(
            wiring.target.path or f"{_SERVICE}/ModelStreamInfer",
            request_serializer=ModelInferRequest.SerializeToString,
            response_deserializer=ModelStreamInferResponse.FromString,
        )
        self._infer = self._channel.unary_unary(
            wiring.target.path or f"{_SERVICE}/ModelInfer",
            request_serializer=ModelInferRequest.SerializeToString,
            response_deserializer=ModelInferResponse.FromString,
        )

    async def send(self, ask: Query, record: Record) -> None:
        record.started_s = self._clock()
        answers: list[Answer] = []
        try:
            async for answer in self._exchange(ask, record):
                answers.append(answer)  # noqa: PERF401  what came before a failure must stay
        except grpc.aio.AioRpcError as error:
            fail(record, f"grpc {error.code().name.lower()}", error.details() or "")
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                self._keys.refuse()
        except NoToken as error:
            fail(record, "no token", str(error))
        record.end_s = answers[-1][0] if answers and record.failure is None else self._clock()
        self._collect(ask, record, answers)

    async def close(self) -> None:
        await self._channel.close(grace=None)

    async def _exchange(self, ask: Query, record: Record) -> AsyncIterator[Answer]:
        """Yields answers as they arrive; what the server calls an error is noted."""
        request = build_request(ask, self._options)
        metadata = list_metadata(await self._keys.get(), self._wiring.target)
        timeout_s = self._wiring.target.timeout
        if not ask.is_streaming:
            record.sent_s = self._clock()
            response = await self._infer(request, timeout=timeout_s, metadata=metadata)
            yield self._clock(), response
            return
        call = self._stream(None, timeout=timeout_s, metadata=metadata)
        await call.write(request)
        record.sent_s = self._clock()
        await call.done_writing()
        async for piece in call:
            at_s = self._clock()
            if piece.error_message:
                fail(record, "server error", piece.error_message)
            yield at_s, piece.infer_response

    def _collect(self, ask: Query, record: Record, answers: list[Answer]) -> None:
        record.first_byte_s = answers[0][0] if answers else None
        text = ""
        for at_s, response in answers:
            said = read_text(response)
            fresh = said[len(text) :] if self._options.is_cumulative else said
            if fresh:
                text += fresh
                record.chunk_s.append(at_s)
        if not ask.is_streaming:
            record.chunk_s = []
        record.first_token_s = record.chunk_s[0] if record.chunk_s else None
        record.text = text
        record.estimated_output_tokens = estimate_tokens(text)
        apply_usage(record, Usage())


def build_request(ask: Query, options: KServeOptions) -> ModelInferRequest:
    """Returns the request; `max_tokens` goes where the layout has it."""
    request = ModelInferRequest(model_name=ask.model)
    inputs = _list_vllm if options.layout == "vllm" else _list_tensorrt
    request.inputs.extend(inputs(ask))
    return request


def _list_vllm(ask: Query) -> Iterator[Input]:
    """What Triton's vLLM backend takes: sampling as JSON in a text, of which all values may be texts."""
    yield _put_text("text_input", join_prompt(ask.messages))
    yield _put_flag("stream", value=ask.is_streaming)
    sampling = {"max_tokens": str(ask.max_tokens), "ignore_eos": True}
    yield _put_text("sampling_parameters", orjson.dumps(sampling).decode())
    yield _put_flag("exclude_input_in_output", value=True)


def _list_tensorrt(ask: Query) -> Iterator[Input]:
    """What TensorRT-LLM's ensemble takes; its tensors have a batch of one."""
    yield _put_text("text_input", join_prompt(ask.messages), shape=(1, 1))
    contents = InferTensorContents(int_contents=[ask.max_tokens])
    yield Input(name="max_tokens", datatype="INT32", shape=(1, 1), contents=contents)
    yield _put_flag("stream", value=ask.is_streaming, shape=(1, 1))


def _put_text(name: str, text: str, shape: tuple[int, ...] = (1,)) -> Input:
    contents = InferTensorContents(bytes_contents=[text.encode("utf-8", "surrogatepass")])
    return Input(name=name, datatype="BYTES", shape=shape, contents=contents)


def _put_flag(name: str, *, value: bool, shape: tuple[int, ...] = (1,)) -> Input:
    return Input(name=name, datatype="BOOL", shape=shape, contents=InferTensorContents(bool_contents=[value]))


def read_text(response: ModelInferResponse) -> str:
    """Returns the text of an answer, from its contents or its raw contents; empty where it has none."""
    for i, output in enumerate(response.outputs):
        if output.name == _TEXT:
            parts = list(output.contents.bytes_contents)
            if not parts and i < len(response.raw_output_contents):
                parts = list(_cut_raw(response.raw_output_contents[i]))
            return b"".join(parts).decode("utf-8", "replace")
    return ""


def _cut_raw(data: bytes) -> Iterator[bytes]:
    while len(data) >= _LENGTH_BYTES:
        end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        yield data[_LENGTH_BYTES:end]
        data = data[end:]
