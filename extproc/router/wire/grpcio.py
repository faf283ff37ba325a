"""Serves `Routes` on grpcio: the reference transport, and the way back to it.

One coroutine per call, which reads a message, hands it to the handler and writes what the handler sent.
What is sent between two messages, as a watcher's news is, a task of its own writes.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import grpc
import grpc.aio

from extproc.router.wire.calls import Handler, Open, Routes, Status

log = logging.getLogger(__name__)

_CODES: Final[Mapping[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}

_Context = grpc.aio.ServicerContext[bytes, bytes]


def add_routes(server: grpc.aio.Server, routes: Routes) -> None:
    """Serves `routes` on `server`; any other path is UNIMPLEMENTED."""
    for path, open_ in routes.items():
        service, _, method = path.removeprefix("/").partition("/")
        # Every method is served as one of streams: to the client a call of one message looks the same.
        handler = grpc.stream_stream_rpc_method_handler(_Method(path, open_).serve)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))


class _Method:
    def __init__(self, path: str, open_: Open) -> None:
        self._path = path
        self._open = open_

    async def serve(self, _: object, context: _Context) -> None:
        call = _GrpcioCall(context, asyncio.current_task())
        handler: Handler | None = None
        try:
            try:
                handler = self._open(call)
                await _converse(call, handler)
            except Exception as error:  # noqa: BLE001  # the last resort: no text of ours may reach the client
                self._log(error)
                call.finish(Status.INTERNAL, "internal error")
            await call.end()
        finally:
            call.close()
            if handler is not None:
                self._close(handler)

    def _close(self, handler: Handler) -> None:
        try:
            handler.on_close()
        except Exception as error:  # noqa: BLE001  # as above
            self._log(error)

    def _log(self, error: Exception) -> None:
        # No traceback: it may quote a prompt.
        log.error("a call of %s failed: %s", self._path, type(error).__name__)


async def _converse(call: "_GrpcioCall", handler: Handler) -> None:
    while (message := await call.read()) is not None:
        await call.do(handler.on_message, message)
    if not call.is_finished:
        await call.do(handler.on_half_close)
    await call.wait_until_finished()


class _GrpcioCall:
    """A `Call` on a grpc.aio context. `task` is the call's own, which the end of the call wakes."""

    __slots__ = (
        "_context",
        "_details",
        "_flush",
        "_is_idle",
        "_is_open",
        "_lock",
        "_outbox",
        "_status",
        "_task",
    )

    def __init__(self, context: _Context, task: "asyncio.Task[None] | None") -> None:
        self._context = context
        self._task = task
        self._outbox: deque[bytes] = deque()
        self._status: Status | None = None
        self._details = ""
        self._is_open = True
        self._is_idle = False  # the call's own task waits: what is sent now, another task must write
        self._lock = asyncio.Lock()
        self._flush: asyncio.Task[None] | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        return {
            name: value if isinstance(value, str) else value.decode(errors="replace")
            for name, value in self._context.invocation_metadata() or ()
        }

    @property
    def peer(self) -> str:
        return self._context.peer()

    @property
    def is_finished(self) -> bool:
        return self._status is not None

    def send(self, message: bytes) -> None:
        if not self._is_open or self.is_finished:
            return
        self._outbox.append(message)
        if self._is_idle and (self._flush is None or self._flush.done()):
            self._flush = asyncio.create_task(self._write_news())

    def finish(self, status: Status = Status.OK, details: str = "") -> None:
        if not self._is_open or self.is_finished:
            return
        self._status, self._details = status, details
        if self._is_idle and self._task is not None:
            self._task.cancel()

    async def read(self) -> bytes | None:
        if self.is_finished:
            return None
        message = await self._idle(self._context.read)
        return message if isinstance(message, bytes) else None

    async def wait_until_finished(self) -> None:
        if not self.is_finished:
            await self._idle(asyncio.Event().wait)

    async def do(self, step: Callable[..., None], *arguments: object) -> None:
        """Takes one step of the handler and writes what it sent."""
        step(*arguments)
        await self._write()

    async def end(self) -> None:
        await self._write()
        if self._status not in {None, Status.OK}:
            await self._context.abort(_CODES[self._status or 0], self._details)

    def close(self) -> None:
        self._is_open = False

    async def _idle(self, wait: Callable[[], Awaitable[object]]) -> object:
        """Waits, open to news; returns `None` if the call is finished meanwhile."""
        self._is_idle = True
        try:
            return await wait()
        except asyncio.CancelledError:
            # Ours, to wake this task; but a client may have cancelled in the same moment.
            if self.is_finished and self._task is not None and self._task.uncancel() == 0:
                return None
            raise
        finally:
            self._is_idle = False

    async def _write(self) -> None:
        async with self._lock:
            while self._outbox:
                await self._context.write(self._outbox.popleft())

    async def _write_news(self) -> None:
        try:
            await self._write()
        except Exception as error:  # noqa: BLE001  # the client is gone: its own task ends the call
            log.debug("news for %s were lost: %s", self.peer, type(error).__name__)
