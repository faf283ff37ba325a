"""HTTP: stamps bytes as they arrive and reads them after the last one; and what shows who asks."""

import os
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import aiohttp
import msgspec

from extproc.bench.processors.collector import collect_stream, collect_whole, fail
from extproc.bench.processors.processor import (
    ChatQuery,
    NotJson,
    Processor,
    Read,
    Wiring,
    get_error,
    parse_json,
)
from extproc.bench.record import Clock, Record
from extproc.bench.spec.tree import Target
from extproc.documents import printable
from extproc.errors import ExtprocError

# After a refusal the file is read again, but no sooner than this after the last time: every request
# of a load may be refused at once.
_PAUSE_S = 1.0


class NoToken(ExtprocError):
    """There is no token to send."""


class Keys:
    """Where requests take their key from: `key`, or the file of a target that has one.

    A file is read anew every `token_refresh` and after a refusal. While it has no token the old one
    is sent.
    """

    def __init__(self, target: Target, key: str | None, clock: Clock) -> None:
        self._path, self._every_s, self._clock = target.token_file, target.token_refresh, clock
        self._key = key
        self._read_s = self._due_s = -1e300

    def get(self) -> str | None:
        """Returns the key for a request that is sent now; raises `NoToken` if there never was one."""
        if self._path is not None and self._clock() >= self._due_s:
            try:
                self._key = _read_token(self._path)
            except NoToken:
                if self._key is None:
                    raise
            self._read_s = self._clock()
            self._due_s = self._read_s + self._every_s
        return self._key

    def refuse(self) -> None:
        """Notes that the server did not take the key."""
        self._due_s = min(self._due_s, self._read_s + _PAUSE_S)


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NoToken(f"{path}: {getattr(error, 'strerror', None) or 'not text'}") from None
    if not token or not token.isascii() or not token.isprintable():
        raise NoToken(f"{path}: no token in it")
    return token


# Below the five seconds after which uvicorn, and so vLLM, closes an idle connection: a request must
# not meet a connection that the server is just closing.
_KEEPALIVE_S = 4.0


# Ten times what the longest answers take, chunk by chunk; more comes from a server that never ends.
_MOST_BYTES = 64 << 20


class HttpClient:
    """Sends what a processor makes of a request. Connections are kept and never limited here."""

    def __init__(self, wiring: Wiring, processor: Processor) -> None:
        self._wiring, self._processor = wiring, processor
        self._clock = wiring.clock
        self._keys = Keys(wiring.target, wiring.api_key, wiring.clock)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=wiring.target.timeout),
            # What is sent packed although `identity` was asked for may unpack to anything.
            auto_decompress=False,
            headers={
                "Content-Type": "application/json",
                "Accept-Encoding": "identity",
                **wiring.target.headers,
            },
            trace_configs=[_trace_sending(wiring.clock)],
        )

    async def send(self, query: ChatQuery, record: Record) -> None:
        record.started_s = self._clock()
        reads: list[Read] = []
        try:
            await self._exchange(query, record, reads)
        except TimeoutError:
            fail(record, "timeout")
        except aiohttp.ClientConnectorError as error:
            fail(record, "connect", name_fault(error))
        except (
            aiohttp.ClientOSError,
            aiohttp.ServerDisconnectedError,
            aiohttp.ClientPayloadError,
        ) as error:
            fail(record, "disconnect", name_fault(error))
        except aiohttp.ClientError as error:
            fail(record, "protocol", name_fault(error))
        except NoToken as error:
            fail(record, "no token", str(error))
        record.end_s = reads[-1][0] if reads and record.failure is None else self._clock()
        self._collect(query, record, reads)

    async def close(self) -> None:
        await self._session.close()

    async def _exchange(self, query: ChatQuery, record: Record, reads: list[Read]) -> None:
        url = self._wiring.base_url + (self._wiring.target.path or self._processor.path(query))
        body = msgspec.json.encode({**self._processor.body(query), **self._wiring.target.body})
        headers = self._processor.headers(self._keys.get())
        # A target's own headers win.
        own = {name.lower() for name in self._wiring.target.headers}
        headers = {name: value for name, value in headers.items() if name.lower() not in own}
        async with self._session.post(
            # A key must not go along to another server, and another server is not what is measured.
            url,
            data=body,
            headers=headers,
            trace_request_ctx=record,
            allow_redirects=False,
        ) as response:
            record.status = response.status
            if response.status == HTTPStatus.UNAUTHORIZED:
                self._keys.refuse()
            endpoint = response.headers.get(self._wiring.target.endpoint_header)
            record.endpoint = None if endpoint is None else printable(endpoint)
            after = response.headers.get(
                "Retry-After", ""
            )  # seconds: the date form is not worth a clock
            record.retry_after_s = float(after) if after.isascii() and after.isdigit() else None
            left = _MOST_BYTES
            async for data in response.content.iter_any():
                reads.append((self._clock(), data))
                left -= len(data)
                if left < 0:
                    response.close()
                    fail(record, "too long", f"more than {_MOST_BYTES >> 20} MiB")
                    return

    def _collect(self, query: ChatQuery, record: Record, reads: list[Read]) -> None:
        record.first_byte_s = reads[0][0] if reads else None
        if record.status is None:
            return
        if record.status >= 300:
            fail(record, f"http {record.status}", _read_refusal(reads))
        elif record.failure == "too long":
            return
        elif query.is_streaming:
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
    return (
        _name_reason(error)
        if isinstance(error, aiohttp.ClientOSError)
        else str(error) or "not HTTP"
    )


def _name_reason(error: aiohttp.ClientOSError) -> str:
    return (
        os.strerror(error.errno) if error.errno else error.strerror or "the connection was closed"
    )


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
        session: aiohttp.ClientSession,
        context: SimpleNamespace,
        params: aiohttp.TraceRequestChunkSentParams,
    ) -> None:
        del session, params
        record: Record = context.trace_request_ctx
        record.sent_s = clock()

    trace = aiohttp.TraceConfig()
    trace.on_request_chunk_sent.append(stamp)
    return trace


def _read_refusal(reads: list[Read]) -> str:
    data = b"".join(data for _, data in reads)
    try:
        message = get_error(parse_json(data))
    except NotJson:
        message = None
    return message or data.decode("utf-8", "replace")
