"""A small Kubernetes API server for EndpointSlices, with a history and a script of faults.

It keeps the API's promises about resourceVersion (a list's version is where a watch goes on, a version
out of the history answers 410, one from the future 504) unless a test tells it to break one.
"""

import asyncio
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from tests.cluster.objects import Object

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
LABEL = "kubernetes.io/service-name"


@dataclass
class Watcher:
    """One open watch."""

    selector: str
    lines: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)


class ApiServer:
    """State, history and script. `url` is known once it serves."""

    def __init__(self) -> None:
        self.url = ""
        # Other tokens are answered `refusal`; 403 is what a server says that does not know its Roles yet.
        self.tokens = {"token-1"}
        self.refusal = 401
        self.version = 100
        self.oldest = 100
        self.slices: dict[str, Object] = {}
        self.history: list[tuple[int, bytes, str]] = []
        self.watchers: list[Watcher] = []
        self.queries: list[dict[str, str]] = []
        self.script: dict[str, deque[Answer]] = {"list": deque(), "watch": deque()}

    @property
    def lists(self) -> list[dict[str, str]]:
        return [query for query in self.queries if "watch" not in query]

    @property
    def watches(self) -> list[dict[str, str]]:
        return [query for query in self.queries if "watch" in query]

    def put(self, slice_: Object) -> None:
        name = slice_["metadata"]["name"]
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = self._stamped(slice_)
        self._tell(kind, self.slices[name])

    def delete(self, name: str) -> None:
        self._tell("DELETED", self._stamped(self.slices.pop(name)))

    def bookmark(self) -> None:
        """Sends every watch the current version, which others' objects may have moved on."""
        mark = {
            "kind": "EndpointSlice",
            "metadata": {"resourceVersion": str(self.version)},
            "endpoints": None,
        }
        for watcher in self.watchers:
            watcher.lines.put_nowait(line("BOOKMARK", mark))

    def compact(self) -> None:
        """Forgets the history, as etcd does after five minutes."""
        self.version += 1
        self.oldest = self.version
        self.history.clear()

    def send(self, raw: bytes) -> None:
        """Writes bytes as they are into every open watch."""
        for watcher in self.watchers:
            watcher.lines.put_nowait(raw)

    def end_watches(self) -> None:
        """Ends every open watch cleanly, as its timeout does."""
        for watcher in self.watchers:
            watcher.lines.put_nowait(None)

    def answer_next(self, call: str, *answers: Answer) -> None:
        """Scripts the next answers to `list` or `watch`; after them it behaves again."""
        self.script[call].extend(answers)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        call = "watch" if "watch" in request.query else "list"
        self.queries.append(dict(request.query))
        if request.headers.get("Authorization", "").lower() not in {
            f"bearer {token}" for token in self.tokens
        }:
            return status(self.refusal, "Unauthorized")
        if self.script[call]:
            return await self.script[call].popleft()(request)
        return await (self._watch(request) if call == "watch" else self._list(request))

    async def _list(self, request: web.Request) -> web.StreamResponse:
        selector = request.query["labelSelector"]
        items = [slice_ for slice_ in self.slices.values() if _matches(slice_, selector)]
        return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        version = int(request.query["resourceVersion"])
        if version < self.oldest:
            return status(410, f"too old resource version: {version} ({self.oldest})")
        if version > self.version:
            return status(504, f"Too large resource version: {version}, current: {self.version}")
        watcher = Watcher(request.query["labelSelector"])
        for at, missed, selector in self.history:
            if at > version and selector == watcher.selector:
                watcher.lines.put_nowait(missed)
        self.watchers.append(watcher)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        try:
            await response.prepare(request)
            while (text := await watcher.lines.get()) is not None:
                await response.write(text)
        finally:
            self.watchers.remove(watcher)
        return response

    def _stamped(self, slice_: Object) -> Object:
        self.version += 1
        return slice_ | {"metadata": slice_["metadata"] | {"resourceVersion": str(self.version)}}

    def _tell(self, kind: str, slice_: Object) -> None:
        text = line(kind, slice_)
        selector = f"{LABEL}={slice_['metadata']['labels'][LABEL]}"
        self.history.append((self.version, text, selector))
        for watcher in self.watchers:
            if watcher.selector == selector:
                watcher.lines.put_nowait(text)


def line(kind: str, object_: Object) -> bytes:
    return json.dumps({"type": kind, "object": object_}).encode() + b"\n"


def status_object(code: int, message: str) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}


def status(code: int, message: str = "scripted") -> web.Response:
    return web.json_response(status_object(code, message), status=code)


def refuses(code: int, retry_after: str = "") -> Answer:
    """Answers with an HTTP status and no more; 502 is a proxy's page, without a Status object."""

    async def answer(_: web.Request) -> web.StreamResponse:
        refusal = status(code)
        if code == 502:
            refusal = web.Response(status=code, text="<html>Bad Gateway</html>")
        if retry_after:
            refusal.headers["Retry-After"] = retry_after
        return refusal

    return answer


def streams(*chunks: bytes, then_cut: bool = False) -> Answer:
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


def stalls(*, after_headers: bool) -> Answer:
    """Says nothing more, before or after the response's head."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if after_headers:
            await response.prepare(request)
        await asyncio.sleep(3600)
        return response

    return answer


def drops() -> Answer:
    """Closes the connection without an answer."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.transport:
            request.transport.abort()
        return web.Response()

    return answer


@asynccontextmanager
async def serving(
    server: ApiServer, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ApiServer]:
    """Serves on 127.0.0.1; leaving the block is an outage, entering it again with its port a return."""
    app = web.Application()
    app.router.add_get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", server.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls, reuse_address=True).start()
        server.url = f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()


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


def _matches(slice_: Object, selector: str) -> bool:
    return selector == f"{LABEL}={slice_['metadata']['labels'][LABEL]}"
