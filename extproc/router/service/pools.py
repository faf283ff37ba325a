"""All pools of the service: followed, changed live, asked whether they are ready."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Final

from extproc.router.budget import Budget
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import Outside
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.service.desks import Desks
from extproc.router.service.keeper import PoolKeeper
from extproc.router.service.objectives import Objectives
from extproc.router.service.outages import Outages
from extproc.router.service.wiring import Sources, build_queue, build_route, set_limits
from extproc.router.settings.tree import PoolSettings
from extproc.router.share.courier import Courier
from extproc.router.share.share import Share
from extproc.router.telemetry import Metrics

log = logging.getLogger(__name__)

# A source says something, good or bad, every two minutes at the latest. One that does not is stuck.
_SILENT_S: Final = 300.0


class Pools:
    """One keeper per pool, and the picker that routes to them.

    `sources` say where their endpoints are known from. `publish` hears of every new list of endpoints,
    `retract` of a pool that is gone; `courier` tells other gateways. Bodies of requests that wait for room
    may have `hold_bytes`, all pools together. Needs a running event loop.

    Ready is a question about the whole service, and a proxy that is told no takes every pool's requests
    elsewhere. So at the start, and for `start_s` seconds at most, the pools of the first settings are
    waited for, as long as one of them has no list; from then on one pool that can be routed to is enough.
    A pool without a list refuses its own requests, and says why in `remarks`.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        sources: Sources,
        rng: Random,
        clock: Callable[[], float],
        publish: Callable[[str, Sequence[Endpoint]], None],
        retract: Callable[[str], None],
        courier: Courier | None = None,
        hold_bytes: int = 1 << 26,
        outages: Outages | None = None,
        start_s: float = 10.0,
    ) -> None:
        self.picker = Picker(())
        self._metrics = metrics
        self._sources = sources
        self._outside = Outside(rng, clock)
        self._clock = clock
        self._publish = publish
        self._retract = retract
        self._courier = courier
        self._held = Budget(hold_bytes)
        self._outages = outages or Outages(clock)
        self._started_s = clock() + start_s
        self._settings: dict[str, PoolSettings] = {}
        self._first: frozenset[str] = frozenset()
        self._keepers: dict[str, PoolKeeper] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.desks = Desks(self._outside)
        self.objectives = Objectives(sources, metrics)

    def __iter__(self) -> Iterator[PoolKeeper]:
        return iter(self._keepers.values())

    def ages(self) -> list[tuple[Pool, float | None]]:
        """Every pool with the age of its list in seconds, `None` before the first."""
        return [(keeper.pool, keeper.age_s) for keeper in self]

    def shares(self) -> Mapping[str, Share]:
        """Each pool's part in the sharing; empty where nobody shares."""
        return self._courier.shares() if self._courier is not None else {}

    @property
    def can_route(self) -> bool:
        """Whether any pool has had a list of endpoints, or holds its requests until it has one."""
        return any(keeper.synced.is_set() or keeper.pool.queue is not None for keeper in self)

    def known_faults(self) -> list[tuple[str, str]]:
        """The pools whose sources fail now, each with the word for why."""
        return [(keeper.pool.name, keeper.fault.why) for keeper in self if keeper.fault]

    def faults(self) -> list[str]:
        """Why requests cannot be routed well; empty if they can."""
        is_waiting = self._clock() < self._started_s and any(
            not self._keepers[name].synced.is_set() for name in self._first & self._keepers.keys()
        )
        has_route = any(self._fault_of(keeper) is None for keeper in self)
        return [] if has_route and not is_waiting else self.remarks() or ["no pool yet"]

    def remarks(self) -> list[str]:
        """What is wrong with single pools, whether the service is ready or not."""
        told = []
        for keeper in self:
            fault = self._fault_of(keeper)
            if fault or keeper.fault:
                parts = [fault or f"the list of endpoints is {keeper.age_s:.0f} s old", keeper.fault]
                told.append(f"pool {keeper.pool.name}: {': '.join(str(part) for part in parts if part)}")
        return told

    def apply(self, settings: Sequence[PoolSettings]) -> None:
        """Makes these the pools. One that stays keeps its endpoints, its loads and its requests."""
        wanted = {pool.name: pool for pool in settings}
        for name in self._settings.keys() - wanted.keys():
            self._remove(name)
        for name, pool in wanted.items():
            if name in self._settings:
                self._change(self._settings[name], pool)
            else:
                self._add(pool)
        self._first = self._first if self._settings else frozenset(wanted)
        self._settings = wanted
        self._renew_picker()

    def stop_holding(self) -> None:
        """Refuses the requests that wait for room, and holds no more."""
        for keeper in self:
            if keeper.pool.queue is not None:
                keeper.pool.queue.shut()

    async def stop(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self.desks.stop(), self.objectives.stop(), return_exceptions=True)

    def _renew_picker(self) -> None:
        self.picker = Picker(
            build_route(settings, self._keepers[name].pool) for name, settings in self._settings.items()
        )

    def _fault_of(self, keeper: PoolKeeper) -> str | None:
        """Why the pool cannot be routed to, or not by a list so old."""
        age_s, limit_s = keeper.age_s, self._settings[keeper.pool.name].stale_after_s
        if not keeper.synced.is_set() or age_s is None:
            return "no list of endpoints yet"
        if limit_s is not None and age_s > limit_s:
            return f"the list of endpoints is {age_s:.0f} s old"
        if keeper.silence_s > _SILENT_S:
            return f"its source has said nothing for {keeper.silence_s:.0f} s"
        return None

    def _add(self, settings: PoolSettings) -> None:
        pool = self.desks.open(settings)
        keeper = PoolKeeper(
            pool,
            self._metrics,
            self._outages,
            clock=self._clock,
            on_change=self._on_change,
            on_strategy=self._renew_picker,
        )
        self._keepers[settings.name] = keeper
        self._hold(pool, settings)
        if self._courier is not None:
            self._courier.keep(pool)
        self.objectives.keep(pool, settings)
        self._follow(settings)

    def _remove(self, name: str) -> None:
        self._tasks.pop(name).cancel()
        self._keepers.pop(name).pool.hold(None)
        if self._courier is not None:
            self._courier.forget(name)
        self._outages.forget(name)
        self.desks.close(name)
        self.objectives.forget(name)
        self._retract(name)

    def _change(self, before: PoolSettings, after: PoolSettings) -> None:
        keeper = self._keepers[after.name]
        set_limits(keeper.pool, after)
        self.objectives.keep(keeper.pool, after)
        self.desks.change(before, after)
        if after.hold != before.hold:
            self._hold(keeper.pool, after)
        if after.strategy != before.strategy:
            log.info("pool %s: strategy %s", after.name, after.strategy.name)
            keeper.use(STRATEGIES.build(after.strategy.name, after.strategy.options(), self._outside))
        if (after.endpoints, after.learn_models) != (before.endpoints, before.learn_models):
            self._tasks.pop(after.name).cancel()
            self._follow(after)

    def _hold(self, pool: Pool, settings: PoolSettings) -> None:
        pool.hold(build_queue(settings, self._held, self._clock, _later))

    def _on_change(self, name: str, endpoints: Sequence[Endpoint]) -> None:
        self._publish(name, endpoints)
        self.desks.keep(name, endpoints)

    def _follow(self, settings: PoolSettings) -> None:
        run = self._keepers[settings.name].run(self._sources.endpoints(settings))
        self._tasks[settings.name] = asyncio.create_task(run, name=f"pool {settings.name}")


def _later(delay_s: float, action: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_later(delay_s, action)
