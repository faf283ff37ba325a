"""Gateways: independent pickers in front of one fleet, each with its own idea of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Final

from msgspec.structs import asdict

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pick, Pool, Snapshot
from extproc.router.routing.prefill_stage import NOBODY_STREAMS
from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.base import ClockAndRandom, Strategy
from extproc.simulator.fleet.arms import build_arm
from extproc.simulator.fleet.bus import Sharing
from extproc.simulator.fleet.split import FleetSplit
from extproc.simulator.peers.signals import Scrape

_PATH: Final = "/v1/chat/completions"
# As in the shipped Envoy configurations, whose retries the fleet makes.
_FALLBACKS: Final = 2


ReadMetrics = Callable[[str], EndpointSignals]
"""What an endpoint's metrics say now, by its name."""


@dataclass(frozen=True, slots=True)
class Routing:
    """How the fleet is routed to; `options` are the strategy's settings.

    `gateways` pickers get the requests at random, and share nothing else but what `sharing` says.
    `split` lets some endpoints compute prompts for the others.
    """

    strategy: str = "prefix_hash"
    options: Mapping[str, object] = field(default_factory=dict)
    gateways: int = 1
    sharing: Sharing | None = None
    split: FleetSplit | None = None

    def build_gateways(
        self,
        endpoints: Sequence[Endpoint],
        outsides: Sequence[ClockAndRandom],
        scrapes: Sequence[Scrape],
        read: ReadMetrics,
    ) -> "Gateways":
        """Raises `SettingsError` for an unknown strategy or option; of the others there is one a gateway."""
        builds = [
            partial(build_arm, self.strategy, self.options, outside, scrape)
            for outside, scrape in zip(outsides, scrapes, strict=True)
        ]
        gateways = Gateways(builds, outsides, read)
        gateways.replace(endpoints)
        return gateways

    def build_helper(self, outside: ClockAndRandom, scrape: Scrape) -> Strategy:
        """The strategy of endpoints that only compute prompts."""
        return build_arm(self.strategy, {**self.options, **asdict(NOBODY_STREAMS)}, outside, scrape)


# As the service's default; no two endpoints at one moment.
_SCRAPE_S: Final = 15.0


class MetricRounds:
    """Hands a pool's strategy the metrics of each endpoint every 15 s, as the service does.

    It looks when a request is picked for: what nobody waits for costs nothing.
    """

    def __init__(self, pool: Pool, outside: ClockAndRandom, read: ReadMetrics) -> None:
        self._pool, self._read = pool, read
        # Draws of its own: when metrics are read must not change which of equal endpoints is picked.
        self._clock, self._rng = outside.clock, Random(str(outside.rng.getstate()[1][0]))  # noqa: S311  # no secret
        self._due: list[tuple[float, str]] = []

    def follow(self, names: Iterable[str]) -> None:
        known = {name for _, name in self._due}
        now, fresh = self._clock(), [name for name in names if name not in known]
        for name in fresh:
            heappush(self._due, (now + self._rng.random() * _SCRAPE_S, name))

    def hand_over(self) -> None:
        """Gives the strategy what has come due."""
        signals, now = self._pool.strategy.signals, self._clock()
        while signals is not None and self._due and self._due[0][0] <= now:
            _, name = heappop(self._due)
            if name not in self._pool.snapshot.ready:
                continue
            signals.apply_signals(name, self._read(name), self._pool.book.counts)
            heappush(self._due, (now + _SCRAPE_S, name))


class Gateways:
    """One picker and one pool for each strategy that is built; all pools have the same endpoints."""

    def __init__(
        self,
        builds: Sequence[Callable[[], Strategy]],
        outsides: Sequence[ClockAndRandom] = (),
        read: ReadMetrics = lambda _: EndpointSignals(),
    ) -> None:
        self._builds = builds
        self._outsides, self._read = outsides, read
        self.pools = [Pool("fleet", build(), fallbacks=_FALLBACKS) for build in builds]
        self._pickers = [Picker([Route(pool)]) for pool in self.pools]
        # Without `outsides` nobody is asked for metrics.
        asking = zip(self.pools, outsides, strict=False)
        self._rounds = [MetricRounds(pool, outside, read) for pool, outside in asking]
        # Where the headers decide, a proxy need not send the body, and nobody has to write it here.
        self.needs_body = self._pickers[0].plan(Query("POST", _PATH, {})).needs_body

    def replace(self, endpoints: Sequence[Endpoint]) -> None:
        """Routes to these endpoints; strategies of one kind place them alike, so once is enough."""
        first = self.pools[0]
        snapshot = Snapshot.build(endpoints, first.strategy, first.snapshot.placement)
        for pool in self.pools:
            pool.install(snapshot)
        for rounds in self._rounds:
            rounds.follow(snapshot.ready)

    def add_stage(
        self, endpoints: Sequence[Endpoint], strategy: Strategy, split: FleetSplit
    ) -> None:
        """Lets these endpoints compute prompts for the others, of the first gateway."""
        pool = Pool("fleet/prefill", strategy)
        pool.replace(endpoints)
        self.pools[0].prefill = split.build(pool, self.pools[0])
        rounds = MetricRounds(pool, self._outsides[0], self._read)
        rounds.follow(pool.snapshot.ready)
        self._rounds.append(rounds)

    def restart(self, gateway: int) -> None:
        """Restarts with a strategy without memory; requests in flight are still counted."""
        pool, strategy = self.pools[gateway], self._builds[gateway]()
        pool.install(pool.snapshot, strategy)

    def pick(self, gateway: int, path: str = _PATH, body: bytes | None = None) -> Pick:
        """Picks for a request, by its body if `needs_body`; raises `NoEndpoint`."""
        # With prefill endpoints there is one gateway, and their rounds stand behind its own.
        stage = 1 + (self.pools[gateway].prefill is not None)
        for rounds in self._rounds[gateway : gateway + stage]:
            rounds.hand_over()
        return self._pickers[gateway].pick(Query("POST", path, {}, body)).pick


_SYLLABLES: Final = "bcdfghjklmnpqrstvwxz2456789"


class EndpointNames:
    """Endpoints by number, named as Pods are. Names place endpoints on a ring: no run has the lucky ones."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._numbers = count()
        self._endpoints: dict[int, Endpoint] = {}

    def __getitem__(self, number: int) -> Endpoint:
        while number not in self._endpoints:
            place = next(self._numbers)
            suffix = "".join(self._rng.choices(_SYLLABLES, k=5))
            address = f"10.{place >> 16 & 255}.{place >> 8 & 255}.{place & 255}:8000"
            self._endpoints[place] = Endpoint(f"vllm-{suffix}-{place}", address)
        return self._endpoints[number]
