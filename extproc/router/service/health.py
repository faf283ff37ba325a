"""gRPC health (`grpc.health.v1`) under the names that EPP 1.0.0 requires."""

import asyncio
from collections.abc import Callable
from functools import partial

from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2 as pb
from msgspec import Struct

from extproc.grpc_server.calls import Call, Routes, Status
from extproc.router.stream.names import CHECK, LIVENESS, READINESS, WATCH

_SERVING, _NOT_SERVING, _UNKNOWN = (
    bytes(pb.HealthCheckResponse(status=name).SerializeToString())
    for name in ("SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
)


class Health:
    """`liveness` as long as the process answers; the other names as long as `is_ready()`."""

    def __init__(self, is_ready: Callable[[], bool], *, period_s: float = 0.2) -> None:
        self._is_ready = is_ready
        self._period_s = period_s
        self._answers = dict.fromkeys(READINESS, _NOT_SERVING) | {LIVENESS: _SERVING}
        self._watchers: dict[
            Call, str | None
        ] = {}  # no name that we do not know: it may have 48 MB

    def routes(self) -> Routes:
        return {
            path: partial(_Question, answer, self._watchers)
            for path, answer in ((CHECK, self._check), (WATCH, self._watch))
        }

    def update(self) -> None:
        """Calls `is_ready` and sends the watchers a changed answer."""
        fresh = _SERVING if self._is_ready() else _NOT_SERVING
        changed = {name for name in READINESS if self._answers[name] != fresh}
        self._answers |= dict.fromkeys(changed, fresh)
        for call, name in tuple(self._watchers.items()):
            if name in changed:
                call.send(fresh)

    async def run(self) -> None:
        """Keeps the answers true until cancelled: no event says that a list grows stale."""
        while True:
            self.update()
            await asyncio.sleep(self._period_s)

    def leave(self) -> None:
        """Sends watchers the last answer and ends their streams: a client may drop it where one is cut."""
        self.update()
        for call in tuple(self._watchers):
            call.finish(Status.UNAVAILABLE, "the service ends")

    def _check(self, call: Call, name: str) -> None:
        # Read it now: after a single NOT_SERVING an Envoy skips the service until its next check.
        self.update()
        if name not in self._answers:
            call.finish(Status.NOT_FOUND, "unknown service")
            return
        call.send(self._answers[name])
        call.finish()

    def _watch(self, call: Call, name: str) -> None:
        """Answers now and at each change. The stream of an unknown name stays open (health.proto)."""
        call.send(self._answers.get(name, _UNKNOWN))
        self._watchers[call] = name if name in self._answers else None


class _Question(Struct, eq=False):
    """A call that begins with one HealthCheckRequest, and no more."""

    _answer: Callable[[Call, str], None]
    _watchers: dict[Call, str | None]
    _call: Call
    _has_request: bool = False

    def on_message(self, message: bytes | bytearray) -> None:
        try:
            name = pb.HealthCheckRequest.FromString(bytes(message)).service
        except DecodeError:
            self._call.finish(Status.INVALID_ARGUMENT, "not a HealthCheckRequest")
            return
        if not self._has_request:
            self._has_request = True
            self._answer(self._call, name)

    def on_skipped(self, size: int) -> None:
        del size
        self._call.finish(Status.RESOURCE_EXHAUSTED)

    def on_half_close(self) -> None:
        if not self._has_request:
            self._call.finish(Status.INVALID_ARGUMENT, "no HealthCheckRequest")

    def on_close(self) -> None:
        self._watchers.pop(self._call, None)
