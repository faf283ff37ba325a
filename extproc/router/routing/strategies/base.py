"""The seam between a pool and its strategy: what a strategy sees of a request, and what it answers.

A strategy *reads* a request as far as it needs to. The result, a `Reading`, stays with the request
to its end: it chooses an endpoint, explains the choice, and learns what became of the request. So a
pool may change its strategy at any moment: each request ends with the strategy that placed it.

Every strategy has the methods of `Strategy`. Two capabilities are optional: a strategy that
`SharesPicks` takes the picks of other gateways, one that `ReadsSignals` takes the endpoints'
metrics. The pool looks once, when a strategy is installed, which of them it has.

Three kinds of state, and their owners. The pool owns the loads (`LoadBook`). What depends on
nothing but the endpoints is the strategy's `Placement`: immutable, part of the pool's snapshot,
built away from the serving loop since it may take long. Whatever else a strategy learns it keeps to
itself.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar, Final, Literal, Protocol, Self

from msgspec import Struct
from pydantic import BaseModel, ConfigDict

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.load import LoadBook
from extproc.router.routing.prompt.chain import Blocks, Chain
from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.signals import EndpointSignals

Colour = Literal["green", "blue", "magenta", "red", "yellow", "cyan", "orange", "grey"]


class Reason(str):
    """Why an endpoint was picked: one word, a metric's label and part of the decision metadata.

    `meaning` explains it in the page and in the documentation, `colour` marks it there and in a
    terminal.
    """

    __slots__ = ("colour", "meaning")

    meaning: str
    colour: Colour

    def __new__(cls, word: str, meaning: str = "", colour: Colour = "grey") -> Self:
        reason = super().__new__(cls, word)
        reason.meaning, reason.colour = meaning, colour
        return reason

    def __getnewargs__(self) -> tuple[str, str, Colour]:  # type: ignore[override]  # `str` has one argument
        return str(self), self.meaning, self.colour


class Choice(Struct, frozen=True):
    """Names in order of preference, never empty: the pick, then the fallbacks for a retry."""

    names: tuple[str, ...]
    reason: Reason


class CostRow(Struct, frozen=True):
    """What one endpoint would cost, of those that a strategy compared.

    The endpoint holds `blocks` of the prompt. It has `match_bytes` of its text, of `prompt_bytes`
    in all. `lacking_ms` is the part of the cost for what it lacks.
    """

    endpoint: str
    blocks: int
    match_bytes: int
    prompt_bytes: int
    bytes_per_token: float
    backlog_ms: float
    in_flight: int
    cost_ms: float
    is_home: bool
    lacking_ms: float

    @property
    def match_tokens(self) -> int:
        return round(self.match_bytes / self.bytes_per_token)

    @property
    def miss_tokens(self) -> int:
        return round((self.prompt_bytes - self.match_bytes) / self.bytes_per_token)

    def explain(self) -> dict[str, object]:
        return {
            "endpoint": self.endpoint,
            "match_tokens": self.match_tokens,
            "miss_tokens": self.miss_tokens,
            "backlog_ms": round(self.backlog_ms, 1),
            "in_flight": self.in_flight,
            "cost_ms": round(self.cost_ms, 1),
        }


class RequestResult(Struct, frozen=True):
    """What became of a request. The proxy says so some time after the end; `None` where it does not."""

    status: int | None = None


@dataclass(frozen=True, slots=True)
class ClockAndRandom:
    """What a strategy gets from outside: randomness, and a clock that counts seconds and only forward."""

    rng: Random
    clock: Callable[[], float]


class Placement(Protocol):
    """What a strategy derives from the ready endpoints alone."""

    def walk(self, key: int, /) -> Iterator[str]:
        """Yields every endpoint's name once, in the order that `key` prefers them."""


class _Nowhere:
    __slots__ = ()

    def walk(self, _key: int, /) -> Iterator[str]:
        return iter(())


NOWHERE: Final = _Nowhere()
"""The placement of strategies that place nothing."""


