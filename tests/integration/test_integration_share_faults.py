"""Whatever becomes of what carries letters, gateways place as well as if alone, and no request waits."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.test_integration_share import build, hit_rate, started
from tests.share.faults import CARRIERS, GATEWAYS, SLOW_S, carried

CONVERSATIONS, TURNS = 30, 4


@pytest.mark.timeout(400)  # seconds, but on a busy machine
@pytest.mark.parametrize("carrier", CARRIERS)
async def test_with_a_bad_carrier_gateways_hit_as_often_as_alone_and_nobody_waits(
    carrier: str, tmp_path: Path
) -> None:
    """One fault after the other; `tests.benchmarks.bench_faults` has all of them, for longer."""
    alone = build(tmp_path / "alone", GATEWAYS, is_shared=False)
    with ExitStack() as stack:
        started(alone, stack)
        # The first time they find out how many they are.
        for seed in (1, 2):
            single = await hit_rate(alone, CONVERSATIONS, TURNS, seed=seed)
    async with carried(carrier, tmp_path) as carriage:
        for seed, fault in enumerate(("lossy", "flooded", "restarted", "halves"), 3):
            waits_s: list[float] = []
            async with carriage.having(fault):
                shared = await hit_rate(carriage.services, CONVERSATIONS, TURNS, seed=seed, waits_s=waits_s)
            print(f"{carrier}, {fault}: {shared:.3f}, alone {single:.3f}")  # noqa: T201
            # Of 90 turns chance makes a tenth more or less; by an index alone it were a quarter of them.
            assert shared >= single - 0.15, fault
        async with carriage.having("slow"):
            await hit_rate(carriage.services, 10, 2, seed=99, waits_s=(waits_s := []))
    # Who waits for letters waits each time; a busy machine keeps some waiting, too.
    assert sorted(waits_s)[len(waits_s) // 10] < SLOW_S
