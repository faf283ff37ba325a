"""The two calls of the Kubernetes API that we make, for any kind of object: list, and watch.

Authentication, certificates and the token's refresh are the `kubernetes` client's; the JSON is read
raw.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import msgspec
from aiohttp import ClientError, ClientResponse, StreamReader

from extproc.errors import ExtprocError
from extproc.router.cluster.reason import describe_error, shorten

if TYPE_CHECKING:
    from kubernetes.aio.client import ApiClient

OpenClient = Callable[[], Awaitable["ApiClient"]]

# A page of pods is decoded in a few milliseconds, in which no request is picked for.
_PAGE: Final = 100
_PAGE_BYTES: Final = 64 * 1024 * 1024
# etcd holds no object over 1.5 MiB; as JSON it is a little more.
_LINE_BYTES: Final = 8 * 1024 * 1024

# Ends of a watch that are as they should be: its time was over, or the server's history, or nothing
# happened.
_NORMAL: Final = frozenset({"closed", "expired", "silent"})


class ObjectMeta(msgspec.Struct, rename="camel"):
    """What we read of the metadata that every object has; only the declared is decoded."""

    name: str = ""
    namespace: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None


class Unreadable(ExtprocError):
    """Bytes are not the JSON of the expected type."""


class KubeObject(Protocol):
    """An object as a list or an event holds it: a msgspec struct of the fields that are read."""

    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=KubeObject)
V = TypeVar("V")


def decode_json(data: bytes | msgspec.Raw, type_: type[V]) -> V:
    """Decodes JSON into `type_`, skipping what it does not declare. Raises `Unreadable` and nothing else."""
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from error
    except RecursionError:
        raise Unreadable("nested too deeply") from None


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """Objects of one kind in one namespace (in all where it is empty), restricted by selectors.

    `api` is the group and version, as `discovery.k8s.io/v1`; `v1` is the core. `field_selector`
    with `metadata.name=` is a list of one, and what a Role with resourceNames allows.
    """

    api: str
    namespace: str
    plural: str
    type: type[T]
    label_selector: str = ""
    field_selector: str = ""

    @property
    def path(self) -> str:
        root = f"/apis/{self.api}" if "/" in self.api else f"/api/{self.api}"
        namespace = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}{namespace}/{self.plural}"

    @property
    def query(self) -> list[tuple[str, str]]:
        selectors = [("labelSelector", self.label_selector), ("fieldSelector", self.field_selector)]
        return [(name, text) for name, text in selectors if text]


class WatchLost(ExtprocError):
    """A list or a watch came to an end; `why` is one of a few fixed words.

    `keeps_version` says whether the next watch may go on from the version of this one: it survives
    what the network does, not what the server says. `retry_after_s` is the server's own
    `Retry-After`.
    """

    def __init__(
        self,
        why: str,
        message: str,
        *,
        keeps_version: bool = False,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.why = why
        self.keeps_version = keeps_version
        self.retry_after_s = retry_after_s

    @property
    def reason(self) -> str | None:
        """What failed, in one line; `None` for an end that is as it should be."""
        return None if self.why in _NORMAL else str(self)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long we wait for the API server, seconds.

    `answer_s` is for a whole page of a list, and for a watch to begin. After `silence_s` of silence
    a watch begins anew: the API server sends a bookmark every 60 s, give or take a quarter, but
    none on a kind that nobody changes, until etcd notifies of its progress (every 10 min by
    default).
    """

    answer_s: float = 30.0
    silence_s: float = 90.0


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str
    continue_: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 500
    message: str = ""


