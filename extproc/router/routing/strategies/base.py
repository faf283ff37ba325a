"""The seam between a pool and its strategy: what a strategy sees of a request, and what it answers.

A strategy *reads* a request as far as it needs to, and what comes of it, a `Reading`, stays with the
request to its end: it chooses, explains its choice, and hears what became of the request. So a pool
may change its strategy at any moment: each request ends with the one that placed it.

Three kinds of state, and who owns them. Loads are the pool's (`LoadBook`). What depends on nothing but
the endpoints is the strategy's `Placement`: immutable, part of the pool's snapshot, built away from
the serving loop since it may take long. Whatever else a strategy learns it keeps to itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final, Protocol

from msgspec import Struct

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.load import LoadBook
from extproc.router.routing.prompt.chain import Blocks, Chain
from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.strategies.prefix_cache.holding import Link
from extproc.router.routing.vitals import Vitals


class Reason(StrEnum):
    """Why an endpoint was picked; a metric label and part of the decision metadata."""

    TURN = "turn"  # its turn (round robin) or its lot (random)
    LEAST_LOAD = "least_load"  # fewest requests in flight
    SESSION = "session"  # where the conversation's earlier turns went
    PREFIX = "prefix"  # nobody holds more of the prompt
    COLD = "cold"  # nobody holds any of it: the cheapest
    HOME = "home"  # the first endpoint of the prefix's walk
    SPILL = "spill"  # home was over its bound, or who holds more had too much to do: the next one
    NO_PREFIX = "no_prefix"  # nothing to hash: least load


class Choice(Struct, frozen=True):
    """Names in order of preference, never empty: the pick, then the fallbacks for a retry."""

    names: tuple[str, ...]
    reason: Reason


class Offer(Struct, frozen=True):
    """What one endpoint would cost: it holds `blocks` of the prompt, and has `reach` bytes of it."""

    name: str
    blocks: int
    reach: int
    backlog_ms: float
    in_flight: int
    cost_ms: float
    is_home: bool


class Bid(Struct, frozen=True):
    """An offer as an operator reads it: in tokens, as far as text tells them."""

    endpoint: str
    match_tokens: int
    miss_tokens: int
    backlog_ms: float
    in_flight: int
    cost_ms: float


class Ending(Struct, frozen=True):
    """What became of a request, as its proxy tells some time after the end; `None` where it does not.

    `first_token_s` counts from the moment when the proxy sent the request to the endpoint. Of a request that
    was tried more than once, or whose answer came all at once, it is not known.
    """

    status: int | None = None
    first_token_s: float | None = None


@dataclass(frozen=True, slots=True)
class Outside:
    """What a strategy gets from outside: randomness, and a clock that counts seconds and only forward."""

    rng: Random
    clock: Callable[[], float]


class Placement(Protocol):
    """What a strategy derives from the ready endpoints alone."""

    def walk(self, key: int) -> Iterator[str]:
        """Yields every endpoint's name once, in the order that `key` prefers them."""
        ...


class _Nowhere:
    __slots__ = ()

    def walk(self, key: int) -> Iterator[str]:  # noqa: ARG002  # no order
        return iter(())


NOWHERE: Final = _Nowhere()
"""The placement of strategies that place nothing."""


