"""HTTP: stamps bytes as they arrive and reads them after the last one."""

import os
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType, SimpleNamespace

import aiohttp
import orjson

from extproc.bench.processors.collector import Read, collect_stream, collect_whole, fail
from extproc.bench.processors.credentials import Keys, NoToken
from extproc.bench.processors.processor import ChatQuery, Processor, Wiring, get_error
from extproc.bench.record import Clock, Record

# Below the five seconds after which uvicorn, and so vLLM, closes an idle connection: a request must
# not meet a connection that the server is just closing.
_KEEPALIVE_S = 4.0


class HttpClient:
    """Sends what a processor makes of a request. Connections are kept and never limited here."""

    def __init__(self, wiring: Wiring, processor: Processor) -> None:
        self._wiring, self._processor = wiring, processor
        self._clock = wiring.clock
        self._keys = Keys(wiring.target, wiring.api_key, wiring.clock)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=wiring.target.timeout),
            headers={
                "Content-Type": "application/json",
                "Accept-Encoding": "identity",
                **wiring.target.headers,
            },
            trace_configs=[_trace_sending(wiring.clock)],
        )

    async def send(self, ask: ChatQuery, record: Record) -> None:
        record.started_s = self._clock()
        reads: list[Read] = []
        try:
            await self._exchange(ask, record, reads)
        except TimeoutError:
            fail(record, "timeout")
        except aiohttp.ClientConnectorError as error:
            fail(record, "connect", name_fault(error))
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError, aiohttp.ClientPayloadError) as error:
            fail(record, "disconnect", name_fault(error))
        except aiohttp.ClientError as error:
            fail(record, "protocol", name_fault(error))
        except NoToken as error:
            fail(record, "no token", str(error))
        record.end_s = reads[-1][0] if reads and record.failure is None else self._clock()
        self._collect(ask, record, reads)

    async def close(self) -> None:
        await self._session.close()

    async def _exchange(self, ask: ChatQuery, record: Record, reads: list[Read]) -> None:
        url = self._wiring.base_url + (self._wiring.target.path or self._processor.path(ask))
        body = orjson.dumps({**self._processor.body(ask), **self._wiring.target.body})
        headers = self._processor.headers(self._keys.get())
        # A target's own headers win.
        own = {name.lower() for name in self._wiring.target.headers}
        headers = {name: value for name, value in headers.items() if name.lower() not in own}
        async with self._session.post(url, data=body, headers=headers, trace_request_ctx=record) as response:
            record.status = response.status
            if response.status == HTTPStatus.UNAUTHORIZED:
                self._keys.refuse()
            record.endpoint = response.headers.get(self._wiring.target.endpoint_header)
            record.retry_after_s = _read_retry_after(response.headers.get("Retry-After"))
            async for data in response.content.iter_any():
                reads.append((self._clock(), data))  # noqa: PERF401  what came before a failure must stay

    def _collect(self, ask: ChatQuery, record: Record, reads: list[Read]) -> None:
        record.first_byte_s = reads[0][0] if reads else None
        if record.status is None:
            return
        if record.status >= 300:
            fail(record, f"http {record.status}", _read_refusal(reads))
        elif ask.is_streaming:
            collect_stream(record, reads, self._processor)
        elif record.failure is None:
            collect_whole(record, reads, self._processor)


def name_fault(error: aiohttp.ClientError) -> str:
    """What went wrong in plain words, without aiohttp's own."""
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, tuple(_FAULTS)):
        return f"{error.host}:{error.port}: {_name_reason(error)}"
    for kind, text in _FAULTS.items():
        if isinstance(error, kind):
            return text
    return _name_reason(error) if isinstance(error, aiohttp.ClientOSError) else str(error) or "not HTTP"


def _name_reason(error: aiohttp.ClientOSError) -> str:
    return os.strerror(error.errno) if error.errno else error.strerror or "the connection was closed"


# The more special before the more general.
_FAULTS: Mapping[type[aiohttp.ClientError], str] = MappingProxyType(
    {
        aiohttp.ClientConnectorDNSError: "no such host",
        aiohttp.ClientConnectorCertificateError: "the server's certificate is not trusted",
        aiohttp.ClientConnectorSSLError: "the server does not speak TLS as this machine does",
        aiohttp.ServerDisconnectedError: "the server closed the connection",
        aiohttp.ContentTypeError: "the answer is no JSON",
        aiohttp.ClientPayloadError: "the answer was cut short",
        aiohttp.InvalidURL: "not a URL",
    }
)


def _trace_sending(clock: Clock) -> aiohttp.TraceConfig:
    """Stamps `sent_s` when the body is written: after the connection is there."""

    async def stamp(
        session: aiohttp.ClientSession, context: SimpleNamespace, params: aiohttp.TraceRequestChunkSentParams
    ) -> None:
        del session, params
        record: Record = context.trace_request_ctx
        record.sent_s = clock()

    trace = aiohttp.TraceConfig()
    trace.on_request_chunk_sent.append(stamp)
    return trace


def _read_retry_after(value: str | None) -> float | None:
    """Reads the seconds form; the date form is not worth a clock."""
    return float(value) if value is not None and value.isascii() and value.isdigit() else None


def _read_refusal(reads: list[Read]) -> str:
    data = b"".join(data for _, data in reads)
    try:
        message = get_error(orjson.loads(data))
    except orjson.JSONDecodeError:
        message = None
    return message or data.decode("utf-8", "replace")
