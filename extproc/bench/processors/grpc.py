"""gRPC: the Decode method of `protos/jetstream.proto`, as JetStream serves it."""

from urllib.parse import urlsplit

import grpc
import grpc.aio

from extproc.bench.datasets.conversation import join_prompt
from extproc.bench.datasets.text import estimate_tokens
from extproc.bench.processors.client import Wiring
from extproc.bench.processors.collector import apply_usage, fail
from extproc.bench.processors.credentials import NoToken, open_keys
from extproc.bench.processors.jetstream_pb2 import DecodeRequest, DecodeResponse
from extproc.bench.processors.processor import Query, Usage
from extproc.bench.record import Record
from extproc.bench.spec.tree import Target
from extproc.errors import SettingsError

_METHOD = "/jetstream_proto.Orchestrator/Decode"


class GrpcClient:
    """Asks over one HTTP/2 connection; an `https` endpoint means TLS."""

    def __init__(self, wiring: Wiring) -> None:
        refuse_signing(wiring)
        self._wiring, self._clock = wiring, wiring.clock
        self._keys = open_keys(wiring.target, wiring.api_key, wiring.clock)
        self._channel = open_channel(wiring.base_url)
        self._decode = self._channel.unary_stream(
            wiring.target.path or _METHOD,
            request_serializer=DecodeRequest.SerializeToString,
            response_deserializer=DecodeResponse.FromString,
        )

    async def send(self, ask: Query, record: Record) -> None:
        record.started_s = self._clock()
        responses: list[tuple[float, DecodeResponse]] = []
        try:
            await self._exchange(ask, record, responses)
        except grpc.aio.AioRpcError as error:
            fail(record, f"grpc {error.code().name.lower()}", error.details() or "")
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                self._keys.refuse()
        except NoToken as error:
            fail(record, "no token", str(error))
        record.end_s = responses[-1][0] if responses and record.failure is None else self._clock()
        _collect(record, responses)

    async def close(self) -> None:
        await self._channel.close(grace=None)

    async def _exchange(
        self, ask: Query, record: Record, responses: list[tuple[float, DecodeResponse]]
    ) -> None:
        content = DecodeRequest.TextContent(text=join_prompt(ask.messages))
        request = DecodeRequest(max_tokens=ask.max_tokens, text_content=content)
        metadata = list_metadata(await self._keys.get(), self._wiring.target)
        call = self._decode(request, timeout=self._wiring.target.timeout, metadata=metadata)
        record.sent_s = self._clock()
        async for response in call:
            responses.append((self._clock(), response))  # noqa: PERF401  what came before a failure must stay


def open_channel(base_url: str) -> grpc.aio.Channel:
    url = urlsplit(base_url)
    if url.scheme == "https":
        return grpc.aio.secure_channel(url.netloc, grpc.ssl_channel_credentials())
    return grpc.aio.insecure_channel(url.netloc)


def list_metadata(key: str | None, target: Target) -> tuple[tuple[str, str], ...]:
    """The key and the target's own headers, which win."""
    bearer = {"authorization": f"Bearer {key}"} if key else {}
    return tuple({**bearer, **target.headers}.items())


def refuse_signing(wiring: Wiring) -> None:
    if wiring.target.sign is not None:
        raise SettingsError(f"target.sign: signs HTTP requests, not those of {wiring.target.api.name}")


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
