"""Strategies that look at no prefix: round robin, random, least load."""

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Self

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.strategies.base import (
    NOWHERE,
    Candidates,
    Choice,
    Outside,
    Placement,
    Reading,
    Reason,
    Strategy,
)


class _Blind(Strategy, Reading):
    """A strategy that sees nothing of a request: it is its own reading of every one."""

    headers: Collection[str] = ()

    def needs_body(self, headers: Mapping[str, str]) -> bool:  # noqa: ARG002  # nothing is
        return False

    def read(self, prompt: Prompt | None, headers: Mapping[str, str], adapter: str) -> Self:  # noqa: ARG002  # nothing is
        return self

    def place(self, ready: Mapping[str, Endpoint], before: Placement) -> Placement:  # noqa: ARG002  # nowhere
        return NOWHERE

    def follow(self, ready: Mapping[str, Endpoint]) -> None:
        pass


class RoundRobin(_Blind):
    """Each endpoint in its turn."""

    name = "round_robin"
    reasons = (Reason.TURN,)

    def __init__(self, outside: Outside) -> None:  # noqa: ARG002  # all strategies are made alike
        self._turn = 0

    def choose(self, candidates: Candidates, count: int) -> Choice:
        names = candidates.names
        first = self._turn % len(names)
        return Choice((names[first:] + names[:first])[:count], Reason.TURN)

    def taken(self, endpoint: str) -> None:  # noqa: ARG002  # whichever it is
        self._turn += 1


class RandomChoice(_Blind):
    """Any endpoint, with equal chances."""

    name = "random"
    reasons = (Reason.TURN,)

    def __init__(self, outside: Outside) -> None:
        self._rng = outside.rng

    def choose(self, candidates: Candidates, count: int) -> Choice:
        names = candidates.names
        return Choice(tuple(self._rng.sample(names, min(count, len(names)))), Reason.TURN)


class LeastLoad(_Blind):
    """The endpoint with the fewest requests in flight, ties at random. `reason` is told with each choice."""

    name = "least_load"
    reasons = (Reason.LEAST_LOAD,)

    def __init__(self, outside: Outside, reason: Reason = Reason.LEAST_LOAD) -> None:
        self._rng = outside.rng
        self._reason = reason

    def choose(self, candidates: Candidates, count: int) -> Choice:
        return Choice(tuple(islice(candidates.least_loaded(self._rng), count)), self._reason)
