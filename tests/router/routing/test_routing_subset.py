"""The addresses that a proxy allows: found in any spelling, however many it names."""

import random

import pytest

import extproc.router.routing.pool as pools
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import MAX_SPELLINGS, MAX_SUBSET, Snapshot
from extproc.router.routing.strategies.base import Outside
from extproc.router.routing.strategies.prefix_hash import PrefixHash
from tests.tables import table

SNAPSHOT = Snapshot.build(
    [Endpoint("a", "10.0.0.1:8000"), Endpoint("b", "10.0.0.1:8001"), Endpoint("c", "[fd00::3]:8000")],
    PrefixHash(Outside(random.Random(0), lambda: 0.0), positions=4),
)


@table(
    ("subset", "names"),
    [
        ([], set()),
        (["10.0.0.1:8000"], {"a"}),
        (["10.0.0.1"], {"a", "b"}),
        ([" 10.0.0.1:8001", "FD00:0::3"], {"b", "c"}),
        (["[fd00:0:0::3]:8000"], {"c"}),
        (["10.0.0.2:8000", "nonsense", "", "x" * 1_000_000], set()),
        (["nonsense"] * (MAX_SPELLINGS - 1) + ["FD00::3"], {"c"}),
        (["nonsense"] * MAX_SPELLINGS + ["FD00::3", "10.0.0.1:8000"], {"a"}),
        (["nonsense"] * (MAX_SUBSET - 1) + ["10.0.0.1:8000"], {"a"}),
        (["nonsense"] * MAX_SUBSET + ["10.0.0.1:8000"], set()),
    ],
)
def test_endpoints_of_a_subset_are_found(subset: list[str], names: set[str]) -> None:
    assert names == SNAPSHOT.locate(subset)


def test_endless_subset_is_read_as_far_as_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def canonical(location: str) -> str:
        read.append(location)
        return location

    monkeypatch.setattr(pools, "canonical_location", canonical)

    SNAPSHOT.locate(f"10.1.{number >> 8}.{number & 255}:8000" for number in range(200_000))

    assert len(read) == MAX_SPELLINGS
