"""Sharing over a carrier that is slow, lossy, cut in halves, flooded, restarted, dead: hits, and decisions.

Real processes, a mesh through relays and a real NATS server; conversations whose turns go to any gateway,
the next one 0.3 to 0.5 s after the one before. Each figure after as many turns that do not count: gateways
that hear nothing of each other find out first. Reference: the same gateways that share nothing.
`python -m tests.benchmarks.bench_faults`.
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

from tests.benchmarks.report import Row, report
from tests.integration.test_integration_share import Sharing, build, hit_rate, started
from tests.share.faults import CARRIERS, FAULTS, GATEWAYS, carried

CONVERSATIONS: Final = 40
TURNS: Final = 6
ROUNDS: Final = 3
SEEDS: Final = count(1)


async def hits(name: str, services: Sequence[Sharing]) -> list[Row]:
    rates: list[float] = []
    waits_ms: list[float] = []
    await hit_rate(services, CONVERSATIONS, TURNS, seed=next(SEEDS))
    for _ in range(ROUNDS):
        waits_s: list[float] = []
        rates.append(await hit_rate(services, CONVERSATIONS, TURNS, seed=next(SEEDS), waits_s=waits_s))
        waits_ms.append(1000 * median(waits_s))
    return [Row(f"{name}: hits", rates, ""), Row(f"{name}: median decision", waits_ms, "ms")]


async def measure(directory: Path) -> list[Row]:
    alone = build(directory / "alone", GATEWAYS, is_shared=False)
    with ExitStack() as stack:
        started(alone, stack)
        rows = await hits("nobody told", alone)
    for carrier in CARRIERS:
        async with carried(carrier, directory / carrier) as carriage:
            rows += await hits(carrier, carriage.services)
            for fault in FAULTS:
                async with carriage.having(fault):
                    rows += await hits(f"{carrier}, {fault}", carriage.services)
                await carriage.settle()
    return rows


def main() -> None:
    with TemporaryDirectory() as directory:
        rows = asyncio.run(measure(Path(directory)))
    report("faults", rows, reference=rows[0].name)


if __name__ == "__main__":
    main()