class Candidates:
    """The endpoints that may take one request: a pool's ready ones, or the eligible ones among them.

    `eligible` of `None` means all but the `closed` ones, which count only then. A whole pool's total and
    least loaded cost O(1), those of a pool without k closed endpoints O(k), of k eligible ones O(k log k).
    """

    __slots__ = ("_all_names", "_book", "_eligible", "_placement", "closed", "in_flight")

    def __init__(
        self,
        placement: Placement,
        book: LoadBook,
        names: tuple[str, ...],
        eligible: frozenset[str] | None,
        closed: frozenset[str] = frozenset(),
    ) -> None:
        self._placement = placement
        self._book = book
        self._all_names = names
        self._eligible = eligible
        self.closed = closed
        self.in_flight = book.in_flight

    def __len__(self) -> int:
        if self._eligible is None:
            return len(self._all_names) - len(self.closed)
        return len(self._eligible)

    @property
    def names(self) -> tuple[str, ...]:
        """In the pool's own order."""
        if self._eligible is None:
            closed = self.closed
            return (
                tuple(name for name in self._all_names if name not in closed) if closed else self._all_names
            )
        return tuple(name for name in self._all_names if name in self._eligible)

    @property
    def total(self) -> int:
        """In flight on all of them together."""
        if self._eligible is None:
            return self._book.total - sum(map(self._book.in_flight, self.closed))
        return sum(map(self._book.in_flight, self._eligible))

    def allows(self, name: str) -> bool:
        """Whether `name`, one of the pool's ready endpoints, may take the request."""
        return name not in self.closed if self._eligible is None else name in self._eligible

    def walk(self, key: int) -> Iterator[str]:
        eligible, closed, names = self._eligible, self.closed, self._placement.walk(key)
        if eligible is not None:
            return (name for name in names if name in eligible)
        return (name for name in names if name not in closed) if closed else names

    def least_loaded(self, rng: Random) -> Iterator[str]:
        """Fewest in flight first, ties in random order."""
        if self._eligible is None:
            return self._book.least_loaded(rng, self.closed)
        # Not the book's order with gaps: who stands behind a gap would win the ties of all in it.
        shuffled = rng.sample(sorted(self._eligible), len(self._eligible))
        return iter(sorted(shuffled, key=self.in_flight))


class Lost(Struct, frozen=True):
    """What a request has not left at an endpoint after all: the blocks of `chain` beyond the first `had`."""

    endpoint: str
    chain: Chain
    had: int


class Reading(ABC):
    """What a strategy made of one request. All but `choose` may be left as they are here.

    The pool calls `choose` and, if it goes by the choice, `taken` in the same step; then `ended` once
    for each `taken`, and perhaps `learn`, at any time after `taken` or not at all. A request that
    another endpoint answered than the picked one ends at the one and is taken at the other.

    `key` is the routing key, told to operators; `None` where there is no prefix. `learns` says whether
    `learn` does anything. `offers` are those that `choose` weighed, the best first, until `taken`: an open
    request keeps none.
    """

    __slots__ = ()

    key: int | None = None
    learns: bool = False
    offers: Sequence[Offer] = ()

    def sheds(self) -> bool:
        """Whether the request had better be refused now, for the sake of those that are let in."""
        return False

    @abstractmethod
    def choose(self, candidates: Candidates, count: int) -> Choice:
        """Returns up to `count` of the candidates (there is at least one), best first; changes nothing."""

    def explain(self, candidates: Candidates) -> dict[str, object]:  # noqa: ARG002  # for others
        """What speaks for the choice now, JSON-ready, beside the choice itself."""
        return {}

    def tell(self, offers: Sequence[Offer]) -> Sequence[Bid]:  # noqa: ARG002  # likewise
        """Says of `offers`, which were this reading's own, what an operator may read."""
        return ()

    def taken(self, endpoint: str) -> None:  # noqa: B027  # for those who learn
        """The request is this endpoint's from now on."""

    def ended(self, endpoint: str) -> None:  # noqa: B027  # for those who learn
        """The request has left the endpoint, however it went."""

    def learn(self, endpoint: str, ending: Ending) -> None:  # noqa: B027  # likewise
        """Hears what became of the request, before `ended` or after.

        `endpoint` may be gone by now, or another one than where it was taken.
        """

    def pop_lost(self) -> Lost | None:
        """What was taken back of what other gateways were told, once."""
        return None

    def sent(self) -> tuple[Chain | None, int]:
        """What other gateways are told of it after `taken`: its blocks, and bytes to prefill."""
        return None, 0


class Foreseen(Struct):
    """Tokens of prompts, and how many of them were believed to be in the caches of the endpoints.

    `saved_ms` is what their prefill would have taken, by what was known of the engines at the time.
    """

    prompt: float = 0.0
    cached: float = 0.0
    saved_ms: float = 0.0


