"""Gateways: independent pickers in front of one fleet, each with its own idea of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import count
from random import Random
from typing import Final, Protocol
from zlib import crc32

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Ask, Picker, Route
from extproc.router.routing.pool import Pick, Pool, Snapshot
from extproc.router.routing.strategies.base import Outside, Strategy
from extproc.simulator.fleet.arms import build_arm
from extproc.simulator.fleet.bus import Sharing
from extproc.simulator.fleet.flight import Flight
from extproc.simulator.peers.signals import Scrape

_PATH: Final = "/v1/chat/completions"
# As in the shipped Envoy configurations, whose retries the fleet makes.
_FALLBACKS: Final = 2


class Spread(StrEnum):
    """Which gateway gets a request."""

    RANDOM = "random"
    SESSION = "session"  # each session has one
    CONNECTION = (
        "connection"  # each connection has one; a request takes the last that fell idle, or opens one
    )


@dataclass(frozen=True, slots=True)
class Routing:
    """How the fleet is routed to; `options` are the strategy's settings.

    `gateways` pickers share the requests, by `spread`, and nothing else but what `sharing` says. They hear
    of a request's end `signal_delay_s` late, and of an endpoint that comes or goes `discovery_delay_s` late.
    """

    strategy: str = "prefix_hash"
    options: Mapping[str, object] = field(default_factory=dict)
    gateways: int = 1
    spread: Spread = Spread.RANDOM
    signal_delay_s: float = 0.0
    discovery_delay_s: float = 0.0
    sharing: Sharing | None = None

    def build_gateways(
        self, endpoints: Sequence[Endpoint], outsides: Sequence[Outside], scrapes: Sequence[Scrape]
    ) -> "Gateways":
        """Raises `SettingsError` for an unknown strategy or option; of the others there is one a gateway."""
        builds = [
            partial(build_arm, self.strategy, self.options, outside, scrape)
            for outside, scrape in zip(outsides, scrapes, strict=True)
        ]
        gateways = Gateways(builds)
        gateways.replace(endpoints)
        return gateways


class Gateways:
    """One picker and one pool for each strategy that is built; all pools have the same endpoints."""

    def __init__(self, builds: Sequence[Callable[[], Strategy]]) -> None:
        self._builds = builds
        self.pools = [Pool("fleet", build(), fallbacks=_FALLBACKS) for build in builds]
        self._pickers = [Picker([Route(pool)]) for pool in self.pools]
        # Where the headers decide, a proxy need not send the body, and nobody has to write it here.
        self.needs_body = self._pickers[0].needs_body(Ask("POST", _PATH, {}))

    def replace(self, endpoints: Sequence[Endpoint]) -> None:
        """Routes to these endpoints; strategies of one kind place them alike, so once is enough."""
        first = self.pools[0]
        snapshot = Snapshot.build(endpoints, first.strategy, first.snapshot.placement)
        for pool in self.pools:
            pool.install(snapshot)

    def restart(self, gateway: int) -> None:
        """Begins anew with a strategy that knows nothing; requests in flight go on being counted."""
        pool, strategy = self.pools[gateway], self._builds[gateway]()
        pool.install(pool.snapshot, strategy)

    def pick(self, gateway: int, body: bytes | None) -> Pick:
        """Picks for a chat, by its body if `needs_body`; raises `NoEndpoint`."""
        return self._pickers[gateway].pick(Ask("POST", _PATH, {}, body)).pick


class Spreader(Protocol):
    """Draws a gateway for each request. The same for all strategies, as far as their timing allows."""

    def take(self, flight: Flight) -> int: ...

    def give(self, flight: Flight) -> None:
        """Hears that the request has ended."""
        ...


def build_spreader(spread: Spread, gateways: int, rng: Random) -> Spreader:
    if gateways == 1:
        return _One()
    return {Spread.RANDOM: _Random, Spread.SESSION: _BySession, Spread.CONNECTION: _ByConnection}[spread](
        gateways, rng
    )


class _One:
    def take(self, flight: Flight) -> int:  # noqa: ARG002  # whichever
        return 0

    def give(self, flight: Flight) -> None:
        pass


class _Random(_One):
    def __init__(self, gateways: int, rng: Random) -> None:
        self._gateways, self._rng = gateways, rng

    def take(self, flight: Flight) -> int:  # noqa: ARG002  # whichever
        return self._rng.randrange(self._gateways)


class _BySession(_One):
    def __init__(self, gateways: int, rng: Random) -> None:
        self._gateways, self._salt = gateways, rng.getrandbits(32)

    def take(self, flight: Flight) -> int:
        return crc32(b"%d" % flight.session.owner, self._salt) % self._gateways


class _ByConnection(_One):
    def __init__(self, gateways: int, rng: Random) -> None:
        self._gateways, self._rng = gateways, rng
        self._idle: list[int] = []

    def take(self, flight: Flight) -> int:  # noqa: ARG002  # connections are all alike
        return self._idle.pop() if self._idle else self._rng.randrange(self._gateways)

    def give(self, flight: Flight) -> None:
        self._idle.append(flight.gateway)


_SYLLABLES: Final = "bcdfghjklmnpqrstvwxz2456789"


class EndpointNames:
    """Endpoints by number, named as Pods are. Names place endpoints on a ring: no run has the lucky ones."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._numbers = count()
        self._known: dict[int, Endpoint] = {}

    def __getitem__(self, number: int) -> Endpoint:
        while number not in self._known:
            place = next(self._numbers)
            suffix = "".join(self._rng.choices(_SYLLABLES, k=5))
            address = f"10.{place >> 16 & 255}.{place >> 8 & 255}.{place & 255}:8000"
            self._known[place] = Endpoint(f"vllm-{suffix}-{place}", address)
        return self._known[number]
