"""A pool: an immutable snapshot of its endpoints, a strategy, and the load book."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol, Self

from msgspec import Struct
from msgspec.structs import replace

from extproc.errors import Cold, NoEndpoint, Overloaded, RequestError
from extproc.router.routing.admission import ORDINARY, Admission, PoolLoad, RequestClass
from extproc.router.routing.endpoint import Endpoint, canonical_location
from extproc.router.routing.load import LoadBook
from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.queue import Lane, Queue
from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.base import (
    NOWHERE,
    Candidates,
    Choice,
    Placement,
    Reading,
    Reason,
    RequestResult,
    Strategy,
    Withdrawal,
)

# A gateway names its endpoints, of which a pool has a thousand or so; more would only take time.
MAX_SUBSET: Final = 10_000
MAX_SPELLINGS: Final = 1_000
MAX_LOCATION_CHARS: Final = 100


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A pool's endpoints at one moment; shared freely, never changed.

    `names` are the ready endpoints' names in the source's order, `ready` the endpoints by name,
    `draining` those that only finish what they have. `placement` is what the pool's strategy makes
    of the ready ones. `by_adapter` holds the names of the ready endpoints that serve an adapter,
    `models` every model name that one of them said it serves.
    """

    names: tuple[str, ...]
    ready: Mapping[str, Endpoint]
    draining: tuple[Endpoint, ...]
    placement: Placement
    models: frozenset[str]
    by_adapter: Mapping[str, frozenset[str]]
    by_location: Mapping[str, tuple[str, ...]] = field(repr=False)

    @classmethod
    def build(
        cls, endpoints: Iterable[Endpoint], strategy: Strategy, before: Placement = NOWHERE
    ) -> Self:
        """Takes the whole list; of two endpoints with one name the later stays.

        `before` is the placement of the snapshot that this one follows. O(n), and what `strategy`
        needs to place them: for a ring of a thousand a third of a second, with `before` a
        millisecond.
        """
        all_ = {endpoint.name: endpoint for endpoint in endpoints}
        ready = {name: endpoint for name, endpoint in all_.items() if endpoint.is_ready}
        adapters = [
            (adapter, name) for name, endpoint in ready.items() for adapter in endpoint.adapters
        ]
        places = [(at, name) for name, one in ready.items() for at in (one.address, one.ip)]
        return cls(
            names=tuple(ready),
            ready=ready,
            draining=tuple(endpoint for endpoint in all_.values() if not endpoint.is_ready),
            placement=strategy.place(ready, before),
            models=frozenset().union(*(endpoint.models for endpoint in ready.values())),
            by_adapter={key: frozenset(names) for key, names in _group(adapters).items()},
            by_location={key: tuple(names) for key, names in _group(places).items()},
        )

    def locate(self, subset: Iterable[str]) -> frozenset[str]:
        """Names of the ready endpoints at these `ip:port`s; a bare `ip` means all its ports.

        Looks at the first `MAX_SUBSET` of them, and at other spellings for `MAX_SPELLINGS` without
        a match.
        """
        names: set[str] = set()
        unknown: list[str] = []
        for location in islice(subset, MAX_SUBSET):
            found = self.by_location.get(location)
            if found:
                names.update(found)
            elif len(unknown) < MAX_SPELLINGS and len(location) < MAX_LOCATION_CHARS:
                unknown.append(location)
        # Any spelling of an IPv6 address is that address.
        for location in unknown:
            names.update(self.by_location.get(canonical_location(location), ()))
        return frozenset(names)


