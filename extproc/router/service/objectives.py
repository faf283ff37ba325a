"""Who gives pools the priorities of their objectives: the settings, and an InferencePool's own objects."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from extproc.router.cluster.objectives import ObjectivesSource
from extproc.router.routing.pool import Pool
from extproc.router.service.wiring import Sources
from extproc.router.settings.endpoints import InferencePoolSettings
from extproc.router.settings.tree import PoolSettings
from extproc.router.telemetry import Metrics


@dataclass(slots=True)
class _Known:
    """One pool's priorities: as configured, and as its InferencePool's objects say."""

    pool: Pool
    metrics: Metrics
    configured: Mapping[str, int] = field(default_factory=dict)
    watched: Mapping[str, int] = field(default_factory=dict)
    reference: InferencePoolSettings | None = None
    source: ObjectivesSource | None = None
    task: asyncio.Task[None] | None = None

    def replace(self, priorities: Mapping[str, int]) -> None:
        self.watched = priorities
        self.tell()

    def restarted(self, why: str) -> None:
        self.metrics.objectives_restarts.labels(self.pool.name, why).inc()

    def tell(self) -> None:
        """What the settings say goes first: who writes them, writes them for this service."""
        self.pool.admission.priorities = {**self.watched, **self.configured}


class Objectives:
    """The priorities of all pools, kept as they change. Needs a running event loop.

    Objects are followed where the pool has both an InferencePool and a limit: without one nobody is refused.
    """

    def __init__(self, sources: Sources, metrics: Metrics) -> None:
        self._sources = sources
        self._metrics = metrics
        self._known: dict[str, _Known] = {}

    def keep(self, pool: Pool, settings: PoolSettings) -> None:
        """Takes a pool's settings, new or changed."""
        known = self._known.setdefault(pool.name, _Known(pool, self._metrics))
        known.configured = settings.objectives
        reference = None if settings.max_in_flight is None else settings.endpoints.inference_pool
        if reference != known.reference:
            self._follow(known, reference)
        known.tell()

    def forget(self, name: str) -> None:
        self._follow(self._known.pop(name), None)

    def ages(self) -> Iterator[tuple[str, float]]:
        """The pools whose objectives are followed and known, with the age of that in seconds."""
        for name, known in self._known.items():
            if known.source is not None and known.source.age_s is not None:
                yield name, known.source.age_s

    async def stop(self) -> None:
        tasks = [known.task for known in self._known.values() if known.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, known: _Known, reference: InferencePoolSettings | None) -> None:
        if known.task is not None:
            known.task.cancel()
        known.reference, known.watched, known.source, known.task = reference, {}, None, None
        if reference is not None:
            known.source = self._sources.objectives(reference)
            run = known.source.run(known)
            known.task = asyncio.create_task(run, name=f"objectives {known.pool.name}")
