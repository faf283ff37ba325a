"""Strategies that look at no prefix: round robin, random, least load."""

from itertools import islice
from random import Random

from extproc.routing.strategies.base import Candidates, Choice, Reason


class RoundRobin:
    """Each endpoint in its turn."""

    name = "round_robin"

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, key: int | None, candidates: Candidates, count: int) -> Choice:  # noqa: ARG002  # no prefix
        names = candidates.names
        first = self._turn % len(names)
        self._turn += 1
        return Choice((names[first:] + names[:first])[:count], Reason.TURN)


class RandomChoice:
    """Any endpoint, with equal chances."""

    name = "random"

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(self, key: int | None, candidates: Candidates, count: int) -> Choice:  # noqa: ARG002  # no prefix
        names = candidates.names
        return Choice(tuple(self._rng.sample(names, min(count, len(names)))), Reason.TURN)


class LeastLoad:
    """The endpoint with the fewest requests in flight, ties at random."""

    name = "least_load"

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(
        self,
        key: int | None,  # noqa: ARG002  # no prefix
        candidates: Candidates,
        count: int,
        reason: Reason = Reason.LEAST_LOAD,
    ) -> Choice:
        return Choice(tuple(islice(candidates.least_loaded(self._rng), count)), reason)
