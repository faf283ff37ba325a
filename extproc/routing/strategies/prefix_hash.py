"""Consistent hashing with bounded loads: a prefix has a home, and a home has a limit."""

from random import Random

from extproc.routing.strategies.balanced import LeastLoad
from extproc.routing.strategies.base import Candidates, Choice, Reason


class PrefixHash:
    """Walks the ring from the routing key to the first endpoint within its bound.

    The bound (Mirrokni, Thorup, Zadimoghaddam 2018) is `load_factor` times the mean load with this
    request counted, as KubeAI computes it: float, unrounded, the candidate's own +1 left out. An
    endpoint with fewer than `load_floor` requests in flight is always within it: at a handful of
    requests the mean says nothing, and leaving a warm endpoint costs a whole prefill.
    `load_floor` 0 is KubeAI's rule exactly.

    `load_factor` is at least 1, so some endpoint is always within the bound: the least loaded one has
    at most the mean. Because the number of endpoints over the bound is then limited too, a walk looks
    at O(1) endpoints on average (ibid., theorem 3).
    """

    name = "prefix_hash"

    def __init__(self, rng: Random, *, load_factor: float = 1.25, load_floor: int = 4) -> None:
        if load_factor < 1:
            raise ValueError(f"load_factor {load_factor} is below 1: every endpoint could be over its bound")
        self.load_factor = load_factor
        self.load_floor = load_floor
        self._least_load = LeastLoad(rng)

    def bound(self, candidates: Candidates) -> float:
        """The highest load, in requests in flight, at which an endpoint still takes one more."""
        relative = (candidates.total + 1) / len(candidates) * self.load_factor
        return max(relative, self.load_floor - 1)

    def choose(self, key: int | None, candidates: Candidates, count: int) -> Choice:
        if key is None:
            return self._least_load.choose(key, candidates, count, Reason.NO_PREFIX)
        bound, in_flight = self.bound(candidates), candidates.in_flight
        names: list[str] = []
        passed: list[str] = []
        reason = Reason.HOME
        for name in candidates.walk(key):
            if in_flight(name) <= bound:
                names.append(name)
                if len(names) == count:
                    break
            else:
                passed.append(name)
                reason = reason if names else Reason.SPILL
        # A retry on a busy endpoint is better than none: those that were passed over come last.
        return Choice((*names, *passed)[:count], reason)
