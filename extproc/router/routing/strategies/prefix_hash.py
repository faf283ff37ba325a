"""Consistent hashing with bounded loads: a prefix has a home, and a home has a limit."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal

from pydantic import Field, field_validator

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.prompt.prefix import KeyKind, parse_key, prefix_of, routing_key
from extproc.router.routing.ring import Ring
from extproc.router.routing.strategies.balanced import NO_PREFIX, LeastLoad
from extproc.router.routing.strategies.base import (
    Candidates,
    Choice,
    ClockAndRandom,
    Placement,
    Reading,
    Reason,
    Strategy,
    StrategySettings,
)

# An explanation lists no more of the walk: the rest is of no use.
_WALK_LENGTH: Final = 16


HOME: Final = Reason("home", "it is the usual endpoint for this prefix", "magenta")
SPILL: Final = Reason(
    "spill",
    "the usual endpoint, or one with most of the prompt, was too busy. This is the next",
    "orange",
)


# Headers by which agents name a session: sub-agents and rewritten prompts follow it.
_HEADERS: Final = ("x-session-affinity", "x-claude-code-session-id", "session-id")
_KEYS: Final = (
    *(f"header:{name}" for name in _HEADERS),
    "field:prompt_cache_key",
    "first_user_message",
)


class PrefixHashSettings(StrategySettings):
    """Consistent hashing with bounded loads."""

    name: Literal["prefix_hash"]
    key: list[str] = Field(default=[*_KEYS], min_length=1)
    """What to hash: the first of these that a request has. `first_user_message` (KubeAI's), `prompt_head`,
    `conversation`, `header:<name>`, `field:<name>`. Omitted: the session names of agents come
    first."""
    prefix_chars: int = Field(default=100, ge=1, le=1_000_000)
    """How many characters to hash (KubeAI: 100). With fewer, more prompts go to the same endpoint."""
    load_factor: float = Field(default=1.25, ge=1, le=100)
    """If an endpoint has this many times the mean load, its prefixes go to the next endpoint."""
    load_floor: int = Field(default=4, ge=0, le=100_000)
    """With fewer requests in flight, `load_factor` does not limit an endpoint. 0 is KubeAI's rule."""
    positions: int = Field(default=256, ge=1, le=4_096)
    """Positions on the ring per endpoint. More of them spread keys more evenly, and take more memory."""

    @field_validator("key", mode="before")
    @classmethod
    def _are_keys(cls, key: Any) -> Any:
        keys = [key] if isinstance(key, str) else key
        for text in keys if isinstance(keys, list) else []:
            parse_key(str(text))
        return keys


class PrefixHash(Strategy):
    """Walks the ring from the routing key to the first endpoint within its bound.

    `key` names the places where a prefix is looked for, `prefix_chars` is how much of it counts; a
    request without any goes to the least loaded endpoint. The ring has so many `positions` per
    endpoint.

    The bound (Mirrokni, Thorup, Zadimoghaddam 2018) is `load_factor` times the mean load with this
    request counted, as KubeAI computes it: float, unrounded, the candidate's own +1 left out. An
    endpoint with fewer than `load_floor` requests in flight is always within it: at a handful of
    requests the mean says nothing, and leaving a warm endpoint costs a whole prefill.
    `load_floor` 0 is KubeAI's rule exactly.

    `load_factor` is at least 1, so some endpoint is always within the bound: the least loaded one
    has at most the mean. Because the number of endpoints over the bound is then limited too, a walk
    looks at O(1) endpoints on average (ibid., theorem 3).
    """

    name = "prefix_hash"
    settings = PrefixHashSettings
    reasons = (HOME, SPILL, NO_PREFIX)

    def __init__(
        self,
        outside: ClockAndRandom,
        *,
        key: Sequence[str] = _KEYS,
        prefix_chars: int = 100,
        load_factor: float = 1.25,
        load_floor: int = 4,
        positions: int = 256,
    ) -> None:
        if load_factor < 1:
            raise ValueError(
                f"load_factor {load_factor} is below 1: every endpoint could be over its bound"
            )
        self._keys = tuple(map(parse_key, key))
        self._prefix_chars = prefix_chars
        self._load_factor = load_factor
        self._load_floor = load_floor
        self._positions = positions
        self._without_prefix = LeastLoad(outside, NO_PREFIX)
        self.headers = frozenset(key.name for key in self._keys if key.kind is KeyKind.HEADER)

    def needs_body(self, headers: Mapping[str, str], /) -> bool:
        first = self._keys[0]
        return first.kind is not KeyKind.HEADER or not headers.get(first.name)

    def read(self, prompt: Prompt | None, headers: Mapping[str, str], adapter: str, /) -> Reading:
        prefix = prefix_of(prompt, self._keys, self._prefix_chars, headers)
        if not prefix:
            return self._without_prefix
        model, salt = (prompt.model or "", prompt.cache_salt) if prompt else ("", "")
        return self.reading(routing_key(prefix, model=model, adapter=adapter, cache_salt=salt))

    def reading(self, key: int) -> Reading:
        return _Keyed(self, key)

    def place(self, ready: Mapping[str, Endpoint], before: Placement, /) -> Ring:
        """A ring of `before` or, where that is of another kind, a new one: see `Ring.replace`."""
        return Ring.grown(before, ready, self._positions)

    def bound(self, candidates: Candidates, /) -> float:
        relative = (candidates.total + 1) / len(candidates) * self._load_factor
        return max(relative, self._load_floor - 1)


class _Keyed(Reading):
    __slots__ = ("_strategy", "key")

    key: int

    def __init__(self, strategy: PrefixHash, key: int) -> None:
        self._strategy = strategy
        self.key = key

    def choose(self, candidates: Candidates, count: int, /) -> Choice:
        bound, in_flight = self._strategy.bound(candidates), candidates.in_flight
        names: list[str] = []
        passed: list[str] = []
        reason = HOME
        for name in candidates.walk(self.key):
            if in_flight(name) <= bound:
                names.append(name)
                if len(names) == count:
                    break
            else:
                passed.append(name)
                reason = reason if names else SPILL
        # A retry on a busy endpoint is better than none: those that were passed over come last.
        return Choice((*names, *passed)[:count], reason)

    def explain(self, candidates: Candidates, /) -> dict[str, object]:
        bound = self._strategy.bound(candidates)
        walk = islice(candidates.walk(self.key), _WALK_LENGTH)
        loads = [(name, candidates.in_flight(name)) for name in walk]
        return {
            "bound": round(bound, 3),
            "walk": [
                {"endpoint": name, "in_flight": load, "is_within": load <= bound}
                for name, load in loads
            ],
        }
