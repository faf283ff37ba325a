"""Sharing over a carrier that is slow, lossy, cut in halves, flooded, restarted, dead: hits, and decisions.

Real processes, a mesh through relays and a real NATS server; conversations whose turns go to any
gateway, the next one 0.3 to 0.5 s after the one before. "At once" are the turns from a fault's
beginning on, some 4 s of them; the others come after these. Reference: the same gateways that share
nothing.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, nullcontext
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from tests.benchmarks.report import Row, report
from tests.slow.share.faults import CARRIERS, FAULTS, GATEWAYS, Carriage, carried
from tests.slow.share.sharing import Sharing, build, hit_rate, started

CONVERSATIONS: Final = 40
TURNS: Final = 6
ROUNDS: Final = 3
SEEDS: Final = count(1)


async def hits(
    name: str,
    services: Sequence[Sharing],
    having: Callable[[], AbstractAsyncContextManager[object]],
) -> list[Row]:
    """Each time: as many turns as gateways need to find out how it stands, then the fault begins."""
    at_once, rates, waits_ms = list[float](), list[float](), list[float]()
    for _ in range(ROUNDS):
        await rate(services, [])
        async with having():
            waits_s: list[float] = []
            at_once.append(await rate(services, waits_s))
            rates.append(await rate(services, waits_s))
            waits_ms.append(1000 * median(waits_s))
    rows = [("hits at once", at_once, ""), ("hits", rates, ""), ("median decision", waits_ms, "ms")]
    return [Row(f"{name}: {what}", samples, unit) for what, samples, unit in rows]


async def rate(services: Sequence[Sharing], waits_s: list[float]) -> float:
    return await hit_rate(services, CONVERSATIONS, TURNS, next(SEEDS), waits_s)


@asynccontextmanager
async def once(carriage: Carriage, fault: str) -> AsyncGenerator[None]:
    """Has a fault, and then every letter comes again."""
    async with carriage.having(fault):
        yield
    await carriage.settle()


async def measure_faults(directory: Path) -> list[Row]:
    alone = build(directory / "alone", GATEWAYS, is_shared=False)
    with ExitStack() as stack:
        started(alone, stack)
        rows = await hits("nobody told", alone, nullcontext)
    for carrier in CARRIERS:
        async with carried(carrier, directory / carrier) as carriage:
            rows += await hits(carrier, carriage.services, nullcontext)
            for fault in FAULTS:
                rows += await hits(
                    f"{carrier}, {fault}", carriage.services, partial(once, carriage, fault)
                )
    return rows


def main() -> None:
    with TemporaryDirectory() as directory:
        rows = asyncio.run(measure_faults(Path(directory)))
    report("faults", rows, reference=rows[1].name)


if __name__ == "__main__":
    main()
