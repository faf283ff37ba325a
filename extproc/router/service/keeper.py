"""A pool's keeper: installs the lists of its source."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from extproc.router.cluster.reason import describe_error
from extproc.router.cluster.source import Source, SourceFault
from extproc.router.logs import ONCE_A_MINUTE
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool, Snapshot
from extproc.router.routing.strategies.base import Strategy
from extproc.router.telemetry import Metrics

log = logging.getLogger(__name__)


class PoolKeeper:
    """The sink of one pool's source, and the one who gives the pool another strategy.

    A snapshot is built in a thread, since a ring of a thousand endpoints takes a third of a second,
    and installed on the loop, where picks happen. Lists that come meanwhile replace one another:
    only the last counts, and one that says what the last one said is a confirmation. A new strategy
    takes over together with the snapshot that was built for it. `on_change` is called with every
    installed list, `on_strategy` when a new strategy has taken over.
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
        # `None` where the next list counts whatever it says: the first, and one after a failure.
        self._last: Sequence[Endpoint] | None = None
        self._strategy = pool.strategy
        self._changed = asyncio.Event()
        self._confirmed_s: float | None = None
        self._last_sign_s = clock()
        self._lost_s: float | None = None  # since when its source fails
        self.fault: SourceFault | None = None
        self.synced = asyncio.Event()

    @property
    def age_s(self) -> float | None:
        """Seconds since the source last said that its list holds; `None` before the first list."""
        return None if self._confirmed_s is None else self._clock() - self._confirmed_s

    @property
    def silence_s(self) -> float:
        """Seconds since the source last said anything, be it that it failed."""
        return self._clock() - self._last_sign_s

    def replace(self, endpoints: Sequence[Endpoint]) -> None:
        self.confirm()
        fresh = tuple(endpoints)
        if fresh != self._last:
            self._last = self._endpoints = fresh
            self._changed.set()

    def confirm(self) -> None:
        self._confirmed_s = self._last_sign_s = self._clock()
        self.fault = None
        self._note_word()

    def restarted(self, why: str, reason: str | None = None) -> None:
        self._last_sign_s = self._clock()
        self._metrics.watch_restarts.labels(self.pool.name, why).inc()
        if reason is not None:
            self.fault = SourceFault(why, reason)
            self._lost_s = self._last_sign_s if self._lost_s is None else self._lost_s
            level = logging.ERROR if why == "internal" else logging.WARNING
            # Seconds are an argument: a text with a number in it would be another kind each time.
            text, known = "pool %s: no list yet%s (%s): %s", ""
            if self._confirmed_s is not None:
                text = "pool %s: no new list for %s s, the last one stays (%s): %s"
                known = f"{self._last_sign_s - self._lost_s:.0f}"
            # A source tries again every second or so, and an API server that is away is away for
            # all pools.
            limit = {**ONCE_A_MINUTE, "kind": why}
            log.log(level, text, self.pool.name, known, why, reason, extra=limit)

    def lacks(self, why: str, reason: str, has_list: bool = False) -> None:
        self._last_sign_s = self._clock()
        if has_list:
            self._confirmed_s = self._last_sign_s
        fault = SourceFault(why, reason)
        if fault != self.fault:
            self.fault = fault
            self._note_word()
            log.warning("pool %s (%s): %s", self.pool.name, why, reason)

    def _note_word(self) -> None:
        if self._lost_s is not None:
            for_s, self._lost_s = self._last_sign_s - self._lost_s, None
            limit = {**ONCE_A_MINUTE, "kind": self.pool.name}
            log.info("pool %s has a list again, after %.0f s", self.pool.name, for_s, extra=limit)

    def use(self, strategy: Strategy) -> None:
        """Routes by `strategy` as soon as it has placed the endpoints."""
        self._strategy = strategy
        self._changed.set()

    async def run(self, source: Source) -> None:
        """Follows `source`, which never ends by itself, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._install_changes())
            tasks.create_task(source.run(self))

    async def _install_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._install()
            except Exception as error:  # noqa: BLE001  # the next list must be taken all the same
                self._last = None
                self.restarted("internal", f"a list that cannot be placed: {describe_error(error)}")

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
        states = Counter(state for _, state in self.pool.states())
        words = {"unknown": "not probed yet"}
        counts = ", ".join(f"{count} {words.get(state, state)}" for state, count in states.items())
        log.info("pool %s: %s", self.pool.name, counts or "no endpoints")
        self._on_change(self.pool.name, endpoints)
