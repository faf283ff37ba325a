"""What goes wrong and when, from a seed. Pure."""

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

EVERY_S: Final = 4.0
# Before the end, all is well for so long.
QUIET_S: Final = 5.0
# From this share of the time on there are some who live to the end.
SPARED: Final = 0.4


class Kind(StrEnum):
    ENDPOINT_KILLED = "endpoint killed"
    ENDPOINT_LEAVES = "endpoint leaves the list"
    ENDPOINT_FAILS = "endpoint answers 500"
    STRATEGY = "strategy changed"
    BAD_FILE = "bad file"
    SERVICE_KILLED = "service killed"
    SERVICE_ENDED = "service ended"
    SERVICE_STOPPED = "service stopped"
    ENVOY_KILLED = "Envoy killed"
    BROKER_KILLED = "broker killed"
    BROKER_STOPPED = "broker stopped"


OF_BROKER: Final = frozenset({Kind.BROKER_KILLED, Kind.BROKER_STOPPED})
_LASTING: Final = frozenset({Kind.STRATEGY, Kind.BAD_FILE, *OF_BROKER})


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """From `at_s` on, for `lasts_s`, something is wrong with a gateway or an endpoint, known by its place."""

    at_s: float
    kind: Kind
    gateway: int
    endpoint: int
    lasts_s: float

    def __str__(self) -> str:
        whose = self.endpoint if "endpoint" in self.kind else self.gateway
        return f"{self.kind}" if self.kind in OF_BROKER else f"{self.kind} ({whose})"


def plan_faults(
    seconds: float, seed: int, gateways: int = 2, endpoints: int = 4, *, has_broker: bool = True
) -> list[PlannedFault]:
    """Every kind once in each round, in another order each time.

    The first gateway and the first endpoint live on from a while before the second half, so that
    there is somebody whose memory one can follow.
    """
    kinds = [kind for kind in Kind if has_broker or kind not in OF_BROKER]
    rng, at_s = random.Random(seed), EVERY_S / 2
    steps: list[PlannedFault] = []
    while True:
        for kind in rng.sample(kinds, len(kinds)):
            if at_s > seconds - QUIET_S - EVERY_S:
                return steps
            first = 1 if at_s > SPARED * seconds and kind not in _LASTING else 0
            gateway, endpoint = rng.randrange(first, gateways), rng.randrange(first, endpoints)
            steps.append(PlannedFault(at_s, kind, gateway, endpoint, rng.uniform(0.5, 3)))
            at_s += rng.uniform(0.75, 1.25) * EVERY_S
