"""The ext_proc service: tells a stream's messages to its session, and sends the session's replies.

Everything of a request that can fail is caught here: an exception's text, and with it pieces of a prompt,
must reach neither the proxy nor a log.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from time import perf_counter
from typing import Final
from uuid import uuid4

from extproc.errors import ProtocolError, RequestError
from extproc.router.budget import Budget
from extproc.router.routing.picker import Found, Picker
from extproc.router.routing.pool import Pick
from extproc.router.routing.tickets import Tickets
from extproc.router.stream.codec import decode, encode
from extproc.router.stream.events import (
    Answer,
    BodyRead,
    BodySkipped,
    Event,
    Held,
    Reading,
    Reply,
    RequestHeaders,
    Room,
    Routed,
    Served,
)
from extproc.router.stream.names import POOL, PROCESS, READ_HEADERS, TRACEPARENT, TRACESTATE
from extproc.router.stream.observer import Observer
from extproc.router.stream.session import Session
from extproc.router.stream.tracing import Origin, Tracer
from extproc.router.wire.calls import Call, Handler, Routes, Status

log = logging.getLogger(__name__)

# Of one turn of the loop: 2 MB of a body that is given back, in 1 to 2 ms.
_AT_ONCE: Final = 32


class ExternalProcessor:
    """`envoy.service.ext_proc.v3.ExternalProcessor`: one session per stream.

    `picker` is asked for the picker in force when a stream opens, so a reload meets no stream halfway.
    `budget` is the process's, for bodies that are held; `announced` for those that proxies are to buffer.
    `on_served` hears what a gateway tells of a response, and how many seconds after the pick. `pass_headers`
    are guarded headers that go on to the endpoint. A request whose response the gateway never tells of counts
    for `unseen_s`, by the loop's clock or by `later`, which is called with a delay and what to do then.
    `reader` reads long bodies, which would keep the loop from others for milliseconds; `None` reads them on
    it. `tickets` find picks again by what an access log tells. `tracer` makes spans; without one no stream
    looks for a trace. While it cannot route (`can_route`), streams end at once as unavailable.
    """

    def __init__(
        self,
        picker: Callable[[], Picker],
        observer: Observer,
        *,
        max_body_bytes: int,
        clear_route_cache: bool,
        budget: Budget | None = None,
        announced: Budget | None = None,
        on_served: Callable[[Served, float], None] = lambda *_: None,
        pass_headers: Collection[str] = (),
        unseen_s: float = 10,
        later: Callable[[float, Callable[[], None]], object] | None = None,
        reader: Executor | None = None,
        tickets: Tickets | None = None,
        tracer: Tracer | None = None,
        can_route: Callable[[], bool] = lambda: True,
    ) -> None:
        self._picker = picker
        self.observer = observer
        self._max_body_bytes = max_body_bytes
        self._clear_route_cache = clear_route_cache
        self._budget = budget
        self._announced = announced
        self.on_served = on_served
        self._pass_headers = frozenset(pass_headers)
        self._unseen_s = unseen_s
        self._later = later or _call_later
        self._reader = reader
        self._tickets = tickets
        self.tracer = tracer
        self._can_route = can_route
        self._read_headers = READ_HEADERS if tracer is None else READ_HEADERS | {TRACEPARENT, TRACESTATE}
        self._wanted: tuple[Picker | None, frozenset[str]] = (None, self._read_headers)
        self.streams_open = 0
        self._idle = asyncio.Event()

    def __repr__(self) -> str:
        return f"<ExternalProcessor streams={self.streams_open}>"

    def routes(self) -> Routes:
        return {PROCESS: self.open}

    async def drained(self) -> None:
        """Waits until no stream is open."""
        if self.streams_open:
            await self._idle.wait()

    def open(self, call: Call) -> Handler:
        picker = self._picker()
        session = Session(
            picker,
            new_request_id=_new_request_id,
            max_body_bytes=self._max_body_bytes,
            clear_route_cache=self._clear_route_cache,
            # The operator's Envoy configuration may name the pool in the stream's own metadata. A client's
            # headers never get there, so unlike a request header it needs no stripping to be trusted.
            pool=call.metadata.get(POOL) if len(picker.routes) > 1 else None,
            budget=self._budget,
            announced=self._announced,
            pass_headers=self._pass_headers,
            reads_apart=self._reader is not None,
            tickets=self._tickets,
        )
        self.streams_open += 1
        self._idle.clear()
        self.observer.opened()
        return self._kind(call)(self, call, session, self._headers_of(picker))

    def _kind(self, call: Call) -> "type[_Stream]":
        if not self._can_route():
            return _UnreadyStream
        tracer = self.tracer
        return _Stream if tracer is None or tracer.sampling.rules_out(call.metadata) else _TracedStream

    def read(self, reading: Reading, then: Callable[[Found | BaseException], None]) -> None:
        """Finds apart from the loop what a session wants to know, and tells it on the loop."""
        future = asyncio.get_running_loop().run_in_executor(self._reader, reading.picker.find, reading.ask)
        future.add_done_callback(lambda done: then(done.exception() or done.result()))

    def left(self, pick: Pick) -> None:
        """Counts on a request that nobody sees the end of."""
        self._later(self._unseen_s, pick.release)

    def traced(self, told: Routed | Answer, elapsed_s: float, trace_id: str) -> None:
        self.observer.traced(told, elapsed_s, trace_id)
        if self._tickets is not None and isinstance(told, Routed):
            self._tickets.trace(told.ticket, trace_id)

    def closed(self) -> None:
        """Hears of each stream's end."""
        self.streams_open -= 1
        if not self.streams_open:
            self._idle.set()
        self.observer.closed()

    def _headers_of(self, picker: Picker) -> frozenset[str]:
        """Which headers a session reads: one set for all streams of a picker."""
        if self._wanted[0] is not picker:
            self._wanted = (picker, self._read_headers | picker.key_headers)
        return self._wanted[1]


