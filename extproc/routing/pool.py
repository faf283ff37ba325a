"""A pool: an immutable snapshot of its endpoints, a strategy, and the load book."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from extproc.errors import NoEndpoint, Overloaded
from extproc.routing.endpoint import Endpoint, canonical_location
from extproc.routing.load import LoadBook
from extproc.routing.ring import Ring
from extproc.routing.strategies.base import Candidates, Reason, Strategy


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything known of a pool's endpoints at one moment; shared freely, never changed.

    `names` are the ready endpoints' names in the source's order, `ready` the endpoints by name,
    `draining` those that only finish what they have. `by_adapter` holds the names of the ready
    endpoints that serve an adapter, `models` every model name that one of them said it serves.
    """

    names: tuple[str, ...]
    ready: Mapping[str, Endpoint]
    draining: tuple[Endpoint, ...]
    ring: Ring
    models: frozenset[str]
    by_adapter: Mapping[str, frozenset[str]]
    by_location: Mapping[str, tuple[str, ...]] = field(repr=False)

    @classmethod
    def build(cls, endpoints: Iterable[Endpoint], ring: Ring) -> Self:
        """Takes the whole list; of two endpoints with one name the later stays. O(n), see `Ring.replace`."""
        all_ = {endpoint.name: endpoint for endpoint in endpoints}
        ready = {name: endpoint for name, endpoint in all_.items() if endpoint.is_ready}
        return cls(
            names=tuple(ready),
            ready=ready,
            draining=tuple(endpoint for endpoint in all_.values() if not endpoint.is_ready),
            ring=ring.replace(ready),
            models=frozenset().union(*(endpoint.models for endpoint in ready.values())),
            by_adapter={key: frozenset(names) for key, names in _group(_adapters(ready.values())).items()},
            by_location={key: tuple(names) for key, names in _group(_locations(ready.values())).items()},
        )

    def replace(self, endpoints: Iterable[Endpoint]) -> Self:
        return self.build(endpoints, self.ring)

    def locate(self, subset: Iterable[str]) -> frozenset[str]:
        """Names of the ready endpoints at these `ip:port`s; a bare `ip` means all its ports."""
        return frozenset(name for location in subset for name in self._at(location))

    def _at(self, location: str) -> tuple[str, ...]:
        # Any spelling of an IPv6 address is that address.
        return self.by_location.get(location) or self.by_location.get(canonical_location(location), ())


def _adapters(endpoints: Collection[Endpoint]) -> Iterable[tuple[str, str]]:
    return ((adapter, endpoint.name) for endpoint in endpoints for adapter in endpoint.adapters)


def _locations(endpoints: Collection[Endpoint]) -> Iterable[tuple[str, str]]:
    for endpoint in endpoints:
        yield endpoint.address, endpoint.name
        yield endpoint.ip, endpoint.name


def _group(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for key, name in pairs:
        groups.setdefault(key, []).append(name)
    return groups


class Pick(Struct, frozen=True):
    """Where one request goes. Counted from the moment it exists until `release`."""

    pool: "Pool"
    strategy: str
    reason: Reason
    endpoint: Endpoint
    fallbacks: tuple[Endpoint, ...] = ()

    def __repr__(self) -> str:
        return f"<Pick {self.endpoint.name} of {self.pool.name}: {self.strategy}, {self.reason}>"

    @property
    def destination(self) -> str:
        """`ip:port[,ip:port…]`: the pick, then the ordered fallbacks (EPP 1.0.0)."""
        return ",".join([self.endpoint.address, *(endpoint.address for endpoint in self.fallbacks)])

    def release(self) -> None:
        """Counts the request as ended. Exactly once, or the book raises `KeyError`."""
        self.pool.book.release(self.endpoint.name)


class Pool:
    """The endpoints that serve the same models, with one strategy.

    `max_in_flight` limits the mean number of requests per ready endpoint; beyond it requests are
    refused with 429, `None` never refuses. `fallbacks` is how many further endpoints a pick names.
    """

    def __init__(
        self,
        name: str,
        strategy: Strategy,
        ring: Ring,
        *,
        max_in_flight: int | None = None,
        fallbacks: int = 2,
    ) -> None:
        self.name = name
        self.strategy = strategy
        self.max_in_flight = max_in_flight
        self.fallbacks = fallbacks
        self.snapshot = Snapshot.build((), ring)
        self.book = LoadBook()

    def __repr__(self) -> str:
        return f"<Pool {self.name}: {len(self.snapshot.names)} ready, {self.strategy.name}>"

    def install(self, snapshot: Snapshot) -> None:
        """Routes by `snapshot` from now on. Requests in flight keep their counts."""
        self.snapshot = snapshot
        self.book.set_members(snapshot.names)

    def pick(self, key: int | None, *, adapter: str = "", subset: Sequence[str] | None = None) -> Pick:
        """Picks an endpoint and counts the request on it, in one step.

        `adapter` restricts the pick to the endpoints that hold it, `subset` to these addresses.
        Raises `NoEndpoint` where none is left, `Overloaded` beyond `max_in_flight`.
        """
        snapshot = self.snapshot
        candidates = self.candidates(adapter, subset)
        if not candidates:
            raise NoEndpoint(f"pool {self.name!r} has no ready endpoint for this request", pool=self.name)
        if self.max_in_flight is not None and candidates.total >= self.max_in_flight * len(candidates):
            raise Overloaded(
                f"pool {self.name!r} is at its limit of {self.max_in_flight} requests per endpoint",
                pool=self.name,
            )
        choice = self.strategy.choose(key, candidates, 1 + self.fallbacks)
        first, *rest = (snapshot.ready[name] for name in choice.names)
        self.book.take(first.name)
        return Pick(self, self.strategy.name, choice.reason, first, tuple(rest))

    def move(self, pick: Pick, address: str) -> Pick:
        """Counts the pick's request on the endpoint at `address`, if that is a ready one here."""
        names = self.snapshot.by_location.get(address, ())
        if not names or names[0] == pick.endpoint.name:
            return pick
        pick.release()
        self.book.take(names[0])
        return replace(pick, endpoint=self.snapshot.ready[names[0]])

    def candidates(self, adapter: str = "", subset: Sequence[str] | None = None) -> Candidates:
        snapshot = self.snapshot
        eligible = snapshot.by_adapter.get(adapter) if adapter else None
        if subset is not None:
            located = snapshot.locate(subset)
            eligible = located if eligible is None else located & eligible
        return Candidates(snapshot.ring, self.book, snapshot.names, eligible)
