"""A pool's endpoints from the EndpointSlices of a Service: list once, then watch for ever.

The loops follow kopf's. What fails is tried again after a back-off, from the version that was reached,
or with a new list where the server says that this version is of no use. What is known stays meanwhile.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from random import Random

from extproc.cluster.backoff import Backoff
from extproc.cluster.slice_api import OpenClient, Patience, SliceApi, WatchLost
from extproc.cluster.slicebook import SliceBook
from extproc.cluster.slices import AddressFamily, EndpointSlice
from extproc.cluster.soon import Soon
from extproc.cluster.source import Sink
from extproc.cluster.teller import Teller

_log = logging.getLogger("extproc.cluster")


class KubernetesSource:
    """Tells the endpoints of one Service as its EndpointSlices change.

    `port` is the name or the number of a port in the slices (the container's port). Changes are told
    `settle_s` after the first of them: a pod that moves from one slice to another leaves the one
    before it enters the other, and must not be told as gone.
    """

    def __init__(
        self,
        open_client: OpenClient,
        namespace: str,
        service: str,
        port: int | str,
        *,
        family: AddressFamily = "IPv4",
        patience: Patience = Patience(),  # noqa: B008 - frozen
        settle_s: float = 0.1,
        rng: Random,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._open_client = open_client
        self._namespace = namespace
        self._service = service
        self._patience = patience
        self._settle_s = settle_s
        self._rng = rng
        self._clock = clock
        self._sleep = sleep
        self._book = SliceBook(port, family=family)
        self._backoff = Backoff(rng)
        self._version: str | None = None

    def __repr__(self) -> str:
        return f"<KubernetesSource {self._namespace}/{self._service} version={self._version}>"

    async def run(self, sink: Sink) -> None:
        telling = _Telling(self._book, sink, self._settle_s)
        try:
            while True:
                sink.restarted(await self._connect(telling))
                await self._sleep(self._backoff.next_s())
        finally:
            telling.close()

    async def _connect(self, telling: "_Telling") -> str:
        """Follows the slices over one connection; returns why it ended."""
        try:
            async with await self._open_client() as client:
                api = SliceApi(client, self._namespace, self._service, self._patience)
                if self._version is None:
                    self._version = await self._list(api, telling)
                await self._watch(api, self._version, telling)
        except WatchLost as lost:
            if not lost.keeps_version:
                self._version = None
            _log.warning("watch of %s/%s lost (%s): %s", self._namespace, self._service, lost.why, lost)
            return lost.why
        return "closed"

    async def _list(self, api: SliceApi, telling: "_Telling") -> str:
        slices = await api.list()
        self._book.replace(slices.items or ())
        telling.listed()
        return slices.metadata.resource_version

    async def _watch(self, api: SliceApi, version: str, telling: "_Telling") -> None:
        start_s = self._clock()
        # Jittered, so that the routers that an API server's restart brought together do not stay together.
        async with aclosing(api.watch(version, self._rng.randint(240, 300))) as events:
            async for kind, slice_ in events:
                self._apply(kind, slice_, telling)
                self._backoff.reset()
        # A server that ends every watch at once is one to back off from. One that had nothing to say for
        # long is not, and has told us that nothing changed.
        if self._clock() - start_s > 30:
            self._backoff.reset()
            telling.confirm()

    def _apply(self, kind: str, slice_: EndpointSlice, telling: "_Telling") -> None:
        self._version = slice_.metadata.resource_version
        match kind:
            case "ADDED" | "MODIFIED":
                self._book.put(slice_)
                telling.soon()
            case "DELETED":
                self._book.delete(slice_)
                telling.soon()
            case "BOOKMARK":
                telling.confirm()


class _Telling:
    """Tells the sink what the book holds, once per burst of changes."""

    def __init__(self, book: SliceBook, sink: Sink, settle_s: float) -> None:
        self._book = book
        self._sink = sink
        self._teller = Teller(sink)
        self._settled = Soon(settle_s, self._tell)
        self._faults: Mapping[str, str] = {}

    def listed(self) -> None:
        # The first list makes us ready. A later one may show a pod between two slices, as an event may.
        if self._teller.has_told:
            self.soon()
        else:
            self._tell()

    def soon(self) -> None:
        self._settled.request()

    def confirm(self) -> None:
        self._sink.confirm()

    def close(self) -> None:
        self._settled.cancel()

    def _tell(self) -> None:
        self._teller.tell(self._book.endpoints())
        faults = self._book.faults
        for name in sorted(faults):
            if faults[name] != self._faults.get(name):
                _log.warning("EndpointSlice %s %s", name, faults[name])
        self._faults = faults
