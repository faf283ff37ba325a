"""The ext_proc service: passes a stream's messages to its session, and sends the session's replies.

Everything of a request that can fail is caught here: an exception's text, and with it pieces of a
prompt, must reach neither the proxy nor a log.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from enum import Enum, auto
from time import perf_counter
from typing import Final, Protocol

from extproc.errors import ProtocolError, RequestError
from extproc.grpc_server.calls import Call, Handler, Routes, Status
from extproc.router.routing.picker import Decision, Found, Picker
from extproc.router.stream.codec import decode, encode
from extproc.router.stream.events import (
    Answer,
    BodyRead,
    BodySkipped,
    BodyToRead,
    Buffer,
    Event,
    GiveWay,
    Queued,
    Reply,
    RequestHeaders,
    RetryQueued,
    Routed,
    Served,
)
from extproc.router.stream.names import POOL, PROCESS, READ_HEADERS, TRACEPARENT, TRACESTATE
from extproc.router.stream.placing import CountedPick
from extproc.router.stream.session import Session, SessionOptions
from extproc.router.stream.spans import Origin, Tracer

log = logging.getLogger(__name__)

# Pieces sent in one turn of the loop: 2 MB of a body that is given back, in 1 to 2 ms.
_AT_ONCE: Final = 32
_MESSAGE: Final = (bytes, bytearray)


class Observer(Protocol):
    """Counts what becomes of streams and requests. Names of pools are configured ones, or empty."""

    def routed(self, decision: Decision, elapsed_s: float) -> None:
        """A request has its endpoint; `elapsed_s` after the message that decided it."""

    def answered(self, pool: str, outcome: str) -> None:
        """We answered a request ourselves: with a refusal, or with the list of models."""

    def served_elsewhere(self, pool: str) -> None:
        """Another endpoint than the pick answered."""

    def failed(self, why: str) -> None:
        """A stream ended with a fault: `protocol` is the proxy's, `internal` and `unready` are ours."""


class ExternalProcessor:
    """`envoy.service.ext_proc.v3.ExternalProcessor`: one session per stream, of these `options`.

    `picker` returns the picker in force. A stream calls it when it opens and keeps the result to
    its end, so a reload never changes a stream halfway. `on_served` gets the head of each response
    that a gateway sends us, and the seconds since the pick. A request whose response the gateway
    never sends counts as long as its pool's requests usually take, or `unseen_s` where that has not
    been measured; `later` runs an action after a delay (default: the loop's timer). `reader` has
    the thread for long bodies, where sessions read them apart: they would block the loop for
    milliseconds. `tracer` makes spans; without one no stream looks for a trace. While `can_route`
    is false, streams end at once as unavailable.
    """

    def __init__(
        self,
        picker: Callable[[], Picker],
        observer: Observer,
        options: SessionOptions,
        *,
        on_served: Callable[[Served, float], None] = lambda *_: None,
        unseen_s: float = 10,
        later: Callable[[float, Callable[[], None]], object] | None = None,
        reader: Executor | None = None,
        tracer: Tracer | None = None,
        can_route: Callable[[], bool] = lambda: True,
    ) -> None:
        self._picker = picker
        self.observer = observer
        self._options = options
        self.on_served = on_served
        self._unseen_s = unseen_s
        self._later = later or (
            lambda delay_s, action: asyncio.get_running_loop().call_later(delay_s, action)
        )
        self._reader = reader
        self.tracer = tracer
        self._can_route = can_route
        self._read_headers = (
            READ_HEADERS if tracer is None else READ_HEADERS | {TRACEPARENT, TRACESTATE}
        )
        self._wanted: tuple[Picker | None, frozenset[str]] = (None, self._read_headers)
        self.streams_open = 0
        self._idle = asyncio.Event()

    def routes(self) -> Routes:
        return {PROCESS: self.open}

    async def drained(self) -> None:
        if self.streams_open:
            await self._idle.wait()

    def open(self, call: Call) -> Handler:
        picker = self._picker()
        # The operator's Envoy configuration may name the pool in the stream's own metadata. A
        # client's headers never get there, so unlike a request header it needs no stripping to be
        # trusted.
        pool = call.metadata.get(POOL) if len(picker.routes) > 1 else None
        session = Session(picker, self._options, pool)
        self.streams_open += 1
        self._idle.clear()
        return self._kind(call)(self, call, session, self._headers_of(picker))

    def _kind(self, call: Call) -> "type[_Stream]":
        if not self._can_route():
            return _UnreadyStream
        tracer = self.tracer
        return (
            _Stream if tracer is None or tracer.sampling.rules_out(call.metadata) else _TracedStream
        )

    def release_later(self, left: CountedPick) -> None:
        """Counts a request whose end nobody sees for as long as others in its pool take."""
        took_s = left.pick.pool.duration_s if left.pick is not None else None
        self._later(self._unseen_s if took_s is None else took_s, left.release)

    def read(self, long: BodyToRead, then: Callable[[Found | BaseException], None]) -> None:
        future = asyncio.get_running_loop().run_in_executor(self._reader, long.find)
        future.add_done_callback(lambda done: then(done.exception() or done.result()))

    def closed(self) -> None:
        self.streams_open -= 1
        if not self.streams_open:
            self._idle.set()

    def _headers_of(self, picker: Picker) -> frozenset[str]:
        """Which headers a session reads: one set for all streams of a picker."""
        if self._wanted[0] is not picker:
            self._wanted = (picker, self._read_headers | picker.key_headers)
        return self._wanted[1]