class Neighbours(Struct, frozen=True):
    """Other gateways with the same pool: how many are `heard`, and how many of these promptly.

    `lost` are those that were heard and fell silent, and nobody knows whether they are still there; `silent`
    are those of the heard ones of whom nothing has come for longer than usual.
    """

    heard: int = 0
    prompt: int = 0
    lost: int = 0
    silent: int = 0

    @property
    def untimely(self) -> int:
        """How many there are whose picks we hear of late, or never."""
        return self.heard - self.prompt + self.lost


class Strategy(Protocol):
    """A placement policy.

    `headers` are the names, in lower case, of the request headers that it reads; `reasons` are those that
    its choices may have.
    """

    name: str
    reasons: Collection[Reason] = tuple(Reason)
    headers: Collection[str]

    def needs_body(self, headers: Mapping[str, str]) -> bool:
        """Whether a request with these headers has to be seen whole before it is read."""
        ...

    def read(self, prompt: Prompt | None, headers: Mapping[str, str], adapter: str) -> Reading:
        """Makes of a request what the choice depends on.

        `prompt` is `None` where there is no body that could be read, `adapter` the LoRA adapter that the
        request names, else empty.
        """
        ...

    def place(self, ready: Mapping[str, Endpoint], before: Placement) -> Placement:
        """Places the ready endpoints, by name; `before` is what held until now, perhaps another strategy's.

        Called in a thread: it may look at what never changes only.
        """
        ...

    def follow(self, ready: Mapping[str, Endpoint]) -> None:
        """Hears, on the serving loop, which endpoints may be picked from now on."""
        ...

    def lose(self, endpoint: str) -> None:  # noqa: ARG002  # for those who keep something
        """Hears that an endpoint's process is gone, and with it whatever it held."""
        return

    def sense(  # likewise
        self,
        endpoint: str,  # noqa: ARG002
        vitals: Vitals | None,  # noqa: ARG002
        in_flight: Callable[[], Mapping[str, int]],  # noqa: ARG002
    ) -> None:
        """Hears what an endpoint says of itself; `None`: nothing. `in_flight` tells ours, of all."""
        return

    def bound(self, candidates: Candidates) -> float | None:  # noqa: ARG002  # for those who have one
        """The highest load, in requests in flight, at which an endpoint still takes one more; `None`: any."""
        return None

    def meet(self, neighbours: Neighbours) -> None:  # noqa: ARG002  # likewise
        """Hears, time after time, which other gateways tell of their picks."""
        return

    def hear_pick(  # likewise
        self,
        endpoint: str,  # noqa: ARG002
        blocks: Blocks,  # noqa: ARG002
        missing: int | None,  # noqa: ARG002
    ) -> None:
        """Hears where another gateway sent a prompt, and how many bytes of it are to be prefilled there.

        `None`: it is too late to count them.
        """
        return

    def hear_end(self, endpoint: str, blocks: Blocks) -> None:  # noqa: ARG002  # likewise
        """Hears that such a prompt was just being answered there."""
        return

    def hear_withdrawn(self, endpoint: str, chain: Chain, had: int) -> None:  # noqa: ARG002  # likewise
        """Hears that such a prompt was never read there: of its blocks, the first `had` were there before."""
        return

    def newest(self, endpoint: str, most: int) -> Sequence[int]:  # noqa: ARG002  # likewise
        """Up to so many blocks that an endpoint is believed to hold, the one to be dropped last first."""
        return ()

    def links(self, endpoint: str, blocks: Sequence[int]) -> Sequence[Link]:  # noqa: ARG002  # likewise
        """What leads to those, as far as they are still believed to be there."""
        return ()

    def copy(self, endpoint: str, links: Sequence[Link]) -> None:  # noqa: ARG002  # likewise
        """Takes what another gateway believes to be there, the newest first; what we know is newer."""
        return

    def learnt(self) -> Mapping[str, object]:
        """What it goes by that is not configured, JSON-ready, for operators."""
        return {}

    def foreseen(self) -> Mapping[Reason, Foreseen]:
        """What was picked, by reason, and how much of it the picked endpoints were believed to hold."""
        return {}

    def foreseen_by_endpoint(self) -> Mapping[str, tuple[float, float]]:
        """Bytes of prompts that an endpoint got since it is known, and how many it was believed to hold."""
        return {}