class _Stream:
    """One open stream. Small: thousands stay open while their responses stream."""

    __slots__ = ("_call", "_routed_s", "_service", "_session", "_waiting", "_wanted")

    def __init__(
        self, service: ExternalProcessor, call: Call, session: Session, wanted: Collection[str]
    ) -> None:
        self._service = service
        self._call = call
        self._session = session
        self._wanted = wanted
        self._routed_s = 0.0
        # What came while the body is read, or given back, or the request held: it is heard after that, in
        # its order.
        self._waiting: list[Callable[[], None]] | None = None

    def on_message(self, message: bytes | bytearray) -> None:
        if self._waiting is not None:
            self._waiting.append(lambda: self.on_message(message))
            return
        start_s = perf_counter()
        self._hear(lambda: self._answer(decode(message, self._wanted), start_s))

    def on_skipped(self, size: int) -> None:
        if self._waiting is not None:
            self._waiting.append(lambda: self.on_skipped(size))
            return
        start_s = perf_counter()
        log.debug("no room for a message of %d bytes", size)
        self._hear(lambda: self._answer(BodySkipped(), start_s))

    def on_half_close(self) -> None:
        if self._waiting is not None:
            self._waiting.append(self.on_half_close)
            return
        pick = self._session.leave()
        if pick is not None:
            self._service.left(pick)
        self._call.finish()

    def on_close(self) -> None:
        self._waiting = None
        self._session.close()
        self._service.closed()

    def _hear(self, step: Callable[[], None]) -> None:
        try:
            step()
        except ProtocolError as error:
            self._fail("protocol", Status.INVALID_ARGUMENT, str(error))
        except Exception as error:  # noqa: BLE001  # the last resort: no text of ours may reach the proxy
            self._fail_internally(error)

    def _answer(self, event: Event, start_s: float) -> None:
        replies = self._session.on(event)
        match replies:
            case [Reading() as reading]:
                self._waiting = []
                self._service.read(reading, lambda found: self._has_read(found, start_s))
                return
            case [Held() as held]:
                self._wait(held)
                return
        # All of them or none: half an answer would be taken for one.
        encoded = [encode(reply) for reply in replies[:_AT_ONCE]]
        self._tell(replies, start_s)
        for message in encoded:
            self._call.send(message)
        if len(replies) > _AT_ONCE:
            self._waiting = []
            self._send_later(replies, _AT_ONCE)

    def _send_later(self, replies: Sequence[Reply], start: int) -> None:
        """Gives a long body back, a few pieces in each of the loop's turns; others have theirs between."""
        asyncio.get_running_loop().call_soon(self._send_from, replies, start)

    def _send_from(self, replies: Sequence[Reply], start: int) -> None:
        if self._waiting is None:
            return  # the call is over
        end = start + _AT_ONCE
        for reply in replies[start:end]:
            self._call.send(encode(reply))
        if end < len(replies):
            self._send_later(replies, end)
            return
        waiting, self._waiting = self._waiting, None
        for hear in waiting:
            hear()

    def _has_read(self, found: Found | BaseException, start_s: float) -> None:
        if self._waiting is None:
            return  # the call is over
        waiting, self._waiting = self._waiting, None
        if isinstance(found, tuple | RequestError):
            self._hear(lambda: self._answer(BodyRead(found), start_s))
        else:
            self._fail_internally(found)
        for hear in waiting:
            hear()

    def _wait(self, held: Held) -> None:
        """Leaves the request in its pool's queue, whose turn it is to speak."""
        self._waiting = []
        held.waiter.ask = self._try
        if held.is_told:
            self._call.send(encode(held))

    def _try(self, is_last: bool) -> None:
        if self._waiting is None:
            return  # the call is over
        start_s = perf_counter()
        waiting, self._waiting = self._waiting, None
        self._hear(lambda: self._answer(Room(is_last), start_s))
        if self._session.is_waiting:
            self._waiting = waiting
            return
        for hear in waiting:
            hear()

    def _tell(self, replies: Sequence[Reply], start_s: float) -> None:
        observer = self._service.observer
        match replies:
            case [Routed(decision=decision, request_id=made), *_]:
                self._routed_s = perf_counter()
                observer.routed(decision, self._routed_s - start_s)
                log.debug("routed %s to %r", made or self._session.request_id, decision.pick)
            case [Answer(pool=pool, outcome=outcome)]:
                observer.answered(pool, outcome)
                log.debug("answered %s: %s", self._session.request_id, outcome)
            case [Served() as served]:
                if served.is_elsewhere:
                    observer.served_elsewhere(served.pool)
                self._service.on_served(served, start_s - self._routed_s)

    def _fail_internally(self, error: BaseException) -> None:
        log.error("a stream failed: %s", type(error).__name__)  # no traceback: it may quote a prompt
        self._fail("internal", Status.INTERNAL, "internal error")

    def _fail(self, why: str, status: Status, details: str) -> None:
        self._service.observer.failed(why)
        self._call.finish(status, details)


