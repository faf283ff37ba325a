"""Whatever becomes of what carries letters, gateways place as well as if alone, and no request waits."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.slow.share.faults import CARRIERS, GATEWAYS, STUCK_S, carried
from tests.slow.share.sharing import build, hit_rate, started

CONVERSATIONS, TURNS = 30, 4
# Of 90 turns chance makes a tenth more or less; by an index alone it were a quarter of them.
MARGIN = 0.15


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How often gateways hit that share nothing, once they found out how many they are."""
    services = build(tmp_path_factory.mktemp("alone"), GATEWAYS, is_shared=False)
    with ExitStack() as stack:
        started(services, stack)

        async def rate() -> float:
            await hit_rate(services, CONVERSATIONS, TURNS, seed=1)
            return await hit_rate(services, CONVERSATIONS, TURNS, seed=2)

        return asyncio.run(rate())


@pytest.mark.timeout(STUCK_S / 9)  # seconds, but on a busy machine
@pytest.mark.parametrize("carrier", CARRIERS)
async def test_with_a_bad_carrier_gateways_hit_as_often_as_alone_and_nobody_waits(
    carrier: str, single: float, tmp_path: Path
) -> None:
    """One fault after the other; `tests.benchmarks.bench_faults` has all of them, for longer.

    While the carrier is stuck no letter comes within the time that this may take: whoever waits for one is
    never answered. Of it, and of the dead one after it, gateways find out by the turns that come meanwhile.
    """
    async with carried(carrier, tmp_path) as carriage:
        for seed, fault in enumerate(("lossy", "flooded", "restarted", "halves", "stuck", "dead"), 3):
            waits_s: list[float] = []
            async with carriage.having(fault):
                shared = await hit_rate(carriage.services, CONVERSATIONS, TURNS, seed=seed, waits_s=waits_s)
            print(f"{carrier}, {fault}: {shared:.3f}, alone {single:.3f}")  # noqa: T201
            assert len(waits_s) == CONVERSATIONS * TURNS, fault
            assert fault == "stuck" or shared >= single - MARGIN, fault
