"""A pool's endpoints from the EndpointSlices of a Service: list once, then watch for ever.

The loops follow kopf's. What fails is tried again after a back-off, from the version that was reached,
or with a new list where the server says that this version is of no use. What is known stays meanwhile.

Lists and watches back off apart: a list that worked says nothing of watches, and a server that lists but
refuses every watch (a Role without the verb) must not be asked for both four times a second. A list that
worked resets the one, a watch that lived the other. Both are eager for the first half minute: an API
server that restarts refuses connections for a second, then answers 403 until it knows its Roles, and then
it is back.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from random import Random
from typing import Final

from extproc.cluster.backoff import Backoff
from extproc.cluster.slice_api import OpenClient, Patience, SliceApi, WatchLost
from extproc.cluster.slicebook import SliceBook
from extproc.cluster.slices import AddressFamily, EndpointSlice
from extproc.cluster.soon import Soon
from extproc.cluster.source import Sink
from extproc.cluster.teller import Teller

_log = logging.getLogger("extproc.cluster")

_CLOSED: Final = WatchLost("closed", "the server ended the watch", keeps_version=True)
# Ends that are as they should be: the watch's time was over, or the server's history.
_NORMAL: Final = frozenset({"closed", "expired"})
_LIVED_S: Final = 30.0


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
        self._lists = Backoff(rng, early_cap_s=2.0, early_tries=30)
        self._watches = Backoff(rng, early_cap_s=2.0, early_tries=30)
        self._backoff = self._lists
        self._version: str | None = None
        self._may_list_at_once = True

    def __repr__(self) -> str:
        return f"<KubernetesSource {self._namespace}/{self._service} version={self._version}>"

    async def run(self, sink: Sink) -> None:
        self._version = None
        telling = _Telling(self._book, f"{self._namespace}/{self._service}", sink, self._settle_s)
        try:
            while True:
                lost = await self._connect(telling)
                sink.restarted(lost.why, None if lost.why in _NORMAL else str(lost))
                await self._sleep(self._pause_s(lost))
        finally:
            telling.close()

    async def _connect(self, telling: "_Telling") -> WatchLost:
        """Follows the slices over one connection; returns why it ended."""
        self._backoff = self._lists if self._version is None else self._watches
        try:
            async with await self._open_client() as client:
                api = SliceApi(client, self._namespace, self._service, self._patience)
                if self._version is None:
                    self._version = await self._list(api, telling)
                    self._lists.reset()
                self._backoff = self._watches
                await self._watch(api, self._version, telling)
        except WatchLost as lost:
            if not lost.keeps_version:
                self._version = None
            return lost
        return _CLOSED

    def _pause_s(self, lost: WatchLost) -> float:
        if lost.why == "expired" and self._may_list_at_once:
            # The history went on without us. A second time before anything was heard, the server is at fault.
            self._may_list_at_once = False
            return 0.0
        if lost.retry_after_s is not None:
            return lost.retry_after_s * self._rng.uniform(1.0, 1.25)
        return self._backoff.next_s()

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
                self._live()
        # A server that ends every watch at once is one to back off from. One that had nothing to say for
        # long is not, and has told us that nothing changed.
        if self._clock() - start_s > _LIVED_S:
            self._live()
            telling.confirm()

    def _live(self) -> None:
        self._watches.reset()
        self._may_list_at_once = True

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
    """Tells the sink what the book holds, once per burst of changes, or what it lacks."""

    def __init__(self, book: SliceBook, service: str, sink: Sink, settle_s: float) -> None:
        self._book = book
        self._service = service
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
        lack = self._lack()
        if lack:
            self._sink.lacks(*lack)
        else:
            self._sink.confirm()

    def close(self) -> None:
        self._settled.cancel()

    def _tell(self) -> None:
        lack = self._lack()
        if lack is None or self._teller.has_endpoints:
            # A Service that was never there is not an empty one: who asks is told that nothing is known.
            self._teller.tell(self._book.endpoints())
        if lack:
            self._sink.lacks(*lack)
        else:
            self._warn()

    def _lack(self) -> tuple[str, str] | None:
        if self._book.is_missing:
            return "no_service", f"Service {self._service} has no EndpointSlice: is there such a Service?"
        if self._book.portless:
            return "no_port", f"Service {self._service}: every EndpointSlice {self._book.portless}"
        return None

    def _warn(self) -> None:
        """Says once what is wrong with a slice among others that are right."""
        faults = self._book.faults
        for name in sorted(faults):
            if faults[name] != self._faults.get(name):
                _log.warning("EndpointSlice %s %s", name, faults[name])
        self._faults = faults
