"""Envoy's discovery service (ADS) over the pools: state of the world, clusters and endpoints.

The edge to a transport; state.py decides what is sent. Incremental (delta) discovery is left out: a
change of endpoints is one resource either way.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct

from extproc.errors import ProtocolError
from extproc.grpc_server.calls import Call, Handler, Routes, Status
from extproc.router.routing.endpoint import Endpoint
from extproc.router.stream.names import DISCOVER
from extproc.router.xds.requests import decode_request
from extproc.router.xds.resources import Catalog
from extproc.router.xds.state import Subscriber

log = logging.getLogger(__name__)

_LOGGED_CHARS: Final = 500


class Xds:
    """Sends the pools and their changes to every connected Envoy.

    `pools` are the configured names. They are sent as clusters from the start, a pool's endpoints
    once its source has listed them, so that an Envoy that outlived us keeps its own until then.
    `open_pool` takes the requests that nobody could route, `None` has them refused. `on_rejection`
    gets the type's last name ("Cluster") for each configuration that an Envoy refused.
    """

    def __init__(
        self,
        pools: Iterable[str],
        *,
        open_pool: str | None = None,
        on_rejection: Callable[[str], None],
    ) -> None:
        self._catalog = Catalog(pools, open_pool)
        self._on_rejection = on_rejection
        self._envoys: set[_Envoy] = set()

    @property
    def streams_open(self) -> int:
        return len(self._envoys)

    def publish(self, pool: str, endpoints: Sequence[Endpoint]) -> None:
        """Sends every Envoy all endpoints of a pool; a new pool becomes a cluster."""
        self._catalog.replace(pool, endpoints)
        self._push()

    def remove(self, pool: str) -> None:
        self._catalog.remove(pool)
        self._push()

    def open(self, pool: str | None) -> None:
        """Says which pool takes the requests that nobody could route: while the service is away, all."""
        self._catalog.open(pool)
        self._push()

    def routes(self) -> Routes:
        return {DISCOVER: self._open}

    def reject(self, type_url: str, fault: str, peer: str) -> None:
        kind = type_url.rpartition(".")[2]
        self._on_rejection(kind)
        log.error("the Envoy at %s refused a %s: %r", peer, kind, fault[:_LOGGED_CHARS])

    def forget(self, envoy: "_Envoy") -> None:
        self._envoys.discard(envoy)

    def _open(self, call: Call) -> Handler:
        envoy = _Envoy(self, call, Subscriber(self._catalog))
        self._envoys.add(envoy)
        log.info("an Envoy at %s is connected", call.peer)
        return envoy

    def _push(self) -> None:
        # An Envoy that disconnects meanwhile removes itself.
        for envoy in tuple(self._envoys):
            envoy.push()


class _Envoy(Struct, eq=False):
    """One connected Envoy. Holds at most one message per type that the Envoy has not answered."""

    _xds: Xds
    _call: Call
    _subscriber: Subscriber

    def push(self) -> None:
        while response := self._subscriber.next():
            self._call.send(bytes(response))

    def on_message(self, message: bytes | bytearray) -> None:
        try:
            request = decode_request(bytes(message))
        except ProtocolError as error:
            log.warning("the stream of %s is ended: %s", self._call.peer, error)
            self._call.finish(Status.INVALID_ARGUMENT, str(error))
            return
        if self._subscriber.on(request) and request.fault is not None:
            self._xds.reject(request.type_url, request.fault, self._call.peer)
        self.push()

    def on_skipped(self, size: int) -> None:
        log.warning("the stream of %s is ended: a request of %d bytes", self._call.peer, size)
        self._call.finish(Status.RESOURCE_EXHAUSTED)

    def on_half_close(self) -> None:
        self._call.finish()

    def on_close(self) -> None:
        self._xds.forget(self)
        log.info("the Envoy at %s is gone", self._call.peer)
