"""A small Kubernetes API server for objects of a few kinds, with a history and a script of faults.

It keeps the API's promises about resourceVersion (a list's version is where a watch goes on, a
version out of the history answers 410, one from the future 504) unless a test tells it to break
one.
"""

import asyncio
import json
import ssl
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from tests.hosting import Handler, hosting
from tests.router.cluster.objects import Object

Change = tuple[int, Object | None, Object | None]
"""A version, and an object before and after it."""

SLICES = "discovery.k8s.io/v1/endpointslices"
PODS = "v1/pods"
POOLS = "inference.networking.k8s.io/v1/inferencepools"
PLURALS = {
    "EndpointSlice": "endpointslices",
    "InferenceObjective": "inferenceobjectives",
    "InferencePool": "inferencepools",
    "Pod": "pods",
}


@dataclass
class Watcher:
    """One open watch."""

    query: Mapping[str, str]
    lines: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)

    def notify(self, change: Change) -> None:
        """What leaves a selector is deleted for who watches by it, as what enters is added."""
        _, before, after = change
        was, is_ = (
            entry is not None and matches_selectors(entry, self.query) for entry in (before, after)
        )
        kind = {(False, True): "ADDED", (True, True): "MODIFIED", (True, False): "DELETED"}.get(
            (was, is_)
        )
        if kind:
            self.lines.put_nowait(event_line(kind, after or before or {}))


class Collection:
    """The objects of one kind: state, history, who watches, and what comes next by the script."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.history: list[Change] = []
        self.watchers: list[Watcher] = []
        self.queries: list[dict[str, str]] = []
        self.script: dict[str, deque[Handler]] = {"list": deque(), "watch": deque()}
        self.rests: dict[str, list[Object]] = {}
        # What a server answers to every request for this kind: 404 without the CRD, 403 without a
        # Role.
        self.refusal: int | None = None

    @property
    def lists(self) -> list[dict[str, str]]:
        return [query for query in self.queries if "watch" not in query]

    @property
    def watches(self) -> list[dict[str, str]]:
        return [query for query in self.queries if "watch" in query]

    def answer_next(self, call: str, *answers: Handler) -> None:
        """Scripts the next answers to `list` or `watch`; after them it behaves again."""
        self.script[call].extend(answers)

    def send(self, raw: bytes) -> None:
        """Writes bytes as they are into every open watch."""
        for watcher in self.watchers:
            watcher.lines.put_nowait(raw)

    def end_watches(self) -> None:
        """Ends every open watch cleanly, as its timeout does."""
        for watcher in self.watchers:
            watcher.lines.put_nowait(None)


class ApiServer:
    """State, history and script. `url` is known once it serves. What names no kind is of EndpointSlices."""

    def __init__(self) -> None:
        self.url = ""
        # Other tokens are answered `refusal`; 403 is what a server says that does not know its
        # Roles yet.
        self.tokens = {"token-1"}
        self.refusal = 401
        self.version = 100
        self.oldest = 100
        self.collections: defaultdict[str, Collection] = defaultdict(Collection)

    def of(self, kind: str) -> Collection:
        return self.collections[kind]

    @property
    def watchers(self) -> list[Watcher]:
        return self.of(SLICES).watchers

    @property
    def lists(self) -> list[dict[str, str]]:
        return self.of(SLICES).lists

    @property
    def watches(self) -> list[dict[str, str]]:
        return self.of(SLICES).watches

    def put(self, object_: Object) -> None:
        collection = self.of(kind_of(object_))
        name = object_["metadata"]["name"]
        before = collection.objects.get(name)
        collection.objects[name] = self._stamped(object_)
        self._notify(collection, before, collection.objects[name])

    def delete(self, name: str, kind: str = SLICES) -> None:
        collection = self.of(kind)
        self._notify(collection, self._stamped(collection.objects.pop(name)), None)

    def bookmark(self, kind: str = SLICES) -> None:
        """Sends every watch the current version, which others' objects may have moved on."""
        self.of(kind).send(
            event_line("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})
        )

    def compact(self) -> None:
        """Forgets the history, as etcd does after five minutes."""
        self.version += 1
        self.oldest = self.version
        for collection in self.collections.values():
            collection.history.clear()
            collection.rests.clear()

    def end_watches(self, kind: str = SLICES) -> None:
        self.of(kind).end_watches()

    def answer_next(self, call: str, *answers: Handler, kind: str = SLICES) -> None:
        self.of(kind).answer_next(call, *answers)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        api, plural = request.match_info["api"], request.match_info["plural"]
        collection = self.of(f"{api}/{plural}")
        call = "watch" if "watch" in request.query else "list"
        collection.queries.append(dict(request.query))
        given = request.headers.get("Authorization", "").lower()
        if given not in {f"bearer {token}" for token in self.tokens}:
            return status(self.refusal, "Unauthorized")
        if collection.refusal is not None:
            return status(collection.refusal)
        if collection.script[call]:
            return await collection.script[call].popleft()(request)
        return await (self._watch if call == "watch" else self.list_objects)(request)

    async def list_objects(self, request: web.Request) -> web.StreamResponse:
        collection, query = self._collection(request), request.query
        token = query.get("continue")
        if token is not None and token not in collection.rests:
            return status(410, "The provided continue parameter is too old")
        items = [
            object_ for object_ in collection.objects.values() if matches_selectors(object_, query)
        ]
        version = str(self.version)
        if token is not None:
            version, items = token.partition("/")[0], collection.rests.pop(token)
        limit = int(query.get("limit", 0)) or len(items)
        metadata = {"resourceVersion": version}
        if items[limit:]:
            metadata["continue"] = f"{version}/{len(items)}"
            collection.rests[metadata["continue"]] = items[limit:]
        return web.json_response({"metadata": metadata, "items": items[:limit]})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        collection, version = self._collection(request), int(request.query["resourceVersion"])
        if version < self.oldest:
            return status(410, f"too old resource version: {version} ({self.oldest})")
        if version > self.version:
            return status(504, f"Too large resource version: {version}, current: {self.version}")
        watcher = Watcher(request.query)
        for change in collection.history:
            if change[0] > version:
                watcher.notify(change)
        collection.watchers.append(watcher)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            await response.prepare(request)
            while (text := await watcher.lines.get()) is not None:
                await response.write(text)
        finally:
            collection.watchers.remove(watcher)
        return response

    def _collection(self, request: web.Request) -> Collection:
        return self.of(f"{request.match_info['api']}/{request.match_info['plural']}")

    def _stamped(self, object_: Object) -> Object:
        self.version += 1
        return object_ | {"metadata": object_["metadata"] | {"resourceVersion": str(self.version)}}

    def _notify(self, collection: Collection, before: Object | None, after: Object | None) -> None:
        change = (self.version, before, after)
        collection.history.append(change)
        for watcher in collection.watchers:
            watcher.notify(change)


def kind_of(object_: Object) -> str:
    return f"{object_['apiVersion']}/{PLURALS[object_['kind']]}"


def matches_selectors(object_: Object, query: Mapping[str, str]) -> bool:
    """Whether the object is of the selectors `labelSelector` and `fieldSelector`."""
    labels = object_["metadata"].get("labels", {})
    wanted = [term.partition("=") for term in query.get("labelSelector", "").split(",") if term]
    named = query.get("fieldSelector", "").removeprefix("metadata.name=")
    # A term without a value asks whether there is such a label.
    is_selected = all(
        labels.get(key) == value if sign else key in labels for key, sign, value in wanted
    )
    return is_selected and named in ("", object_["metadata"]["name"])


def event_line(kind: str, object_: Object) -> bytes:
    return json.dumps({"type": kind, "object": object_}).encode() + b"\n"


def status_object(code: int, message: str) -> Object:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "code": code,
    }


