"""The two calls of the Kubernetes API that we make: list a Service's EndpointSlices, and watch them.

Authentication, certificates and the token's refresh are the `kubernetes` client's; the JSON is read raw.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import ClientError, ClientResponse, StreamReader
from kubernetes.aio.client import ApiClient, DiscoveryV1Api

from extproc.cluster.decoding import Unreadable, decode
from extproc.cluster.reason import describe, shorten
from extproc.cluster.slices import EndpointSlice, EndpointSliceList
from extproc.errors import ExtprocError

OpenClient = Callable[[], Awaitable[ApiClient]]


class WatchLost(ExtprocError):
    """A list or a watch came to a bad end; `why` is one of a few fixed words.

    `keeps_version` says whether the next watch may go on from the version of this one: it survives what
    the network does, not what the server says. `retry_after_s` is when the server wants to be asked again.
    """

    def __init__(
        self, why: str, message: str, *, keeps_version: bool = False, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.why = why
        self.keeps_version = keeps_version
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Patience:
    """How long we wait for the API server, seconds.

    `answer_s` is for the whole of a list, and for a watch to begin. `silence_s` is how long a watch may
    be silent: the API server sends a bookmark every 60 s, give or take a quarter.
    """

    answer_s: float = 30.0
    silence_s: float = 100.0


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 500
    message: str = ""


class SliceApi:
    """The EndpointSlices of one Service. Both calls raise `WatchLost`, and nothing else of their own."""

    def __init__(self, client: ApiClient, namespace: str, service: str, patience: Patience) -> None:
        self._api = DiscoveryV1Api(client)
        self._namespace = namespace
        self._selector = f"kubernetes.io/service-name={service}"
        self._patience = patience

    async def list(self) -> EndpointSliceList:
        """Asks for all slices as of now: no resourceVersion, so never a stale list of a lagging server.

        A Service of 2,000 pods has 20 slices and needs no pages.
        """
        with _losses():
            async with asyncio.timeout(self._patience.answer_s):
                response = await self._get(self._patience.answer_s)
                return decode(await response.read(), EndpointSliceList)

    async def watch(self, version: str, timeout_s: int) -> AsyncGenerator[tuple[str, EndpointSlice]]:
        """Yields what happens after `version` until the server ends the watch, after `timeout_s` or before.

        An event is ADDED, MODIFIED or DELETED with its slice, or BOOKMARK with a version alone.
        """
        with _losses():
            async with asyncio.timeout(self._patience.answer_s):
                response = await self._get(
                    timeout_s + self._patience.silence_s,
                    watch=True,
                    resource_version=version,
                    allow_watch_bookmarks=True,
                    timeout_seconds=timeout_s,
                )
            async with response, aclosing(_lines(response.content, self._patience.silence_s)) as lines:
                async for line in lines:
                    yield read_event(line)

    async def _get(self, timeout_s: float, **parameters: Any) -> ClientResponse:
        response: ClientResponse = await self._api.list_namespaced_endpoint_slice_without_preload_content(
            self._namespace, label_selector=self._selector, _request_timeout=float(timeout_s), **parameters
        )
        if response.status != 200:
            async with response:
                after = response.headers.get("retry-after", "")
                raise _refusal(response.status, await response.content.read(4096), after)
        return response


async def _lines(content: StreamReader, silence_s: float) -> AsyncGenerator[bytes]:
    # `readany` loses nothing when it is cancelled, `readline` the half of a line that it holds.
    rest = b""
    while True:
        async with asyncio.timeout(silence_s):
            chunk = await content.readany()
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in filter(None, lines):
            yield line
    if rest:
        raise WatchLost("connection", "the watch ended within a line", keeps_version=True)


def read_event(line: bytes) -> tuple[str, EndpointSlice]:
    """Reads a line of a watch: the event's type and slice.

    Raises `Unreadable`, and for an ERROR event `WatchLost`.
    """
    event = decode(line, _Event)
    if event.type == "ERROR":
        status = decode(event.object, _Status)
        raise _loss(status.code, status.message)
    return event.type, decode(event.object, EndpointSlice)


def _refusal(code: int, body: bytes, after: str) -> WatchLost:
    try:
        message = decode(body, _Status).message
    except Unreadable:
        message = "no reason given"
    return _loss(code, message, read_retry_after(after))


def read_retry_after(text: str) -> int | None:
    """Reads `Retry-After` in seconds; `None` for 0 and for what is none.

    The API server never sends its other form, a date. Nobody is believed who wants to be left alone for
    longer than two minutes.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return min(int(text), 120) or None


def _loss(code: int, message: str, retry_after_s: int | None = None) -> WatchLost:
    words = {401: "unauthorized", 403: "forbidden", 410: "expired", 429: "throttled"}
    why = words.get(code, "server_error")
    return WatchLost(why, shorten(f"{code}: {message}"), retry_after_s=retry_after_s)


@contextmanager
def _losses() -> Iterator[None]:
    """Tells every way in which a call can fail as `WatchLost`."""
    try:
        yield
    except TimeoutError as error:
        raise WatchLost("stalled", "no word from the API server", keeps_version=True) from error
    except (ClientError, OSError) as error:
        raise WatchLost("connection", describe(error), keeps_version=True) from error
    except Unreadable as error:
        raise WatchLost("garbled", shorten(str(error))) from error
