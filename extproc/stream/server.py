"""The gRPC service: reads a stream's messages, asks its session, writes the replies.

Everything of the request that can fail is caught here: an exception that reached gRPC would send its
text, and with it pieces of a prompt, to the proxy.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from time import perf_counter
from uuid import uuid4

import grpc
import grpc.aio

from extproc.errors import ProtocolError
from extproc.routing.picker import Picker
from extproc.stream.codec import decode, encode
from extproc.stream.events import Answer, Reply, Routed
from extproc.stream.names import EXT_PROC, POOL, READ_HEADERS
from extproc.stream.session import Session
from extproc.telemetry import Metrics

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[bytes, bytes]


class ExternalProcessor:
    """`envoy.service.ext_proc.v3.ExternalProcessor`: one session per stream.

    `picker` is asked for the picker in force when a stream opens, so a reload meets no stream halfway.
    """

    def __init__(
        self,
        picker: Callable[[], Picker],
        metrics: Metrics,
        *,
        max_body_bytes: int,
        clear_route_cache: bool,
    ) -> None:
        self._picker = picker
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._clear_route_cache = clear_route_cache
        self.streams_open = 0
        self._idle = asyncio.Event()
        metrics.streams_open.set_function(lambda: self.streams_open)

    def add_to(self, server: grpc.aio.Server) -> None:
        # Messages stay bytes: our codec reads and writes them, most replies are serialised ahead.
        handler = grpc.stream_stream_rpc_method_handler(self.process)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(EXT_PROC, {"Process": handler}),)
        )

    async def process(self, _: object, context: Context) -> None:
        """Serves one stream. The session is closed however the stream ends, a cancellation included."""
        picker = self._picker()
        session = self._open(picker, context)
        self.streams_open += 1
        self._idle.clear()
        try:
            await self._converse(session, context, READ_HEADERS | picker.key_headers)
        except ProtocolError as error:
            self._metrics.stream_errors.labels("protocol").inc()
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Exception as error:  # noqa: BLE001  # the last resort: no text of ours may reach the proxy
            self._metrics.stream_errors.labels("internal").inc()
            log.error("a stream failed: %s", type(error).__name__)  # noqa: TRY400  # no traceback: it may quote a prompt
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        finally:
            self.streams_open -= 1
            if not self.streams_open:
                self._idle.set()
            if session.served_elsewhere is not None:
                self._metrics.served_elsewhere.labels(session.served_elsewhere.name).inc()
            session.close()

    async def drained(self) -> None:
        """Waits until no stream is open."""
        if self.streams_open:
            await self._idle.wait()

    def _open(self, picker: Picker, context: Context) -> Session:
        return Session(
            picker,
            new_request_id=lambda: str(uuid4()),
            max_body_bytes=self._max_body_bytes,
            clear_route_cache=self._clear_route_cache,
            pool=_chosen_pool(context) if len(picker.routes) > 1 else None,
        )

    async def _converse(self, session: Session, context: Context, wanted: Collection[str]) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]  # not in the stubs
            start_s = perf_counter()
            replies = session.on(decode(message, wanted))
            encoded = [encode(reply) for reply in replies]
            self._observe(replies, perf_counter() - start_s)
            for reply in encoded:
                await context.write(reply)

    def _observe(self, replies: Sequence[Reply], elapsed_s: float) -> None:
        match replies:
            case [Routed(decision=decision), *_]:
                self._metrics.count_decision(decision, elapsed_s)
                log.debug("routed to %r", decision.pick)
            case [Answer(outcome=outcome, pool=pool)]:
                self._metrics.requests.labels(pool, outcome).inc()


def _chosen_pool(context: Context) -> str | None:
    """The pool that the operator's Envoy configuration names in the stream's own metadata.

    A client's headers never get there, so unlike a request header it needs no stripping to be trusted.
    """
    for name, value in context.invocation_metadata() or ():
        if name == POOL:
            return value if isinstance(value, str) else value.decode(errors="replace")
    return None
