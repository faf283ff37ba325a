"""Strategies that look at no prefix: round robin, random, least load."""

from collections.abc import Mapping
from itertools import islice
from typing import Final, Literal, Self

from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.strategies.base import (
    Candidates,
    Choice,
    ClockAndRandom,
    Reading,
    Reason,
    Strategy,
    StrategySettings,
)

TURN: Final = Reason("turn", "it was its turn (`round_robin`), or chance (`random`)", "yellow")
LEAST_LOAD: Final = Reason("least_load", "it had the least load", "cyan")
NO_PREFIX: Final = Reason(
    "no_prefix", "the request has no prompt. This endpoint had the least load", "grey"
)


class _Blind(Strategy, Reading):
    """A strategy that sees nothing of a request: it is its own reading of every one."""

    def needs_body(self, _headers: Mapping[str, str], /) -> bool:
        return False

    def read(self, _prompt: Prompt | None, _headers: Mapping[str, str], _adapter: str, /) -> Self:
        return self


class RoundRobinSettings(StrategySettings):
    name: Literal["round_robin"]


class RoundRobin(_Blind):
    name = "round_robin"
    settings = RoundRobinSettings
    reasons = (TURN,)

    def __init__(self, _outside: ClockAndRandom) -> None:
        self._turn = 0

    def choose(self, candidates: Candidates, count: int, /) -> Choice:
        names = candidates.names
        first = self._turn % len(names)
        return Choice((names[first:] + names[:first])[:count], TURN)

    def taken(self, _endpoint: str, /) -> None:
        self._turn += 1


class RandomSettings(StrategySettings):
    name: Literal["random"]


class RandomChoice(_Blind):
    name = "random"
    settings = RandomSettings
    reasons = (TURN,)

    def __init__(self, outside: ClockAndRandom) -> None:
        self._rng = outside.rng

    def choose(self, candidates: Candidates, count: int, /) -> Choice:
        names = candidates.names
        return Choice(tuple(self._rng.sample(names, min(count, len(names)))), TURN)


class LeastLoadSettings(StrategySettings):
    name: Literal["least_load"]


class LeastLoad(_Blind):
    """The endpoint with the fewest requests in flight, ties at random. Each choice carries `reason`."""

    name = "least_load"
    settings = LeastLoadSettings
    reasons = (LEAST_LOAD,)

    def __init__(self, outside: ClockAndRandom, reason: Reason = LEAST_LOAD) -> None:
        self._rng = outside.rng
        self._reason = reason

    def choose(self, candidates: Candidates, count: int, /) -> Choice:
        return Choice(tuple(islice(candidates.least_loaded(self._rng), count)), self._reason)
