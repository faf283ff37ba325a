"""gRPC: the Decode method of `protos/jetstream.proto`, as JetStream serves it."""

from urllib.parse import urlsplit

import grpc
import grpc.aio

from extproc.bench.datasets.conversation import join_prompt
from extproc.bench.datasets.text import estimate_tokens
from extproc.bench.processors.client import Wiring
from extproc.bench.processors.collector import apply_usage, fail
from extproc.bench.processors.jetstream_pb2 import DecodeRequest, DecodeResponse
from extproc.bench.processors.processor import Query, Usage
from extproc.bench.record import Record

_METHOD = "/jetstream_proto.Orchestrator/Decode"


class GrpcClient:
    """Asks over one HTTP/2 connection; an `https` endpoint means TLS."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring, self._clock = wiring, wiring.clock
        url = urlsplit(wiring.base_url)
        if url.scheme == "https":
            self._channel = grpc.aio.secure_channel(url.netloc, grpc.ssl_channel_credentials())
        else:
            self._channel = grpc.aio.insecure_channel(url.netloc)
        self._decode = self._channel.unary_stream(
            wiring.target.path or _METHOD,
            request_serializer=DecodeRequest.SerializeToString,
            response_deserializer=DecodeResponse.FromString,
        )
        key = {"authorization": f"Bearer {wiring.api_key}"} if wiring.api_key else {}
        self._metadata = tuple({**key, **wiring.target.headers}.items())

    async def send(self, ask: Query, record: Record) -> None:
        record.started_s = self._clock()
        responses: list[tuple[float, DecodeResponse]] = []
        try:
            await self._exchange(ask, record, responses)
        except grpc.aio.AioRpcError as error:
            fail(record, f"grpc {error.code().name.lower()}", error.details() or "")
        record.end_s = responses[-1][0] if responses and record.failure is None else self._clock()
        _collect(record, responses)

    async def close(self) -> None:
        await self._channel.close(grace=None)

    async def _exchange(
        self, ask: Query, record: Record, responses: list[tuple[float, DecodeResponse]]
    ) -> None:
        content = DecodeRequest.TextContent(text=join_prompt(ask.messages))
        request = DecodeRequest(max_tokens=ask.max_tokens, text_content=content)
        call = self._decode(request, timeout=self._wiring.target.timeout, metadata=self._metadata)
        record.sent_s = self._clock()
        async for response in call:
            responses.append((self._clock(), response))  # noqa: PERF401  what came before a failure must stay


def _collect(record: Record, responses: list[tuple[float, DecodeResponse]]) -> None:
    record.first_byte_s = responses[0][0] if responses else None
    tokens, parts = 0, []
    for at_s, response in responses:
        samples = response.stream_content.samples
        if text := "".join(sample.text for sample in samples):
            record.chunk_s.append(at_s)
            parts.append(text)
        tokens += sum(len(sample.token_ids) for sample in samples)
    record.first_token_s = record.chunk_s[0] if record.chunk_s else None
    record.text = "".join(parts)
    record.estimated_output_tokens = estimate_tokens(record.text)
    apply_usage(record, Usage(output_tokens=tokens or None))
