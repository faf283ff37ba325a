"""Serves `Routes` on grpcio: the reference transport, and the way back to it.

Two tasks per call: one writes what the handler sends, whenever that is; the other hands it the
messages.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, cast

import grpc
import grpc.aio
from msgspec import Struct, field

from extproc.grpc_server.calls import Handler, Open, Routes, Status

log = logging.getLogger(__name__)

_CODES: Final[Mapping[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}

_Context = grpc.aio.ServicerContext[bytes, bytes]


def add_routes(server: grpc.aio.Server, routes: Routes) -> None:
    """Serves `routes` on `server`; any other path is UNIMPLEMENTED."""
    for path, open_ in routes.items():
        service, _, method = path.removeprefix("/").partition("/")
        # Every method is served as one of streams: to the client a call of one message looks the
        # same.
        handler = grpc.stream_stream_rpc_method_handler(_Method(path, open_).serve)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )


class _Method(Struct, frozen=True):
    _path: str
    _open: Open

    async def serve(self, _: object, context: _Context) -> None:
        call = _GrpcioCall(context)
        handler: Handler | None = None
        reading: asyncio.Task[None] | None = None
        try:
            try:
                handler = self._open(call)
                reading = asyncio.create_task(self._read(call, handler, context))
            except Exception as error:  # noqa: BLE001  # the last resort: no text of ours may reach the client
                self._fail(call, error)
            await call.write_all()
        finally:
            if reading is not None:
                reading.cancel()
            if handler is not None:
                try:
                    handler.on_close()
                except Exception as error:  # noqa: BLE001  # as above
                    self._fail(call, error)

    async def _read(self, call: "_GrpcioCall", handler: Handler, context: _Context) -> None:
        try:
            # At the end it is `grpc.aio.EOF`, which the stubs lack.
            while isinstance(message := cast("object", await context.read()), bytes):
                if call.is_finished:
                    return
                handler.on_message(message)
            if not (call.is_finished or context.cancelled()):
                handler.on_half_close()
        except Exception as error:  # noqa: BLE001  # as above
            self._fail(call, error)

    def _fail(self, call: "_GrpcioCall", error: Exception) -> None:
        # No traceback: it may quote a prompt.
        log.error("a call of %s failed: %s", self._path, type(error).__name__)
        call.finish(Status.INTERNAL, "internal error")


class _GrpcioCall(Struct, eq=False):
    """A `Call` on a grpc.aio context: what a handler sends waits for the call's own task, which writes it."""

    _context: _Context
    _outbox: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)  # `None`: the end
    _status: Status | None = None
    _details: str = ""

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
        if not self.is_finished:
            self._outbox.put_nowait(message)

    def finish(self, status: Status = Status.OK, details: str = "") -> None:
        if not self.is_finished:
            self._status, self._details = status, details
            self._outbox.put_nowait(None)

    async def write_all(self) -> None:
        """Writes what is sent, until the call is finished, and then its status."""
        while (message := await self._outbox.get()) is not None:
            await self._context.write(message)
        if self._status not in {None, Status.OK}:
            await self._context.abort(_CODES[self._status or 0], self._details)
