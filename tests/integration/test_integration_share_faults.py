"""Whatever becomes of what carries letters, gateways place as well as if alone, and no request waits."""

from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest

from tests.integration.test_integration_share import build, hit_rate, started
from tests.share.faults import CARRIERS, FAULTS, GATEWAYS, SLOW_S, carried

CONVERSATIONS, TURNS = 30, 4


@pytest.mark.parametrize("carrier", CARRIERS)
async def test_with_every_fault_gateways_hit_as_often_as_alone_and_nobody_waits(
    carrier: str, tmp_path: Path
) -> None:
    """Each fault in turn, healed before the next one; the figures of long runs are in docs/sharing.md."""
    alone = build(tmp_path / "alone", GATEWAYS, is_shared=False)
    with ExitStack() as stack:
        started(alone, stack)
        # The first time they find out how many they are.
        for seed in (1, 2):
            single = await hit_rate(alone, CONVERSATIONS, TURNS, seed=seed)
    async with carried(carrier, tmp_path) as carriage:
        for seed, fault in enumerate(FAULTS, 3):
            waits_s: list[float] = []
            async with carriage.having(fault):
                # As those alone do, they find out first how many hear nothing of each other.
                await hit_rate(carriage.services, CONVERSATIONS, TURNS, seed=seed + 100)
                shared = await hit_rate(carriage.services, CONVERSATIONS, TURNS, seed=seed, waits_s=waits_s)
            took_ms = 1000 * median(waits_s)
            print(f"{carrier}, {fault}: {shared:.3f}, alone {single:.3f}, {took_ms:.1f} ms")  # noqa: T201
            # Of 90 turns chance makes a tenth more or less; without homes it were a quarter of them.
            assert shared >= single - 0.15, fault
            # Half of all requests in less than a letter takes: decisions do not wait for any.
            assert took_ms < 500 * SLOW_S, fault
            await carriage.settle()
