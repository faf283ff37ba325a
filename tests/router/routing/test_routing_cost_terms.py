"""The terms of the cost that keep a pool upright near its capacity; see the essay of `cost`."""

import math
import random

import pytest

from extproc.router.routing.strategies.prefix_cache.engine_model import ENGINES, EngineModel
from extproc.router.routing.strategies.prefix_cache.holding import Holding
from extproc.router.routing.strategies.prefix_cache.homes import GatewayCount
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from tests.tables import table


def filled(idle_bytes: int, used_s: float) -> Holding:
    """A holding of 1,000 bytes, so full of one block that was used then."""
    holding = Holding("a", "10.0.0.1:80", 1_000)
    holding.idle[7] = used_s
    holding.idle_bytes = idle_bytes
    return holding


@table(
    ("idle_bytes", "size", "age_s", "expected"),
    [
        (400, 600, 0, 0),  # there is room
        (401, 600, 0, 600),  # there is not, and what goes was just used
        (1_000, 600, 10, 600 / math.e),
        (1_000, 600, 1_000, 0),  # nobody will ask for it again
    ],
)
def test_a_prefill_costs_what_it_evicts(idle_bytes: int, size: int, age_s: float, expected: float) -> None:
    holding = filled(idle_bytes, used_s=0.0)

    assert holding.evicts(size, now=age_s) == pytest.approx(expected, abs=0.01)


def test_where_open_requests_fill_a_cache_all_that_comes_is_counted() -> None:
    holding = Holding("a", "10.0.0.1:80", 1_000)
    holding.pinned_bytes = 1_000

    assert holding.evicts(300, now=5.0) == 300


def test_a_request_in_flight_weighs_a_part_of_a_step_or_of_the_mean_prefill() -> None:
    reasons = PrefixCache.reasons
    engine = EngineModel(ENGINES["h100-llama8b-bf16"], 430_000, GatewayCount(1), reasons, random.Random(0))
    engine.follow(["a"])
    by_step = engine.ms_per_request
    for _ in range(500):
        engine.predict("a", 40_000, 40_000, reasons[0])

    assert by_step == pytest.approx(6 / 4)
    assert engine.ms_per_request == pytest.approx(0.05 * 40_000 * engine.ms_per_byte, rel=0.01)
