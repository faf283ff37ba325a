"""What a fleet teaches the strategy that routes to it: the time to the first token of each request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.strategies.base import Outside
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.simulator.engine.profiles import Profile, find_profile
from extproc.simulator.fleet.changes import FleetChange, Kind
from extproc.simulator.fleet.chats import Demand
from extproc.simulator.fleet.fleet import Setup, simulate_fleet
from extproc.simulator.fleet.gateway import Gateways, Routing
from extproc.simulator.fleet.traffic import Traffic
from extproc.simulator.fleet.workloads import draw_sessions
from extproc.simulator.peers.signals import Scrape
from tests.tables import table


@table("factor", [0.5, 2.0])
def test_engines_of_another_speed_are_learnt_from_first_tokens(factor: float) -> None:
    """All endpoints alike: the constants of the pool are theirs, within 15 %."""
    learnt = learn_in_fleet([find_profile("l4-llama8b-fp8").slowed(factor)], ())

    assert learnt["prefill_ms_per_token"] == pytest.approx(0.19 * factor, rel=0.15)
    assert (learnt["source"], slower(learnt)) == ("access_log", [])


def test_constants_that_are_far_too_large_are_learnt_all_the_same() -> None:
    """They make a backlog of nothing, so that nobody seems to be alone: 34 samples and no line, once."""
    learnt = learn_in_fleet([find_profile("l4-llama8b-fp8").slowed(0.25)], (), rate=30.0)

    assert learnt["lines"] >= 1
    assert learnt["prefill_ms_per_token"] < 0.8 * 0.19


def test_one_endpoint_of_half_the_speed_is_found_among_others() -> None:
    learnt = learn_in_fleet([find_profile("l4-llama8b-fp8")], (FleetChange(0.0, Kind.SLOW, 0, 2.0),))

    assert learnt["prefill_ms_per_token"] == pytest.approx(0.19, rel=0.15)
    [factor] = slower(learnt)
    assert 1.4 < factor < 2.6


def slower(learnt: Mapping[str, Any]) -> list[float]:
    return [one["slower_by"] for one in learnt["endpoints"].values() if one["slower_by"] != 1]


def learn_in_fleet(
    profiles: Sequence[Profile], changes: Sequence[FleetChange], rate: float = 6.0
) -> Mapping[str, Any]:
    """What four endpoints taught after 2,500 requests that share nothing, one gateway."""
    kept: list[PrefixCache] = []

    @dataclass(frozen=True, slots=True)
    class Kept(Routing):
        def build_gateways(
            self, endpoints: Sequence[Endpoint], outsides: Sequence[Outside], scrapes: Sequence[Scrape]
        ) -> Gateways:  # nobody is scraped
            def build() -> PrefixCache:
                kept.append(PrefixCache(outsides[0], learn=True))
                return kept[-1]

            gateways = Gateways([build])
            gateways.replace(endpoints)
            return gateways

    sessions = draw_sessions("unique", Demand(2_500, 0.0, 4), 1)
    simulate_fleet(Setup(profiles, 4, Kept(), Traffic(rate=rate), changes), sessions)
    return kept[0].describe_engines()
