"""Gateways: independent pickers in front of one fleet, each with its own idea of the load."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from extproc.errors import SettingsError
from extproc.routing.endpoint import Endpoint
from extproc.routing.pool import Pool, Snapshot
from extproc.routing.ring import Ring
from extproc.routing.strategies.balanced import LeastLoad, RandomChoice, RoundRobin
from extproc.routing.strategies.base import Strategy
from extproc.routing.strategies.prefix_hash import PrefixHash

STRATEGIES: Final = ("round_robin", "random", "least_load", "prefix_hash")


@dataclass(frozen=True, slots=True)
class Routing:
    """How the fleet is routed to.

    `gateways` pickers share the requests evenly and nothing else. They hear of a request's end
    `signal_delay_s` late, and of an endpoint that comes or goes `discovery_delay_s` late.
    """

    strategy: str = "prefix_hash"
    load_factor: float = 1.25
    load_floor: int = 4
    positions: int = 256
    gateways: int = 1
    signal_delay_s: float = 0.0
    discovery_delay_s: float = 0.0

    def build_pools(self, names: Sequence[str], rng: Random) -> list[Pool]:
        """Returns one pool per gateway; raises `SettingsError` for an unknown strategy."""
        ring = Ring((), self.positions)
        snapshot = Snapshot.build(build_endpoints(names), ring)
        pools = [Pool("fleet", self._build_strategy(rng), ring) for _ in range(self.gateways)]
        for pool in pools:
            pool.install(snapshot)
        return pools

    def _build_strategy(self, rng: Random) -> Strategy:
        builders: dict[str, Callable[[], Strategy]] = {
            "round_robin": RoundRobin,
            "random": lambda: RandomChoice(rng),
            "least_load": lambda: LeastLoad(rng),
            "prefix_hash": lambda: PrefixHash(rng, load_factor=self.load_factor, load_floor=self.load_floor),
        }
        if self.strategy not in builders:
            raise SettingsError(f"{self.strategy!r} is no strategy: choose from {', '.join(builders)}")
        return builders[self.strategy]()


def build_endpoints(names: Sequence[str]) -> list[Endpoint]:
    """Returns an endpoint per name; its address only has to be unique."""
    return [
        Endpoint(name, f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:8000")
        for number, name in ((int(name.rpartition("-")[2]), name) for name in names)
    ]
