"""Runs of a simulated fleet, and what tests compare of them."""

from extproc.simulator.engine.profiles import find_profile
from extproc.simulator.fleet.changes import FleetChange
from extproc.simulator.fleet.chats import Demand
from extproc.simulator.fleet.fleet import FleetRun, Setup, simulate_fleet
from extproc.simulator.fleet.gateway import Routing
from extproc.simulator.fleet.summary import summarize
from extproc.simulator.fleet.traffic import Traffic
from extproc.simulator.fleet.workloads import draw_sessions

PROFILE = find_profile("l4-llama8b-fp8")


def play(
    workload: str = "sessions",
    *,
    requests: int = 600,
    endpoints: int = 4,
    routing: Routing | None = None,
    traffic: Traffic | None = None,
    changes: tuple[FleetChange, ...] = (),
    seed: int = 0,
) -> FleetRun:
    setup = Setup(
        [PROFILE],
        endpoints,
        routing or Routing(),
        traffic or Traffic(rate=30),
        changes=changes,
        seed=seed,
    )
    return simulate_fleet(setup, draw_sessions(workload, Demand(requests, 1.0), seed))


def picture(run: FleetRun) -> list[tuple[int, str, float, float, int]]:
    return [(f.number, f.endpoint, f.first_at, f.ended_at, f.cached_tokens) for f in run.flights]


def hit_rate_of_play(run: FleetRun) -> float:
    return summarize(run, is_whole=True).hit_rate
