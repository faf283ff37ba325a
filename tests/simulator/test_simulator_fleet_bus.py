"""Simulated gateways that share their picks: late, with losses, and not at all."""

import random
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import structs

from extproc.simulator.commands import simulate as command
from extproc.simulator.engine.profiles import find_profile
from extproc.simulator.fleet.bus import BusFault, Sharing
from extproc.simulator.fleet.fleet import FleetRun, Setup, simulate_fleet
from extproc.simulator.fleet.gateway import Routing
from extproc.simulator.fleet.traffic import Traffic
from tests.simulator.plays import hit_rate, picture, play
from tests.simulator.prompts import planned


def shared(sharing: Sharing | None, gateways: int = 4) -> FleetRun:
    return play(requests=800, routing=Routing("prefix_cache", gateways=gateways, sharing=sharing))


@pytest.fixture(scope="module")
def alone() -> float:
    return hit_rate(shared(None, gateways=1))


@pytest.fixture(scope="module")
def unshared() -> float:
    return hit_rate(shared(None))


@pytest.mark.parametrize(
    "sharing",
    [
        Sharing(),
        Sharing(0.01),
        Sharing(1.0),
        Sharing(0.01, loss=0.1),
        Sharing(0.01, 0.0, BusFault.SLOWS, 15.0),
    ],
    ids=lambda sharing: f"{sharing.delay_s:g}-{sharing.loss:g}-{sharing.fault}",
)
def test_gateways_that_share_find_as_much_as_one(alone: float, unshared: float, sharing: Sharing) -> None:
    """Those that share nothing find less, or this would show nothing."""
    assert hit_rate(shared(sharing)) == pytest.approx(alone, abs=0.02)
    assert unshared < alone - 0.02


def test_a_gateway_that_is_started_again_soon_finds_as_much_as_before(alone: float) -> None:
    restarted = hit_rate(shared(Sharing(0.01, fault=BusFault.RESTART, middle_s=15.0), gateways=2))

    assert restarted == pytest.approx(alone, abs=0.05)


def test_a_dead_bus_changes_nothing_and_a_shared_run_is_the_same_each_time() -> None:
    sharings = [None, Sharing(fault=BusFault.DEAD), *[Sharing(0.01, loss=0.1)] * 2]
    none, dead, one, other = (
        picture(play(requests=200, routing=Routing("prefix_cache", gateways=4, sharing=sharing)))
        for sharing in sharings
    )

    assert none == dead
    assert one == other


@pytest.mark.parametrize("fault", [BusFault.DIES, BusFault.AWAY, BusFault.HALVES])
def test_a_bus_that_fails_later_costs_little_against_none(unshared: float, fault: BusFault) -> None:
    """All of these are in the minute after the loss, and users think for a second: the worst time of all."""
    assert hit_rate(shared(Sharing(0.01, fault=fault, middle_s=15.0))) > unshared - 0.05


BEGINS_S, TURNS_TELL_S, ENDS_S = 12.0, 5.0, 32.0


def quick(sharing: Sharing | None) -> float:
    """Of the later turns, some seconds after a fault began, the share that went where the last one went.

    Ten conversations a second begin, their turns half a second apart.
    """
    rng = random.Random(1)
    turns = [(100 + 110 * turn, 10, 0.3 if turn else 0.0) for turn in range(5)]
    starts = sorted(rng.uniform(0, ENDS_S) for _ in range(320))
    setup = Setup(
        [find_profile("h100-llama8b-bf16")],
        4,
        Routing("prefix_cache", {"engine": "h100-llama8b-bf16"}, 4, sharing=sharing),
        Traffic(until_s=ENDS_S),
    )
    sessions = [
        structs.replace(planned(owner, *turns), start_s=start_s) for owner, start_s in enumerate(starts)
    ]
    places: dict[int, str] = {}
    hits = []
    for flight in simulate_fleet(setup, sessions).flights:
        before, places[flight.session.owner] = places.get(flight.session.owner), flight.endpoint
        if before is not None and flight.due_at >= BEGINS_S + TURNS_TELL_S:
            hits.append(before == flight.endpoint)
    return sum(hits) / len(hits)


@pytest.fixture(scope="module")
def quick_unshared() -> float:
    return quick(None)


@pytest.mark.parametrize("fault", [BusFault.SLOWS, BusFault.DIES, BusFault.HALVES])
def test_five_seconds_after_a_fault_began_turns_have_told(quick_unshared: float, fault: BusFault) -> None:
    """Before that quick turns miss: of the first 4 s six in ten hit."""
    assert quick(Sharing(0.01, 0.0, fault, BEGINS_S)) >= 0.95 * quick_unshared


def test_the_command_shares() -> None:
    """A fault is written as the documentation writes it."""
    options = ["--arm", "prefix_cache", "--requests", "40", "--gateways", "2", "--seed", "1"]
    losses = [["--share-delay", "10", "--share-loss", loss] for loss in ("0.1", "1.5")]
    asked = (*losses, ["--share-fault", "halves"])
    done = [CliRunner().invoke(command, ["fleet", *options, *each]).exit_code for each in asked]

    assert done == [0, 2, 0]


def test_a_matrix_has_every_way_of_sharing_in_its_table_and_csv(tmp_path: Path) -> None:
    csv = tmp_path / "m.csv"
    options = ["--arm", "prefix_cache", "--workload", "T", "--load", "0.4", "--seeds", "1", "--workers", "1"]
    sharing = ["--share-delay", "10", "--share-delay", "100", "--share-fault", "dies", "--gateways", "2"]
    short = ["--warmup-s", "1", "--measured-s", "2", "--csv", str(csv)]
    done = CliRunner().invoke(command, ["matrix", str(tmp_path / "m"), *options, *sharing, *short])

    assert done.exit_code == 0, done.output
    assert "workload T, load 0.4" in done.output
    assert "share_delay_ms 100.0, share_fault dies" in done.output
    assert "share_delay_ms 10.0, share_fault dies" in done.output
    assert csv.read_text().count("\n") == 3