def status(code: int, message: str = "scripted") -> web.Response:
    return web.json_response(status_object(code, message), status=code)


def refuses(code: int, retry_after: str = "") -> Handler:
    """Answers with an HTTP status and no more; 502 is a proxy's page, without a Status object."""

    async def answer(_: web.Request) -> web.StreamResponse:
        refusal = status(code)
        if code == 502:
            refusal = web.Response(status=code, text="<html>Bad Gateway</html>")
        if retry_after:
            refusal.headers["Retry-After"] = retry_after
        return refusal

    return answer


def stream_chunks(*chunks: bytes, then_cut: bool = False) -> Handler:
    """Writes these chunks, one packet each, then ends the stream: cleanly, or in the middle."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0.01)
        if then_cut and request.transport:
            request.transport.abort()
        return response

    return answer


def stalls(*, after_headers: bool) -> Handler:
    """Says nothing more, before or after the response's head."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if after_headers:
            await response.prepare(request)
        await asyncio.sleep(3600)
        return response

    return answer


def drops() -> Handler:
    """Closes the connection without an answer."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.transport:
            request.transport.abort()
        return web.Response()

    return answer


@asynccontextmanager
async def serving_api(
    server: ApiServer, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ApiServer]:
    """Serves on 127.0.0.1; leaving the block is an outage, entering it again with its port a return."""
    app = web.Application()
    for path in ("/apis/{api:[^/]+/[^/]+}", "/api/{api:v1}"):
        app.router.add_get(f"{path}/namespaces/default/{{plural}}", server.answer)
    async with hosting(app, port, tls) as address:
        server.url = f"{'https' if tls else 'http'}://{address}"
        yield server


def write_kubeconfig(path: Path, url: str, token: Path) -> None:
    """Writes a kubeconfig for the server at `url`, with the credential in the file `token`."""
    tree = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"tokenFile": str(token)}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(tree))


def write_access(folder: Path, url: str) -> Path:
    """Writes a token that every server takes at first, and a kubeconfig with it; returns that."""
    (folder / "token").write_text("token-1")
    write_kubeconfig(folder / "kubeconfig", url, folder / "token")
    return folder / "kubeconfig"
