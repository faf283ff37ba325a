"""The parent's side of what is watched: every source once, and what it says to all workers."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from extproc.router.cluster.source import Source
from extproc.router.routing.endpoint import Endpoint
from extproc.router.service.outages import Outages
from extproc.router.service.wiring import Priorities, Sources
from extproc.router.settings.endpoints import InferencePoolSettings
from extproc.router.settings.tree import PoolSettings
from extproc.router.telemetry import Metrics
from extproc.router.workers.messages import (
    Confirmed,
    Forgotten,
    Lacking,
    Listed,
    Prioritised,
    Restarted,
    Told,
)

# How often workers hear how old a pool's priorities are.
_AGES_S: Final = 5.0

Tell = Callable[[Told], None]


def endpoints_key(settings: PoolSettings) -> str:
    """The name of a pool's source: another one when the settings describe another source."""
    return f"{settings.name} {settings.learn_models} {settings.endpoints.model_dump_json(exclude_unset=True)}"


def objectives_key(pool: str, settings: InferencePoolSettings) -> str:
    return f"objectives {pool} {settings.model_dump_json(exclude_unset=True)}"


PEERS_KEY: Final = "share.mesh.peers"


class Feeds:
    """The sources of all pools, each followed once. `tell` brings what they say to all workers.

    Needs a running event loop.
    """

    def __init__(
        self,
        sources: Sources,
        tell: Tell,
        metrics: Metrics,
        outages: Outages,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._sources = sources
        self._clock = clock
        self._tell = tell
        self._metrics = metrics
        self._outages = outages
        self._feeds: dict[str, _Feed | _Priorities] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<Feeds of {len(self._feeds)} sources>"

    def apply(self, pools: Sequence[PoolSettings]) -> None:
        """Follows the sources of these pools, and no others but the peers'."""
        wanted = {endpoints_key(pool): pool for pool in pools}
        limited = {
            objectives_key(pool.name, pool.endpoints.inference_pool): pool
            for pool in pools
            if pool.endpoints.inference_pool is not None and pool.max_in_flight is not None
        }
        for key in self._feeds.keys() - wanted.keys() - limited.keys() - {PEERS_KEY}:
            self._end(key)
        for key, pool in wanted.items():
            if key not in self._feeds:
                self.follow(key, pool.name, self._sources.endpoints(pool))
        for key, pool in limited.items():
            if key not in self._feeds and pool.endpoints.inference_pool is not None:
                self._prioritise(key, pool.name, pool.endpoints.inference_pool)

    def follow(self, key: str, name: str, source: Source) -> None:
        """Follows a source of endpoints; `name` is what operators call it."""
        feed = _Feed(key, name, self._tell, self._metrics, self._outages, clock=self._clock)
        self._begin(key, feed, source.run(feed))

    def known(self) -> Iterator[Told]:
        """What a new worker has to hear."""
        for feed in self._feeds.values():
            yield from feed.known()

    async def run(self) -> None:
        """Tells how old priorities are, until cancelled."""
        while True:
            await asyncio.sleep(_AGES_S)
            for feed in self._feeds.values():
                if isinstance(feed, _Priorities):
                    feed.tell()

    async def stop(self) -> None:
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _prioritise(self, key: str, pool: str, settings: InferencePoolSettings) -> None:
        source = self._sources.objectives(pool, settings)
        priorities = _Priorities(key, pool, source, self._tell, self._metrics)
        self._begin(key, priorities, source.run(priorities))

    def _begin(self, key: str, feed: "_Feed | _Priorities", run: Coroutine[None, None, None]) -> None:
        self._feeds[key] = feed
        self._tasks[key] = asyncio.create_task(run, name=key)

    def _end(self, key: str) -> None:
        self._tasks.pop(key).cancel()
        self._feeds.pop(key).forget()
        self._tell(Forgotten(key))


class _Feed:
    """The sink of one source of endpoints."""

    def __init__(
        self,
        key: str,
        name: str,
        tell: Tell,
        metrics: Metrics,
        outages: Outages,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._key = key
        self._name = name
        self._tell = tell
        self._metrics = metrics
        self._outages = outages
        self._clock = clock
        self._listed: Listed | None = None
        self._confirmed_s = 0.0
        self._fault: Restarted | Lacking | None = None

    def known(self) -> Iterator[Told]:
        if self._listed is not None:
            yield replace(self._listed, age_s=self._clock() - self._confirmed_s)
        if self._fault is not None:
            yield self._fault

    def forget(self) -> None:
        self._outages.forget(self._name)

    def replace(self, endpoints: Sequence[Endpoint]) -> None:
        listed = Listed(self._key, tuple(endpoints))
        self._heard()
        if listed == self._listed:
            self._tell(Confirmed(self._key))
            return
        self._listed = listed
        self._tell(listed)

    def confirm(self, age_s: float = 0.0) -> None:
        self._heard(age_s)
        self._tell(Confirmed(self._key))

    def restarted(self, why: str, reason: str | None = None) -> None:
        self._metrics.watch_restarts.labels(self._name, why).inc()
        told = Restarted(self._key, why, reason)
        if reason is not None:
            self._fault = told
            self._outages.failed(self._name, why, reason)
        self._tell(told)

    def lacks(self, why: str, reason: str) -> None:
        self._fault = Lacking(self._key, why, reason)
        self._tell(self._fault)

    def _heard(self, age_s: float = 0.0) -> None:
        self._fault = None
        self._confirmed_s = self._clock() - age_s
        self._outages.ended(self._name)


class _Priorities:
    """The sink of one pool's objectives."""

    def __init__(self, key: str, pool: str, source: Priorities, tell: Tell, metrics: Metrics) -> None:
        self._key = key
        self._pool = pool
        self._source = source
        self._tell = tell
        self._metrics = metrics
        self._priorities: Mapping[str, int] = {}

    def known(self) -> Iterator[Told]:
        yield Prioritised(self._key, self._priorities, self._source.age_s)

    def forget(self) -> None:
        """Nobody else knows of it."""

    def tell(self) -> None:
        for told in self.known():
            self._tell(told)

    def replace(self, priorities: Mapping[str, int]) -> None:
        self._priorities = dict(priorities)
        self.tell()

    def restarted(self, why: str) -> None:
        self._metrics.objectives_restarts.labels(self._pool, why).inc()