class _Flow(Enum):
    """What a stream does with the proxy's next message."""

    OPEN = auto()  # handles it at once
    READING = auto()  # postpones it: a thread reads the body
    RETURNING = (
        auto()
    )  # postpones it: a long body is given back, some pieces in each turn of the loop
    QUEUED = auto()  # postpones it: the request waits in its pool's queue
    CLOSED = auto()  # drops it: the call is over


class _Stream:
    """One open stream. Small: thousands stay open while their responses stream.

    Messages are handled in their order. While the stream is busy they are postponed.
    """

    __slots__ = ("_call", "_flow", "_postponed", "_routed_s", "_service", "_session", "_wanted")

    def __init__(
        self, service: ExternalProcessor, call: Call, session: Session, wanted: Collection[str]
    ) -> None:
        self._service = service
        self._call = call
        self._session = session
        self._wanted = wanted
        self._routed_s = 0.0
        self._flow = _Flow.OPEN
        # Made when it is needed: most streams never do.
        self._postponed: deque[Callable[[], None]] | None = None

    def _postpone(self, message: Callable[[], None]) -> None:
        if self._flow is not _Flow.CLOSED:
            self._postponed = self._postponed or deque()
            self._postponed.append(message)

    def _resume(self) -> None:
        """Handles what was postponed, until one of these messages makes the stream busy again."""
        while self._postponed and self._flow is _Flow.OPEN:
            self._postponed.popleft()()

    def on_message(self, message: bytes | bytearray) -> None:
        if self._flow is _Flow.OPEN:
            self._handle(message, perf_counter())
        else:
            self._postpone(lambda: self.on_message(message))

    def on_skipped(self, size: int) -> None:
        if self._flow is _Flow.OPEN:
            log.debug("no room for a message of %d bytes", size)
            self._handle(BodySkipped(), perf_counter())
        else:
            self._postpone(lambda: self.on_skipped(size))

    def on_half_close(self) -> None:
        if self._flow is not _Flow.OPEN:
            self._postpone(self.on_half_close)
            return
        left = self._session.leave()
        if left is not None:
            self._service.release_later(left)
        self._call.finish()

    def on_close(self) -> None:
        self._flow, self._postponed = _Flow.CLOSED, None
        self._session.close()
        self._service.closed()

    def _handle(self, event: Event | bytes | bytearray, start_s: float) -> None:
        """Answers an event, or a message that is one. Whatever fails ends the call."""
        try:
            self._answer(
                decode(event, self._wanted) if isinstance(event, _MESSAGE) else event, start_s
            )
        except ProtocolError as error:
            self._fail("protocol", Status.INVALID_ARGUMENT, str(error))
        except Exception as error:  # noqa: BLE001  # the last resort: no text of ours may reach the proxy
            self._fail_internally(error)

    def _answer(self, event: Event, start_s: float) -> None:
        replies = self._session.on(event)
        first = replies[0] if replies else None
        if isinstance(first, BodyToRead):
            self._flow = _Flow.READING
            self._service.read(first, lambda found: self._on_read(found, start_s))
            return
        if isinstance(first, Buffer):
            first.upload.give_way = self._give_way
            self._call.send(encode(first))
            return
        if isinstance(first, Queued):
            self._flow = _Flow.QUEUED
            first.waiter.retry = self._try
            if first.can_wait_longer:
                self._call.send(encode(first))
            return
        # Encode all before sending any: a proxy would take half an answer for a whole one.
        encoded = [encode(reply) for reply in replies[:_AT_ONCE]]
        self._observe(replies, start_s)
        for message in encoded:
            self._call.send(message)
        if len(replies) > _AT_ONCE:
            self._flow = _Flow.RETURNING
            asyncio.get_running_loop().call_soon(self._return, replies, _AT_ONCE)

    def _return(self, replies: Sequence[Reply], start: int) -> None:
        """Gives a long body back, a few pieces in each turn of the loop; other streams run in between."""
        if self._flow is _Flow.CLOSED:
            return
        end = start + _AT_ONCE
        for reply in replies[start:end]:
            self._call.send(encode(reply))
        if end < len(replies):
            asyncio.get_running_loop().call_soon(self._return, replies, end)
            return
        self._flow = _Flow.OPEN
        self._resume()

    def _on_read(self, found: Found | BaseException, start_s: float) -> None:
        if self._flow is _Flow.CLOSED:
            return
        self._flow = _Flow.OPEN
        if isinstance(found, Found | RequestError):
            self._handle(BodyRead(found), start_s)
        else:
            self._fail_internally(found)
        self._resume()

    def _try(self, is_last: bool) -> None:
        """Tries a request from its pool's queue again."""
        if self._flow is _Flow.CLOSED:
            return
        self._flow = _Flow.OPEN
        self._handle(RetryQueued(is_last), perf_counter())
        if self._session.is_waiting:
            self._flow = _Flow.QUEUED
        self._resume()

    def _give_way(self) -> None:
        """Answers a request whose body is late: others need its room."""
        self._handle(GiveWay(), perf_counter())

    def _observe(self, replies: Sequence[Reply], start_s: float) -> None:
        observer, first = self._service.observer, replies[0] if replies else None
        if isinstance(first, Routed):
            self._routed_s = perf_counter()
            observer.routed(first.decision, self._routed_s - start_s)
            log.debug(
                "routed %s to %r", first.request_id or self._session.request_id, first.decision.pick
            )
        elif isinstance(first, Answer):
            observer.answered(first.pool, first.outcome)
            log.debug("answered %s: %s", self._session.request_id, first.outcome)
        elif isinstance(first, Served):
            if first.is_elsewhere:
                observer.served_elsewhere(first.pool)
            self._service.on_served(first, start_s - self._routed_s)

    def _fail_internally(self, error: BaseException) -> None:
        log.error(
            "a stream failed: %s", type(error).__name__
        )  # no traceback: it may quote a prompt
        self._fail("internal", Status.INTERNAL, "internal error")

    def _fail(self, why: str, status: Status, details: str) -> None:
        self._service.observer.failed(why)
        self._call.finish(status, details)


