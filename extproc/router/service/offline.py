"""Decisions without a running service, for the command line."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from time import monotonic

from extproc.errors import ExtprocError
from extproc.router.routing.picker import Ask
from extproc.router.routing.strategies.base import Outside
from extproc.router.service.explain import explain
from extproc.router.service.pools import Pools
from extproc.router.service.wiring import Wiring
from extproc.router.settings.tree import Settings
from extproc.router.telemetry import Metrics


async def explain_once(
    settings: Settings, base: Path, *, path: str, headers: Sequence[str], body: bytes, timeout_s: float
) -> dict[str, object]:
    """Asks the sources once and explains the decision for `body`.

    Raises `ExtprocError` where a source has no list within `timeout_s`, and what the decision raises.
    """
    outside = Outside(Random(), monotonic)  # noqa: S311  # chances, not secrets
    pools = Pools(Metrics(), wiring=Wiring(base, outside), outside=outside)
    pools.apply(settings.pools)
    try:
        await _wait_until_synced(pools, timeout_s)
        return explain(pools.picker, Ask("POST", path, _parse_headers(headers), body))
    finally:
        await pools.stop()


async def _wait_until_synced(pools: Pools, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*(each.keeper.synced.wait() for each in pools))
    except TimeoutError:
        raise ExtprocError("; ".join(pools.faults())) from None


def _parse_headers(headers: Sequence[str]) -> dict[str, str]:
    pairs = (header.partition(":") for header in headers)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}
