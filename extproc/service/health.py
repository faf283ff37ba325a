"""gRPC health (`grpc.health.v1`) under the names that EPP 1.0.0 asks for."""

import asyncio
from collections.abc import Callable
from typing import Final

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc.stream.names import LIVENESS, READINESS

_SERVING: Final = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """`liveness` as long as the process answers; the other names as long as `is_ready()`."""

    def __init__(self, is_ready: Callable[[], bool], *, period_s: float = 0.2) -> None:
        self._is_ready = is_ready
        self._period_s = period_s
        self._servicer = health.aio.HealthServicer()  # type: ignore[attr-defined]  # not in the stubs

    def add_to(self, server: grpc.aio.Server) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def update(self) -> None:
        status = _SERVING if self._is_ready() else _NOT_SERVING
        await self._servicer.set(LIVENESS, _SERVING)
        for name in READINESS:
            await self._servicer.set(name, status)

    async def run(self) -> None:
        """Keeps the answers true until cancelled: a list that grows stale tells nobody."""
        while True:
            await self.update()
            await asyncio.sleep(self._period_s)