class Candidates:
    """The endpoints that may take one request: a pool's ready ones, or the eligible ones among them.

    `eligible` of `None` means all but the `closed` ones, which count only then. A whole pool's
    total and least loaded cost O(1), those of a pool without k closed endpoints O(k), of k eligible
    ones O(k log k).
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
        if self._eligible is None:
            closed = self.closed
            return (
                tuple(name for name in self._all_names if name not in closed)
                if closed
                else self._all_names
            )
        return tuple(name for name in self._all_names if name in self._eligible)

    @property
    def total(self) -> int:
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
        if self._eligible is None:
            return self._book.least_loaded(rng, self.closed)
        # The book's order with gaps would let the endpoint behind a gap win the ties of all in it.
        shuffled = rng.sample(sorted(self._eligible), len(self._eligible))
        return iter(sorted(shuffled, key=self.in_flight))


class Withdrawal(Struct, frozen=True):
    """An endpoint did not cache a request after all: the blocks of `chain` beyond the first `had`."""

    endpoint: str
    chain: Chain
    had: int


class Reading(ABC):
    """What a strategy made of one request. All but `choose` may be left as they are here.

    The pool calls `choose` and, if it follows the choice, `taken` in the same step; then `ended`
    once for each `taken`, and perhaps `learn`, at any time after `taken` or not at all. A request
    that another endpoint answered than the picked one ends at the one and is taken at the other.

    `key` is the routing key, shown to operators; `None` where there is no prefix. `costs` are the
    rows that `choose` compared, the best first, until `taken`: an open request keeps none.
    """

    __slots__ = ()

    key: int | None = None
    costs: Sequence[CostRow] = ()

    def is_shed(self) -> bool:
        """Whether the request should be refused now, to protect those that were let in."""
        return False

    @abstractmethod
    def choose(self, candidates: Candidates, count: int, /) -> Choice:
        """Returns up to `count` of the candidates (there is at least one), best first; changes nothing."""

    def explain(self, _candidates: Candidates, /) -> dict[str, object]:
        return {}

    def compute_ms(self, _row: CostRow, /) -> tuple[float, float]:
        """Of the row's cost, what computing takes that the endpoint lacks of the prompt, and what it holds up."""
        return 0.0, 0.0

    def expect_transfer(self, *, is_computed: bool) -> None:  # noqa: ARG002  # by its name
        """Takes whether the prompt will come to its endpoint computed; called before `taken`."""
        return

    def taken(self, _endpoint: str, /) -> None:
        """The request is this endpoint's from now on."""
        return

    def ended(self, _endpoint: str, /) -> None:
        """The request has left the endpoint, however it went."""
        return

    def learn(self, _endpoint: str, _ending: RequestResult, /) -> None:
        """Takes what became of the request, before `ended` or after.

        The endpoint may be gone by now, or another one than where it was taken.
        """
        return

    def pop_withdrawal(self) -> Withdrawal | None:
        """Returns once what other gateways should take back; `None`: nothing."""
        return None

    def content(self) -> tuple[Chain | None, int]:
        """What is sent to other gateways after `taken`: the prompt's blocks, and bytes to prefill."""
        return None, 0


class PredictedHits(Struct):
    """Tokens of prompts, and how many of them were predicted to be in the caches of the endpoints.

    `saved_ms` is what their prefill would have taken, by the engine's constants at the time.
    """

    prompt: float = 0.0
    cached: float = 0.0
    saved_ms: float = 0.0


class EngineFigures(Struct, frozen=True):
    """What is known of a pool's engines: costs in milliseconds, and the bytes of prompts in each cache.

    `slow` has the factors of slower endpoints.
    """

    ms_per_byte: float
    step_ms: float
    bytes_per_token: float
    slow: Mapping[str, float]
    capacities: Mapping[str, int]


class PeerCounts(Struct, frozen=True):
    """Other gateways with the same pool: how many are `active`, and how many of these report in time.

    `lost` ones were active and fell silent; they may still run.
    """

    active: int = 0
    prompt: int = 0
    lost: int = 0

    @property
    def untimely(self) -> int:
        """How many there are whose picks reach us late, or never."""
        return self.active - self.prompt + self.lost


class StrategySettings(BaseModel):
    """A strategy's section of the configuration. Each strategy adds its options and the literal `name`.

    `reads_signals`: the endpoints' metrics are read for it, if the pool's `signals` do not say otherwise.
    """

    reads_signals: ClassVar[bool] = False

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )

    name: str

    def options(self) -> dict[str, Any]:
        """All but the name, as the strategy's constructor takes it."""
        return self.model_dump(exclude={"name"})