def _group(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for key, name in pairs:
        groups.setdefault(key, []).append(name)
    return groups


class Pick(Struct, frozen=True):
    """Where one request goes. Counted from `take` until `release`, each called once at most.

    `standing` is what it counts as beside that; `None`: it is an ordinary one. `is_shown`: others
    chose the endpoint, and a proxy showed us. `prefill` is another pool's, whose endpoint computes
    the prompt for this one's; it is acquired and released apart, since it ends earlier.
    """

    pool: "Pool"
    strategy: str
    reason: Reason
    endpoint: Endpoint
    fallbacks: tuple[Endpoint, ...]
    reading: Reading
    standing: RequestClass | None = None
    is_shown: bool = False
    prefill: "Pick | None" = None

    def __repr__(self) -> str:
        return f"<Pick {self.endpoint.name} of {self.pool.name}: {self.strategy}, {self.reason}>"

    @property
    def destination(self) -> str:
        """`ip:port[,ip:port…]`: the pick, then the ordered fallbacks (EPP 1.0.0)."""
        return ",".join([endpoint.address for endpoint in (self.endpoint, *self.fallbacks)])

    def acquire(self) -> None:
        """Counts the request on the endpoint, and reports it in a fixed order, as `release` does.

        The pool's own count comes first, since all others may read it; then the reading, which
        updates the index; then the limits (admission, gate); last the witness, which reports the
        result to other gateways.
        """
        name = self.endpoint.name
        self.pool.book.acquire(name)
        self.reading.taken(name)
        if self.standing is not None:
            self.pool.admission.acquire(self.standing, name)
        if self.pool.gate is not None:
            self.pool.gate.picked(name)
        if self.pool.witness is not None:
            self._report_withdrawal()
            self.pool.witness.picked(self)
        if self.pool.watcher is not None:
            self.pool.watcher.picked(self)

    def release(self) -> None:
        """Counts the request as ended; what was not taken, the book refuses with `KeyError`."""
        name = self.endpoint.name
        self.pool.book.release(name)
        self.reading.ended(name)
        if self.standing is not None:
            self.pool.admission.release(self.standing, name)
        if self.pool.witness is not None:
            self.pool.witness.ended(self)
            self._report_withdrawal()
        if self.pool.watcher is not None:
            self.pool.watcher.ended(self)
        for listener in self.pool.listeners:
            listener.ended(self)

    def learn(self, ending: RequestResult, address: str = "") -> None:
        """Tells the strategy that placed the request what became of it; before or after `release`.

        `address` is who answered, if another one than the pick.
        """
        name = self.endpoint.name
        if address and address != self.endpoint.address:
            name = next(iter(self.pool.snapshot.by_location.get(address, ())), "")
        self.reading.learn(name, ending)
        self._report_withdrawal()
        if self.prefill is not None:
            self.prefill.learn(ending)

    def _report_withdrawal(self) -> None:
        withdrawal, witness = self.reading.pop_withdrawal(), self.pool.witness
        if withdrawal is not None and witness is not None:
            witness.withdrawn(withdrawal)


_NONE_CLOSED: Final[frozenset[str]] = frozenset()


class Gate(Protocol):
    """The endpoints of a pool that may be picked now, whatever the strategy."""

    def set_members(self, names: Iterable[str]) -> None: ...

    def closed(self) -> frozenset[str]:
        """Those that may not; at most half of the members."""

    def picked(self, name: str) -> None: ...

    def shut(self) -> Mapping[str, str]:
        """Those that are left out now, or would be were there others, and why in one word."""

    def unknown(self) -> Collection[str]:
        """Those of which nothing has been learnt yet."""


class PickListener(Protocol):
    """Hears of each pick of ours as it is taken, as it is released, and that it left nothing behind."""

    def picked(self, pick: Pick) -> None: ...

    def ended(self, pick: Pick) -> None: ...

    def withdrawn(self, withdrawal: Withdrawal) -> None: ...


class RequestWatcher(PickListener, Protocol):
    """Follows a pool's requests, also those that others route and only show us."""

    def arrived(self, reading: Reading) -> None:
        """A request that others route has come whole; `picked` follows when its answer begins."""

    def left(self, reading: Reading) -> None:
        """It is over, whether `picked` came or not."""

    def nameless(self, reading: Reading, address: str, request_id: str) -> None:
        """Its answer began, and came from no endpoint of the pool; `address` is empty if nobody says from where."""

    def apply_signals(self, endpoint: str, signals: EndpointSignals) -> None: ...


class SecondStage(Protocol):
    """Endpoints that may compute a prompt for the one that answers, in a `pool` of their own."""

    pool: "Pool"

    def choose(
        self, reading: Reading, candidates: Candidates, count: int, adapter: str
    ) -> tuple[Choice, Pick | None]:
        """As `Reading.choose`; with it the pick of who computes the prompt, `None`: who answers it."""


class PromptListener(Protocol):
    """Hears of each prompt that is read for a request of the pool, in any thread, and of a request's end."""

    def see(self, prompt: Prompt, reading: Reading) -> None: ...

    def ended(self, pick: Pick) -> None: ...


class Pool:
    """The endpoints that serve the same models, with one strategy.

    `max_in_flight` limits the mean number of requests per ready endpoint; beyond it requests are
    refused with 429, `admission` says which. `None` never refuses. `fallbacks` is how many further
    endpoints a pick names. `gate` leaves endpoints out for a while; `None` never does. `queue`
    holds requests until there is room for them; `None`: they are refused at once. `prefill` has the
    endpoints that compute prompts for these; `None`: each computes its own. `duration_s` is
    how long a request takes here, seconds; `None`: nobody said so yet.
    """

    def __init__(
        self,
        name: str,
        strategy: Strategy,
        *,
        max_in_flight: int | None = None,
        fallbacks: int = 0,
        gate: Gate | None = None,
    ) -> None:
        self.name = name
        self.strategy = strategy
        self.max_in_flight = max_in_flight
        self.fallbacks = fallbacks
        self.gate = gate
        self.witness: PickListener | None = None
        self.watcher: RequestWatcher | None = None
        self.listeners: Sequence[PromptListener] = ()
        self.queue: Queue | None = None
        self.prefill: SecondStage | None = None
        self.snapshot = Snapshot.build((), strategy)
        self.book = LoadBook()
        self.admission = Admission()
        self.duration_s: float | None = None

    def note_duration(self, seconds: float) -> None:
        """Takes how long requests took, by a log or an engine; the last sixteen or so count."""
        before = seconds if self.duration_s is None else self.duration_s
        self.duration_s = before + (seconds - before) / 16

    def __repr__(self) -> str:
        return f"<Pool {self.name}: {len(self.snapshot.names)} ready, {self.strategy.name}>"

    def left_out(self) -> Mapping[str, str]:
        """Ready endpoints that get no picks while there are others, and why in one word."""
        return {} if self.gate is None else self.gate.shut()

    def states(self) -> Iterator[tuple[Endpoint, str]]:
        """Every listed endpoint and its state: `ready`, `unknown`, `draining`, or why it is left out."""
        unknown = () if self.gate is None else self.gate.unknown()
        words = {**dict.fromkeys(unknown, "unknown"), **self.left_out()}
        for endpoint in self.snapshot.ready.values():
            yield endpoint, words.get(endpoint.name, "ready")
        for endpoint in self.snapshot.draining:
            yield endpoint, "draining"

    def describe_engines(self) -> Mapping[str, object]:
        """What the strategy learnt of the engines, JSON-ready; empty for one that learns nothing."""
        signals = self.strategy.signals
        return {} if signals is None else signals.describe_engines()

    def install(self, snapshot: Snapshot, strategy: Strategy | None = None) -> None:
        """Routes by `snapshot` from now on. Requests in flight keep their counts.

        With a `strategy`, for which `snapshot` must have been built, that one takes over in the
        same step.
        """
        if strategy is not None:
            self.strategy = strategy
        was_empty, self.snapshot = not self.snapshot.names, snapshot
        self.book.set_members(snapshot.names)
        self.strategy.follow(snapshot.ready)
        if self.gate is not None:
            self.gate.set_members(snapshot.names)
        if self.queue is not None:
            self.queue.settle() if was_empty and snapshot.names else self.queue.stir()

    def hold(self, queue: Queue | None) -> None:
        """Installs the queue for requests without room; refuses all that wait in the one before."""
        before, self.queue = self.queue, queue
        self.book.on_less = None if queue is None else queue.stir
        if before is not None:
            before.shut()

    def may_pass(self, refusal: RequestError) -> bool:
        """Whether a refused request may be let in soon: the pool is full, or has no endpoint at all.

        Not a conversation that the caches have no room for: that takes minutes.
        """
        if isinstance(refusal, Overloaded):
            return not isinstance(refusal, Cold)
        return isinstance(refusal, NoEndpoint) and not self.snapshot.names

    def lane(self, headers: Mapping[str, str], adapter: str, subset: Sequence[str] | None) -> Lane:
        standing = self.standing(headers) or ORDINARY
        allowed = None if subset is None else tuple(subset)
        return Lane(standing.priority, standing.client, adapter, allowed)

    def replace(self, endpoints: Iterable[Endpoint]) -> None:
        self.install(Snapshot.build(endpoints, self.strategy, self.snapshot.placement))

    def pick(
        self, reading: Reading, *, adapter: str = "", subset: Sequence[str] | None = None
    ) -> Pick:
        """Picks an endpoint and counts the request on it, in one step; see `propose`."""
        pick = self.propose(reading, adapter=adapter, subset=subset)
        pick.acquire()
        return pick

    def standing(self, headers: Mapping[str, str]) -> RequestClass | None:
        """What a request with these headers counts as; `None` for an ordinary one, or where all are alike."""
        return None if self.max_in_flight is None else self.admission.standing(headers)

    def propose(
        self,
        reading: Reading,
        *,
        adapter: str = "",
        subset: Sequence[str] | None = None,
        standing: RequestClass | None = None,
        may_split: bool = False,
    ) -> Pick:
        """Returns the pick that would be right now, not counted yet.

        `reading` is this pool's strategy's. `adapter` restricts the pick to the endpoints that hold
        it, `subset` to these addresses. Raises `NoEndpoint` where none is left, `Overloaded` beyond
        `max_in_flight` to those whose `standing` does not let them in, and to those that the
        strategy sheds. `may_split`: another endpoint may compute the prompt.
        """
        snapshot = self.snapshot
        candidates = self.candidates(adapter, subset)
        if not candidates:
            raise NoEndpoint(
                f"pool {self.name!r} has no ready endpoint for this request", pool=self.name
            )
        if self.max_in_flight is not None:
            self._admit(standing, candidates, self.max_in_flight)
        if reading.is_shed():
            raise Cold(
                f"pool {self.name!r} has no room for another conversation in its caches",
                pool=self.name,
            )
        prefill = None
        if self.prefill is None or not may_split:
            choice = reading.choose(candidates, 1 + self.fallbacks)
        else:
            choice, prefill = self.prefill.choose(reading, candidates, 1 + self.fallbacks, adapter)
        first, *rest = [snapshot.ready[name] for name in choice.names]
        return Pick(
            self,
            self.strategy.name,
            choice.reason,
            first,
            tuple(rest),
            reading,
            standing,
            prefill=prefill,
        )

    def _admit(self, standing: RequestClass | None, candidates: Candidates, each: int) -> None:
        total = candidates.total
        if total >= each * len(candidates):
            size, pool_total = len(self.snapshot.names), self.book.total
            crowd = PoolLoad(self.name, each, candidates.names, total, size, pool_total)
            self.admission.admit(standing or ORDINARY, crowd)

    def move(self, pick: Pick, address: str) -> Pick:
        """Counts the pick's request on the endpoint at `address`, if that is a ready one here."""
        names = self.snapshot.by_location.get(address, ())
        if not names or names[0] == pick.endpoint.name:
            return pick
        pick.release()
        moved = replace(pick, endpoint=self.snapshot.ready[names[0]])
        moved.acquire()
        return moved

    def candidates(self, adapter: str = "", subset: Sequence[str] | None = None) -> Candidates:
        snapshot = self.snapshot
        eligible = snapshot.by_adapter.get(adapter) if adapter else None
        if subset is not None:
            located = snapshot.locate(subset)
            eligible = located if eligible is None else located & eligible
        closed = _NONE_CLOSED if self.gate is None else self.gate.closed()
        if closed and eligible is not None:
            # Where no other may take the request, one that is left out may.
            eligible = (eligible - closed) or eligible
        return Candidates(snapshot.placement, self.book, snapshot.names, eligible, closed)
