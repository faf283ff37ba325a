"""Envoy's discovery service (ADS) over the pools: state of the world, clusters and endpoints.

The gRPC edge; xds_state.py decides what is sent. Incremental (delta) discovery is left out: a change
of endpoints is one resource either way.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import grpc
import grpc.aio

from extproc.cluster.xds_resources import Catalog
from extproc.cluster.xds_state import Subscriber
from extproc.cluster.xds_wire import decode_request
from extproc.errors import ProtocolError
from extproc.routing.endpoint import Endpoint

log = logging.getLogger(__name__)

SERVICE: Final = "envoy.service.discovery.v3.AggregatedDiscoveryService"
_LOGGED_CHARS: Final = 500

Context = grpc.aio.ServicerContext[bytes, bytes]


class Stream:
    """One Envoy's open stream: its subscriber, and what wakes its writer."""

    def __init__(self, catalog: Catalog) -> None:
        self.subscriber = Subscriber(catalog)
        self.is_open = True
        self._wake = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    async def wait(self) -> None:
        """Returns when woken since the last call, or then."""
        await self._wake.wait()
        self._wake.clear()

    def close(self) -> None:
        self.is_open = False
        self.wake()


class Xds:
    """Keeps every connected Envoy in step with the pools.

    `pools` are the configured names, the default pool first. They are told as clusters from the start;
    a pool's endpoints are told once known, so that an Envoy that outlived us keeps what it has until
    then. `on_rejection` hears the type's last name ("Cluster") of each configuration an Envoy refused.
    """

    def __init__(self, pools: Iterable[str], *, on_rejection: Callable[[str], None]) -> None:
        self._catalog = Catalog(pools)
        self._on_rejection = on_rejection
        self._streams: set[Stream] = set()

    def __repr__(self) -> str:
        return f"<Xds streams={self.streams_open} {self._catalog!r}>"

    @property
    def streams_open(self) -> int:
        return len(self._streams)

    def publish(self, pool: str, endpoints: Sequence[Endpoint]) -> None:
        """Tells every Envoy a pool's endpoints, all of them; an unknown pool becomes a cluster."""
        self._catalog.replace(pool, endpoints)
        self._wake()

    def remove(self, pool: str) -> None:
        """Takes a pool's cluster from every Envoy."""
        self._catalog.remove(pool)
        self._wake()

    def add_to(self, server: grpc.aio.Server) -> None:
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, {"StreamAggregatedResources": handler})]
        )

    def _wake(self) -> None:
        for stream in self._streams:
            stream.wake()

    async def _serve(self, _: object, context: Context) -> None:
        stream = Stream(self._catalog)
        self._streams.add(stream)
        log.info("an Envoy at %s is connected", context.peer())
        reader = asyncio.create_task(self._read(stream, context))
        try:
            await self._write(stream, context)
        finally:
            self._streams.discard(stream)
            reader.cancel()
            log.info("the Envoy at %s is gone", context.peer())

    async def _read(self, stream: Stream, context: Context) -> None:
        try:
            while (data := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]  # not in the stubs
                rejection = stream.subscriber.on(decode_request(data))
                stream.wake()
                if rejection:
                    self._reject(rejection.type_url, rejection.reason, context.peer())
        except ProtocolError as error:
            log.warning("the stream of %s is ended: %s", context.peer(), error)
        finally:
            stream.close()

    async def _write(self, stream: Stream, context: Context) -> None:
        while stream.is_open:
            response = stream.subscriber.next()
            if response:
                await context.write(bytes(response))
            else:
                await stream.wait()

    def _reject(self, type_url: str, reason: str, peer: str) -> None:
        kind = type_url.rpartition(".")[2]
        log.error("the Envoy at %s refused a %s: %r", peer, kind, reason[:_LOGGED_CHARS])
        self._on_rejection(kind)