class _UnreadyStream(_Stream):
    """One that came before we know of any endpoint: a proxy that fails open knows some, and we fail at once.

    A proxy that did not see the service restart sends requests before it has asked for its health.
    """

    __slots__ = ()

    def on_message(self, message: bytes | bytearray) -> None:  # noqa: ARG002  # whatever it says
        self._fail("unready", Status.UNAVAILABLE, "no list of endpoints yet")

    def on_skipped(self, size: int) -> None:  # noqa: ARG002
        self._fail("unready", Status.UNAVAILABLE, "no list of endpoints yet")


class _TracedStream(_Stream):
    """A stream whose decision becomes a span, if its caller's trace is sampled."""

    __slots__ = ("_origin", "_told")

    def __init__(
        self, service: ExternalProcessor, call: Call, session: Session, wanted: Collection[str]
    ) -> None:
        super().__init__(service, call, session, wanted)
        self._origin: Origin | None = None
        self._told: tuple[Origin, Routed | Answer, float] | None = None

    def _answer(self, event: Event, start_s: float) -> None:
        if isinstance(event, RequestHeaders) and self._service.tracer is not None:
            self._origin = self._service.tracer.sampling.origin(self._call.metadata, event.headers)
        super()._answer(event, start_s)
        if self._told is not None:
            # Behind what is to be sent: nobody waits for a span.
            asyncio.get_running_loop().call_soon(self._record, *self._told)
            self._origin = self._told = None

    def _tell(self, replies: Sequence[Reply], start_s: float) -> None:
        super()._tell(replies, start_s)
        if self._origin is None:
            return
        match replies:
            case [Routed() as told, *_] | [Answer() as told]:
                # Of a routed one the observer has heard the same figure.
                self._told = (self._origin, told, (self._routed_s or perf_counter()) - start_s)

    def _record(self, origin: Origin, told: Routed | Answer, elapsed_s: float) -> None:
        tracer = self._service.tracer
        trace_id = tracer.record(origin, told, elapsed_s) if tracer is not None else ""
        if trace_id:
            self._service.traced(told, elapsed_s, trace_id)


def _call_later(delay_s: float, action: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, action)


def _new_request_id() -> str:
    return str(uuid4())