class SharesPicks(Protocol):
    """The part of a strategy that takes the picks of other gateways."""

    def set_peers(self, peers: PeerCounts, /) -> None:
        """Takes, from time to time, how many other gateways report their picks."""

    def apply_peer_pick(self, endpoint: str, blocks: Blocks, missing: int | None, /) -> None:
        """Another gateway sent a prompt there, of which `missing` bytes have to be prefilled.

        `None`: it is too late to count them.
        """

    def apply_peer_end(self, endpoint: str, blocks: Blocks, missing: int, /) -> None:
        """Another gateway's prompt has just been answered there; so much of it had to be prefilled."""

    def apply_peer_withdrawal(self, endpoint: str, chain: Chain, had: int, /) -> None:
        """Another gateway's prompt was never read there. Its first `had` blocks were there before."""


class ReadsSignals(Protocol):
    """The part of a strategy that takes the endpoints' metrics, and predicts what their caches hold."""

    def apply_signals(
        self,
        endpoint: str,
        signals: EndpointSignals | None,
        in_flight: Callable[[], Mapping[str, int]],
        /,
    ) -> None:
        """Takes an endpoint's metrics; `None`: it gave none. `in_flight` returns our counts by endpoint."""

    def forget_cache(self, endpoint: str, /) -> None:
        """An endpoint's cache is gone, and all that it was to answer."""

    def forget_idle(self, endpoint: str, /) -> Iterator[None]:
        """An endpoint's cache is gone, and it has read anew what it is to answer now; step by step."""

    def count_gateways(self) -> float:
        """How many gateways route the pool and share no picks, as far as it knows; 1: we are alone. O(1)."""

    def describe_engines(self) -> Mapping[str, object]:
        """What it has learnt, JSON-ready, for operators."""

    def figures(self) -> EngineFigures:
        """The same as a value, for who computes with it. O(endpoints)."""

    def predicted(self) -> Mapping[Reason, PredictedHits]:
        """Bytes of picked prompts, by reason, and how many of them the endpoints should have cached."""

    def predicted_by_endpoint(self) -> Mapping[str, tuple[float, float]]:
        """Bytes of prompts that an endpoint got since it was listed, and how many it should have cached."""


class Strategy(ABC):
    """A placement policy, made from `ClockAndRandom` and its settings' options.

    `settings` describes the options. `reasons` are those that its choices may have. `headers` are
    the names, in lower case, of the request headers that it reads. One that learns from the
    endpoints' metrics, or takes other gateways' picks, hands over the part of it that does, as
    `signals` and `sharing`.
    """

    name: ClassVar[str]
    settings: ClassVar[type[StrategySettings]]
    reasons: ClassVar[Collection[Reason]]
    headers: Collection[str] = ()
    signals: ReadsSignals | None = None
    sharing: SharesPicks | None = None

    @abstractmethod
    def needs_body(self, headers: Mapping[str, str], /) -> bool:
        """Whether a request with these headers has to be seen whole before it is read."""

    @abstractmethod
    def read(self, prompt: Prompt | None, headers: Mapping[str, str], adapter: str, /) -> Reading:
        """Makes of a request what the choice depends on.

        `prompt` is `None` where there is no body that could be read, `adapter` the LoRA adapter
        that the request names, else empty.
        """

    def read_chain(self, _chain: Chain, /) -> Reading | None:
        """As `read`, of a prompt that another strategy has cut; `None`: that is not enough to read."""
        return None

    def place(self, _ready: Mapping[str, Endpoint], _before: Placement, /) -> Placement:
        """Places the ready endpoints, by name; `before` is what held until now, perhaps another strategy's.

        Called in a thread: it may read only what never changes.
        """
        return NOWHERE

    def follow(self, _ready: Mapping[str, Endpoint], /) -> None:
        """Takes, on the serving loop, the endpoints that may be picked from now on."""
        return

    def bound(self, _candidates: Candidates, /) -> float | None:
        """The highest load, in requests in flight, at which an endpoint still takes one more; `None`: any."""
        return None
