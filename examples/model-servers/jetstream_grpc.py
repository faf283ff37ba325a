"""JetStream over gRPC: a client of one's own. Another server has another method and other messages."""

from urllib.parse import urlsplit

import grpc.aio
from jetstream_pb2 import DecodeRequest, DecodeResponse

from extproc.bench.datasets.conversation import join_prompt
from extproc.bench.load.registry import Registry
from extproc.bench.processors.collector import apply_usage, fail
from extproc.bench.processors.processor import ChatQuery, Usage, Wiring
from extproc.bench.record import Record


class JetStreamGrpc:
    def __init__(self, wiring: Wiring) -> None:
        self._clock, self._timeout_s = wiring.clock, wiring.target.timeout
        self._channel = grpc.aio.insecure_channel(urlsplit(wiring.base_url).netloc)
        self._decode = self._channel.unary_stream(
            "/jetstream_proto.Orchestrator/Decode",
            request_serializer=DecodeRequest.SerializeToString,
            response_deserializer=DecodeResponse.FromString,
        )

    async def send(self, query: ChatQuery, record: Record) -> None:
        text = DecodeRequest.TextContent(text=join_prompt(query.messages))
        request = DecodeRequest(max_tokens=query.max_tokens, text_content=text)
        record.started_s = record.sent_s = self._clock()
        tokens = 0
        try:
            async for answer in self._decode(request, timeout=self._timeout_s):
                for sample in answer.stream_content.samples:
                    record.chunk_s.append(self._clock())
                    record.text += sample.text
                    tokens += len(sample.token_ids)
        except grpc.aio.AioRpcError as error:
            fail(record, f"grpc {error.code().name.lower()}", error.details() or "")
        record.end_s = self._clock()
        record.first_byte_s = record.first_token_s = next(iter(record.chunk_s), None)
        apply_usage(record, Usage(output_tokens=tokens))

    async def close(self) -> None:
        await self._channel.close(grace=None)


def register(registry: Registry) -> None:
    registry.clients["jetstream-grpc"] = JetStreamGrpc
