"""Running pools without a service around them, and what a service says of its health."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.router.routing.strategies.base import Outside
from extproc.router.service.pools import Pools
from extproc.router.service.wiring import PoolWiring
from extproc.router.settings.reading import parse_settings
from extproc.router.stream.names import EXT_PROC
from extproc.router.telemetry import Metrics
from tests.clock import Clock


def build_pools(
    directory: Path | None = None, clock: Callable[[], float] | None = None, metrics: Metrics | None = None
) -> Pools:
    outside = Outside(random.Random(0), clock or Clock())
    return Pools(metrics or Metrics(), wiring=PoolWiring(directory or Path(), outside), outside=outside)


def configure(pools: Pools, text: str) -> None:
    pools.apply(parse_settings(text, {}).pools)


async def synced(pools: Pools) -> None:
    """Returns once every pool has a list of endpoints."""
    await asyncio.gather(*(each.keeper.synced.wait() for each in pools))


@asynccontextmanager
async def running(
    text: str,
    directory: Path | None = None,
    clock: Callable[[], float] | None = None,
    metrics: Metrics | None = None,
) -> AsyncIterator[Pools]:
    """Pools with these settings, which may have no endpoints yet."""
    pools = build_pools(directory, clock, metrics)
    configure(pools, text)
    try:
        yield pools
    finally:
        await pools.stop()


def health_at(port: int, name: str = EXT_PROC) -> str:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=2)
        except grpc.RpcError as error:
            return str(error.code())
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