class KubeApi(msgspec.Struct, Generic[T]):
    """The objects of one resource. Both calls raise `WatchLost`, and nothing else of their own."""

    _client: "ApiClient"
    _resource: Resource[T]
    _patience: Patience

    async def list(self) -> tuple[str, list[T]]:
        """Returns the version from where a watch goes on, and all objects as of it.

        Asks for them as they are now: no resourceVersion, so never a stale list of a lagging
        server. In pages, all of one version (`limit` and `continue`, API concepts of Kubernetes).
        """
        items: list[T] = []
        token = ""
        while True:
            page = await self._page(token)
            for raw in page.items or ():
                with _losses():
                    items.append(decode_json(raw, self._resource.type))
            token = page.metadata.continue_
            if not token:
                return page.metadata.resource_version, items

    async def watch(
        self, version: str, timeout_s: int, on_accept: Callable[[], None]
    ) -> AsyncGenerator[tuple[str, T]]:
        """Yields what happens after `version` until the server ends the watch, after `timeout_s` or before.

        An event is ADDED, MODIFIED or DELETED with its object, or BOOKMARK with a version alone.
        `on_accept` is called when the server has taken the watch: it answers, and needs no new
        list.
        """
        with _losses():
            async with asyncio.timeout(self._patience.answer_s):
                response = await self._get(
                    timeout_s + self._patience.silence_s,
                    watch="true",
                    resourceVersion=version,
                    allowWatchBookmarks="true",
                    timeoutSeconds=str(timeout_s),
                )
            on_accept()
            async with (
                response,
                aclosing(_lines(response.content, self._patience.silence_s)) as lines,
            ):
                async for line in lines:
                    yield read_event(line, self._resource.type)

    async def _page(self, token: str) -> _Page:
        going_on = {"continue": token} if token else {}
        with _losses():
            async with asyncio.timeout(self._patience.answer_s):
                response = await self._get(self._patience.answer_s, limit=str(_PAGE), **going_on)
                async with response:
                    return decode_json(await _read(response.content), _Page)

    async def _get(self, timeout_s: float, **parameters: str) -> ClientResponse:
        request = await self._client.param_serialize(
            method="GET",
            resource_path=self._resource.path,
            query_params=[*self._resource.query, *parameters.items()],
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        answer = await self._client.call_api(
            *request, _preload_content=False, _request_timeout=float(timeout_s)
        )
        response: ClientResponse = answer.response
        if response.status != 200:
            async with response:
                after = response.headers.get("retry-after", "")
                raise _refusal(response.status, await response.content.read(4096), after)
        return response


async def _read(content: StreamReader) -> bytes:
    chunks, size = [], 0
    async for chunk in content.iter_any():
        size += len(chunk)
        if size > _PAGE_BYTES:
            raise Unreadable(f"a list of more than {_PAGE_BYTES} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


async def _lines(content: StreamReader, silence_s: float) -> AsyncGenerator[bytes]:
    # `readany` loses nothing when it is cancelled, `readline` the half of a line that it holds.
    rest = b""
    while True:
        try:
            async with asyncio.timeout(silence_s):
                chunk = await content.readany()
        except TimeoutError:
            raise WatchLost("silent", "nothing was said", keeps_version=True) from None
        if not chunk:
            break
        *lines, rest = (rest + chunk).split(b"\n")
        for line in filter(None, lines):
            yield line
        if len(rest) > _LINE_BYTES:
            raise Unreadable(f"an event of more than {_LINE_BYTES} bytes")
    if rest:
        raise WatchLost("connection", "the watch ended within a line", keeps_version=True)


def read_event(line: bytes, type_: type[T]) -> tuple[str, T]:
    """Reads a line of a watch: the event's type and object.

    Raises `Unreadable`, and for an ERROR event `WatchLost`.
    """
    event = decode_json(line, _Event)
    if event.type == "ERROR":
        status = decode_json(event.object, _Status)
        raise _loss(status.code, status.message)
    return event.type, decode_json(event.object, type_)


def _refusal(code: int, body: bytes, after: str) -> WatchLost:
    try:
        message = decode_json(body, _Status).message
    except Unreadable:
        message = "no reason given"
    return _loss(code, message, read_retry_after(after))


def read_retry_after(text: str) -> int | None:
    """Reads `Retry-After` in seconds; `None` for 0 and for what is none.

    The API server never sends its other form, a date. Nobody is believed who wants to be left alone
    for longer than two minutes.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return min(int(text), 120) or None


def _loss(code: int, message: str, retry_after_s: int | None = None) -> WatchLost:
    words = {
        401: "unauthorized",
        403: "forbidden",
        404: "not_found",
        410: "expired",
        429: "throttled",
    }
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
        raise WatchLost("connection", describe_error(error), keeps_version=True) from error
    except Unreadable as error:
        raise WatchLost("garbled", shorten(str(error))) from error
