"""A pool's keeper: hears its source and installs what it says."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from extproc.cluster.source import Source
from extproc.routing.endpoint import Endpoint
from extproc.routing.pool import Pool, Snapshot
from extproc.routing.strategies.base import Strategy
from extproc.telemetry import Metrics

log = logging.getLogger(__name__)


class PoolKeeper:
    """The sink of one pool's source, and the one who gives the pool another strategy.

    A snapshot is built in a thread, since a ring of a thousand endpoints takes a third of a second,
    and installed on the loop, where picks happen. Lists that come meanwhile replace one another: only
    the last counts. A new strategy takes over together with the snapshot that was built for it.
    `on_change` hears of every installed list, `on_strategy` when a new strategy has taken over.
    """

    def __init__(
        self,
        pool: Pool,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        on_change: Callable[[str, Sequence[Endpoint]], None],
        on_strategy: Callable[[], None] = lambda: None,
    ) -> None:
        self.pool = pool
        self._metrics = metrics
        self._clock = clock
        self._on_change = on_change
        self._on_strategy = on_strategy
        self._endpoints: Sequence[Endpoint] = ()
        self._strategy = pool.strategy
        self._changed = asyncio.Event()
        self._confirmed_s: float | None = None
        self.synced = asyncio.Event()

    def __repr__(self) -> str:
        return f"<PoolKeeper of {self.pool!r}>"

    @property
    def age_s(self) -> float | None:
        """Seconds since the source last said that its list holds; `None` before the first list."""
        return None if self._confirmed_s is None else self._clock() - self._confirmed_s

    def replace(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = tuple(endpoints)
        self.confirm()
        self._changed.set()

    def confirm(self) -> None:
        self._confirmed_s = self._clock()

    def restarted(self, why: str) -> None:
        self._metrics.watch_restarts.labels(why).inc()

    def use(self, strategy: Strategy) -> None:
        """Routes by `strategy` as soon as it has placed the endpoints."""
        self._strategy = strategy
        self._changed.set()

    async def run(self, source: Source) -> None:
        """Follows `source` until cancelled; keeps the pool as it is where the source fails for good."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._install_changes())
            tasks.create_task(self._follow(source))

    async def _follow(self, source: Source) -> None:
        try:
            await source.run(self)
        except Exception:
            # A source handles its own failures; what gets here is a bug, and no reason to stop serving.
            log.exception("the source of pool %s failed; its endpoints stay as they are", self.pool.name)
            self.restarted("internal")

    async def _install_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._install()
            except Exception:
                # A list that cannot be placed must not keep the next one from being heard.
                log.exception("the list of pool %s cannot be used; the last one stays", self.pool.name)
                self.restarted("internal")

    async def _install(self) -> None:
        endpoints, strategy = self._endpoints, self._strategy
        before = self.pool.snapshot.placement
        snapshot = await asyncio.to_thread(Snapshot.build, endpoints, strategy, before)
        is_new = strategy is not self.pool.strategy
        self.pool.install(snapshot, strategy)
        if is_new:
            self._on_strategy()
        if self._confirmed_s is None:
            # Another strategy before the first list: an empty pool is not the news.
            return
        self.synced.set()
        log.info(
            "pool %s: %d ready, %d draining", self.pool.name, len(snapshot.names), len(snapshot.draining)
        )
        self._on_change(self.pool.name, endpoints)