class _UnreadyStream(_Stream):
    """A stream opened before any source listed endpoints: it fails at once, so proxies can fail open.

    A proxy that did not notice our restart sends requests before its next health check.
    """

    __slots__ = ()

    def on_message(self, _message: bytes | bytearray) -> None:
        self._fail("unready", Status.UNAVAILABLE, "no list of endpoints yet")

    def on_skipped(self, _size: int) -> None:
        self._fail("unready", Status.UNAVAILABLE, "no list of endpoints yet")


class _TracedStream(_Stream):
    """A stream whose decision becomes a span, if its caller's trace is sampled."""

    __slots__ = ("_decided", "_origin")

    def __init__(
        self, service: ExternalProcessor, call: Call, session: Session, wanted: Collection[str]
    ) -> None:
        super().__init__(service, call, session, wanted)
        self._origin: Origin | None = None
        self._decided: tuple[Origin, Routed | Answer, float] | None = None

    def _answer(self, event: Event, start_s: float) -> None:
        if isinstance(event, RequestHeaders) and self._service.tracer is not None:
            self._origin = self._service.tracer.sampling.origin(self._call.metadata, event.headers)
        super()._answer(event, start_s)
        if self._decided is not None:
            # After the replies are sent: nobody waits for a span.
            asyncio.get_running_loop().call_soon(self._record, *self._decided)
            self._origin = self._decided = None

    def _observe(self, replies: Sequence[Reply], start_s: float) -> None:
        super()._observe(replies, start_s)
        if self._origin is None:
            return
        match replies:
            case [Routed() as reply, *_] | [Answer() as reply]:
                # The observer got the same figure for a routed one.
                self._decided = (self._origin, reply, (self._routed_s or perf_counter()) - start_s)

    def _record(self, origin: Origin, reply: Routed | Answer, elapsed_s: float) -> None:
        tracer = self._service.tracer
        if tracer is not None:
            tracer.record(origin, reply, elapsed_s)
