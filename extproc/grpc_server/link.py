"""One socket of a listener: its bytes go to its connection, the connection's events to the services.

A read is one step: the bytes go through the connection, its events to the services, their replies
back, and one write ends it. No coroutine and no queue per call. What services send later is written
in the loop's next turn.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import Final, Protocol, cast

from extproc.grpc_server.budget import Budget, StreamPlaces
from extproc.grpc_server.calls import Handler, Routes, Status
from extproc.grpc_server.connection import Connection
from extproc.grpc_server.limits import WireLimits
from extproc.grpc_server.streams import (
    Closed,
    Event,
    Failed,
    HalfClosed,
    Message,
    MessageSkipped,
    Opened,
    Stream,
)

log = logging.getLogger(__name__)

# Largest read: bounds how long one peer's bytes keep the loop from others.
READ_BYTES: Final = 65_536
# Longest turn for one peer's events: small messages cost far more than their length says.
_TURN_S: Final = 0.002
# Time to send the last bytes, and for a TLS connection its close_notify.
_LAST_WORD_S: Final = 1.0
# Unsent output above which we stop reading from a peer.
_HIGH_WATER_BYTES: Final = 1_048_576
# One message for all that end by their own fault: a flood of them is a line a second
# (`logs.RateLimit`).
_CLOSED: Final = "the connection of %s is closed: %s"


class Host(Protocol):
    """The listener of a link."""

    routes: Routes
    limits: WireLimits
    budget: Budget
    places: StreamPlaces
    memory: memoryview

    def discard(self, link: "Link") -> None: ...


@dataclass(slots=True, eq=False)
class WireCall:
    """One call as its service sees it."""

    _link: "Link"
    _stream: Stream
    handler: Handler | None = None
    timer: asyncio.TimerHandle | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        return self._stream.head.metadata

    @property
    def peer(self) -> str:
        return self._link.peer

    def send(self, message: bytes) -> None:
        self._link.connection.send(self._stream, message)
        self._link.flush_soon()

    def finish(self, status: Status = Status.OK, details: str = "") -> None:
        self._link.connection.finish(self._stream, status, details)
        self._link.flush_soon()


class Link(asyncio.BufferedProtocol):
    """One socket and the connection on it. There is no transport before the handshake has ended."""

    def __init__(self, listener: Host, accepted: socket.socket) -> None:
        self._listener = listener
        self._accepted = accepted
        self._greeting: asyncio.Task[None] | None = None
        self._is_greeted = False
        self._loop = asyncio.get_running_loop()
        self._is_at_work = False
        self._flushing: asyncio.Handle | None = None
        self._turn: asyncio.Handle | None = None  # the next one, where reading pauses until then
        self._stuck_s: float | None = None  # since when the peer does not read
        self.methods: set[str] = set()  # the methods that were called
        self.is_leaving = False
        self.peer = _name(accepted)
        self.host = self.peer.rpartition(":")[0]
        self._began_s = self._loop.time()
        self.connection = Connection(
            listener.limits, listener.budget, self._began_s, listener.places
        )

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH_WATER_BYTES)
        self._is_greeted = True
        if self._greeting is not None and self._greeting.cancelling():
            self._transport.abort()  # it had to go as its handshake ended

    def get_buffer(self, _: int) -> memoryview:
        return self._listener.memory

    def buffer_updated(self, count: int) -> None:
        self._take_in(bytes(self._listener.memory[:count]))
        if count == READ_BYTES:
            self._give_way()

    def _take_in(self, data: bytes) -> None:
        self._is_at_work = True
        self.connection.receive(data, self._loop.time())
        self._work_off()
        self._is_at_work = False

    @property
    def is_idle(self) -> bool:
        return not (self.connection.streams or self._has_more)

    @property
    def _has_more(self) -> bool:
        return self.connection.has_more or bool(self.connection.events)

    def _give_way(self) -> None:
        """Lets the others have their turn: uvloop would read 32 times in a row while there is more."""
        if self._turn is None and self._stuck_s is None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._turn = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Works off what waited for this turn, then reads on; `resume_writing` does it for a stuck peer."""
        self._turn = None
        if self._stuck_s is not None or self._transport.is_closing():
            return
        if self._has_more:
            self._take_in(b"")
        if self._turn is None:
            self._transport.resume_reading()

    def connection_lost(self, _: Exception | None) -> None:
        self._listener.discard(self)
        for handle in (self._flushing, self._turn):
            if handle is not None:
                handle.cancel()
        self._is_at_work = True
        self.connection.abort()
        while self.connection.events:  # the calls are over: each event costs next to nothing
            self._deliver_all()

    def pause_writing(self) -> None:
        """Reads no more from a peer that reads not: its next frames could only make more output."""
        self._stuck_s = self._loop.time()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._stuck_s = None
        self._go_on()

    # Called by the listener.

    def await_hello(self, on_hello: Callable[[], None]) -> None:
        """Calls once, when the peer begins its handshake. Until then it costs nothing but its descriptor."""

        def hear() -> None:
            self._loop.remove_reader(self._accepted)
            on_hello()

        self._loop.add_reader(self._accepted, hear)

    def greet(self, tls: ssl.SSLContext | None) -> None:
        self._greeting = asyncio.create_task(self._greet(tls))
        self._greeting.add_done_callback(self._end_greeting)

    def refuse(self, reason: str) -> None:
        """Ends it now. Who reads gets a GOAWAY, so that it knows what to try again elsewhere."""
        self._listener.discard(self)
        if self._is_greeted and self._stuck_s is None:
            self.connection.refuse(reason)
            self._work_off()
            self._loop.call_later(_LAST_WORD_S, self._transport.abort)
        else:
            log.warning(_CLOSED, self.peer, reason)
            self._cut()

    def tick(self, now_s: float) -> None:
        limits = self._listener.limits
        if not self._is_greeted:
            if now_s - self._began_s > limits.preface_s:
                self.refuse("no TLS handshake in time")
            return
        if self._stuck_s is not None and now_s - self._stuck_s > limits.answer_s:
            log.warning(_CLOSED, self.peer, "it does not read our replies")
            self._cut()
            return
        self._is_at_work = True
        self.connection.tick(now_s)
        self._work_off()
        self._is_at_work = False

    def drain(self) -> None:
        self.is_leaving = True
        if not self._is_greeted:
            self._cut()
            return
        self.connection.drain()
        self._work_off()

    def abort(self) -> None:
        if self._is_greeted:
            self.connection.abort()
            self._work_off()
        self._cut()

    async def _greet(self, tls: ssl.SSLContext | None) -> None:
        with suppress(OSError):  # it is gone, or its handshake failed
            await self._loop.connect_accepted_socket(lambda: self, self._accepted, ssl=tls)

    def _end_greeting(self, _: asyncio.Task[None]) -> None:
        if not self._is_greeted:
            self._accepted.close()
            self._listener.discard(self)

    def _cut(self) -> None:
        if self._is_greeted:
            self._transport.abort()
        elif self._greeting is not None:
            self._greeting.cancel()
        else:
            self._loop.remove_reader(self._accepted)
            self._accepted.close()
            self._listener.discard(self)

    def flush_soon(self) -> None:
        """Writes what was said outside of a read, together with whatever else this turn brings."""
        if not self._is_at_work and self._flushing is None:
            self._flushing = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = None
        self._is_at_work = True
        self._work_off()
        self._is_at_work = False

    def _work_off(self) -> None:
        self._deliver_all()
        self._write()
        if self._has_more:
            self._give_way()

    def _write(self) -> None:
        output = self.connection.take_output()
        if output:
            self._transport.write(output)
        if self.connection.is_over:
            self._stuck_s = self._stuck_s or self._loop.time()
            self._transport.close()

    # The connection's events.

    def _deliver_all(self) -> None:
        """Passes the events to the services, until none is left or the turn has lasted long enough."""
        events = self.connection.events
        delivered, until_s = 0, perf_counter() + _TURN_S
        # Replies may add events while we iterate: those are delivered, too.
        for event in events:
            self._deliver(event)
            delivered += 1
            if perf_counter() > until_s:
                break
        del events[:delivered]

    def _deliver(self, event: Event | Failed) -> None:
        if isinstance(event, Failed):
            log.warning(_CLOSED, self.peer, event.reason)
            return
        kind, stream = type(event), event.stream
        call: WireCall | None = stream.owner
        try:
            if kind is Opened:
                self._open(stream)
            elif (
                call is None or call.handler is None or (stream.is_finished and kind is not Closed)
            ):
                return
            elif kind is Closed:
                if call.timer is not None:
                    call.timer.cancel()
                call.handler.on_close()
            elif isinstance(event, Message):
                call.handler.on_message(event.data)
            elif kind is HalfClosed:
                call.handler.on_half_close()
            elif isinstance(event, MessageSkipped):
                call.handler.on_skipped(event.size)
        except Exception as error:  # noqa: BLE001  # the last resort: no text of ours may reach the peer
            # No traceback either: it may quote a prompt.
            log.error("a call of %s failed: %s", stream.head.path, type(error).__name__)  # noqa: TRY400
            self.connection.finish(stream, Status.INTERNAL, "internal error")

    def _open(self, stream: Stream) -> None:
        if stream.is_over:
            return
        service = self._listener.routes.get(stream.head.path)
        if service is None:
            self.connection.finish(stream, Status.UNIMPLEMENTED, "there is no such method here")
            return
        self.methods.add(stream.head.path)
        call = WireCall(self, stream)
        stream.owner = call
        call.handler = service(call)
        if stream.head.timeout_s is not None:
            call.timer = self._loop.call_later(
                stream.head.timeout_s,
                call.finish,
                Status.DEADLINE_EXCEEDED,
                "the client's own limit",
            )


def _name(accepted: socket.socket) -> str:
    try:
        name = accepted.getpeername()
    except OSError:
        return "one that is gone"
    return ":".join(map(str, name[:2])) if isinstance(name, tuple) else "a unix socket"
