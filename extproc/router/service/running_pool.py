"""One pool that runs: what routes, what follows its endpoints, what learns from its requests."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from msgspec import Struct

from extproc.grpc_server.budget import Budget, unlimited
from extproc.router.cluster.objectives import ObjectivesSource
from extproc.router.events.kv_log import EventLogs, describe_logs
from extproc.router.feedback.doubts import Doubts
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.feedback.probes import ProbePlan, Prober, Witness
from extproc.router.feedback.scraper import Scraper
from extproc.router.lint.partings import PoolLint
from extproc.router.recording.trace_rows import PoolTrace
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import ClockAndRandom
from extproc.router.service.keeper import PoolKeeper
from extproc.router.service.key_file import follow_key
from extproc.router.service.trace_file import TraceFile
from extproc.router.service.wiring import PoolWiring, build_probe, build_rules, build_scrape
from extproc.router.settings.pool_settings import PoolSettings
from extproc.router.shadow.comparison import PoolShadow
from extproc.router.shadow.forecast import Forecast, foretell
from extproc.router.share.courier import Courier
from extproc.router.telemetry import Metrics

log = logging.getLogger(__name__)

# A source says something, good or bad, every two minutes at the latest. One that does not is stuck.
_SILENT_S: Final = 300.0

# For so long a forecast is repeated.
_FORETOLD_S: Final = 5.0

# Heads of prompts are older than they may be for so long at most.
_FORGET_S: Final = 30.0

# Tasks that ask engines, with their key.
_ASKING: Final = frozenset({"pool", "probe", "witness", "signals", "events"})

Routine = Callable[[], Coroutine[None, None, None]]


@dataclass(frozen=True, slots=True)
class PoolContext:
    """What all running pools have in common.

    `publish` takes every new list of endpoints, `retract` the name of a pool that is gone;
    `courier` shares picks with other gateways. `held` bounds the bodies of requests that wait for
    room.
    """

    wiring: PoolWiring
    metrics: Metrics
    publish: Callable[[str, Sequence[Endpoint]], None] = lambda *_: None
    retract: Callable[[str], None] = lambda _: None
    held: Budget = field(default_factory=unlimited)
    courier: Courier | None = None

    @property
    def outside(self) -> ClockAndRandom:
        return self.wiring.outside


class Objectives(Struct, eq=False):
    """The priorities of one pool: as configured, and as its InferencePool's objects say."""

    _pool: Pool
    _metrics: Metrics
    source: ObjectivesSource | None = None
    _watched: Mapping[str, int] = {}
    _configured: Mapping[str, int] = {}

    @property
    def age_s(self) -> float | None:
        """Seconds since the objects were last confirmed; `None`: they are not followed, or not listed yet."""
        return None if self.source is None else self.source.age_s

    def configure(self, priorities: Mapping[str, int]) -> None:
        self._configured = priorities
        self._apply()

    def replace(self, priorities: Mapping[str, int]) -> None:
        self._watched = priorities
        self._apply()

    def restarted(self, why: str) -> None:
        self._metrics.objectives_restarts.labels(self._pool.name, why).inc()

    def forget(self) -> None:
        self.source = None
        self.replace({})

    async def run(self, source: ObjectivesSource) -> None:
        self.source = source
        await source.run(self)

    def _apply(self) -> None:
        """The settings go first: who writes them, writes them for this service."""
        self._pool.admission.priorities = {**self._watched, **self._configured}


class RunningPool:
    """A pool and everything that runs for it. It is built whole before anything of it runs.

    `prepare` does what may fail, and returns what puts the result in force, which does not fail. So
    a reload that meets an exception leaves every pool as it was. `on_strategy` is called when
    another strategy has taken over. Needs a running event loop.
    """

    def __init__(
        self, settings: PoolSettings, shared: PoolContext, on_strategy: Callable[[], None]
    ) -> None:
        wiring = shared.wiring
        cooling = wiring.cooling(settings)
        self.settings = settings
        self.pool = Pool(settings.name, wiring.strategy(settings), gate=cooling)
        self._doubts = Doubts(shared.outside.clock)
        self.feedback = PoolFeedback(self.pool, cooling, self._doubts)
        self.heard: EventLogs = {}
        self.shadow: PoolShadow | None = None
        self.lint: PoolLint | None = None
        self.trace_file: TraceFile | None = None
        self._trace: PoolTrace | None = None
        self._foretold: tuple[float, Forecast | None] = 0.0, None
        self.objectives = Objectives(self.pool, shared.metrics)
        self.keeper = PoolKeeper(
            self.pool,
            shared.metrics,
            clock=shared.outside.clock,
            on_change=self._on_change,
            on_strategy=on_strategy,
        )
        self._shared = shared
        self._has_changed = asyncio.Event()  # the list of endpoints
        self._tasks: dict[str, asyncio.Task[None]] = {}
        # The settings that each task depends on: it is replaced when they change.
        self._keys: dict[str, object] = {}
        self.start = self.prepare(settings, is_new=True)
        self._closing = ExitStack()
        self._closing.callback(self.pool.hold, None)
        self._closing.callback(self.stop)

    @property
    def name(self) -> str:
        return self.pool.name

    @property
    def fault(self) -> str | None:
        """Why the pool is not ready; `None` if it is."""
        keeper, limit_s = self.keeper, self.settings.stale_after_s
        if not keeper.synced.is_set() or keeper.age_s is None:
            return "no list of endpoints yet"
        if limit_s is not None and keeper.age_s > limit_s:
            return f"the list of endpoints is {keeper.age_s:.0f} s old"
        if keeper.silence_s > _SILENT_S:
            return f"its source has said nothing for {keeper.silence_s:.0f} s"
        return None

    def describe_events(self) -> dict[str, dict[str, Any]]:
        """What KV events tell of each endpoint, JSON-ready; empty where nobody listens."""
        now_s, signals = self._shared.outside.clock(), self.feedback.signals
        return {
            name: describe_logs(logs, now_s, signals[name].kv_tokens if name in signals else None)
            for name, logs in self.heard.items()
        }

    def foretell(self) -> Forecast | None:
        """What routing saves, or would; `None`: the pool has no `shadow`."""
        if self.shadow is None:
            return None
        self.shadow.settle()
        now_s, (until_s, told) = self._shared.outside.clock(), self._foretold
        if told is None or now_s >= until_s or told.is_watching is not self.shadow.is_watching:
            # A week of batches takes milliseconds, and a page asks each second.
            told = foretell(self.shadow, now_s)
            self._foretold = now_s + _FORETOLD_S, told
        return told

    def route(self, settings: PoolSettings) -> Route:
        return Route.by_settings(self.pool, settings)

    def close(self) -> list[asyncio.Task[None]]:
        """Stops all tasks, refuses the requests that wait for room, and ends the pool's part in sharing."""
        tasks = [*self._tasks.values()]
        self._closing.close()
        return tasks

    def stop(self) -> list[asyncio.Task[None]]:
        """Stops the tasks alone, as the process ends; returns them."""
        for task in self._tasks.values():
            task.cancel()
        return [*self._tasks.values()]

    def prepare(self, settings: PoolSettings, *, is_new: bool = False) -> Callable[[], None]:
        """Builds what the changed settings need; returns what puts it in force."""
        wiring, before = self._shared.wiring, self.settings
        changed = {
            name: build()
            for name, (key, build) in self._wanted(settings).items()
            if self._keys.get(name) != key
        }
        has_queue = is_new or settings.hold != before.hold
        queue = (
            wiring.queue(settings, self._shared.held, asyncio.get_running_loop().call_later)
            if has_queue
            else None
        )
        has_strategy = not is_new and settings.strategy != before.strategy
        strategy = wiring.strategy(settings) if has_strategy else None
        rules = build_rules(settings)
        has_shadow = is_new or has_strategy or settings.shadow != before.shadow
        shadow = wiring.shadow(settings, self.pool) if has_shadow else self.shadow
        is_same = not is_new and settings.lint == before.lint
        lint = self.lint if is_same else wiring.lint(settings)
        has_trace = is_new or settings.record != before.record
        trace, file = wiring.trace(settings, self.feedback.signals) if has_trace else (None, None)
        if has_trace:
            changed["record"] = None if file is None else file.run

        def put_in_force() -> None:
            courier = self._shared.courier
            if is_new and courier is not None:
                courier.keep(self.pool)
                self._closing.callback(courier.forget, self.name)
            self.settings = settings
            self.pool.max_in_flight = settings.max_in_flight
            self.pool.fallbacks = settings.fallbacks
            self.pool.admission.has_shares = settings.fairness
            self.feedback.cooling.rules = rules
            self.shadow, self._foretold = shadow, (0.0, None)
            self.pool.watcher, self.lint = shadow, lint
            if has_trace:
                self._trace, self.trace_file = trace, file
            self.pool.listeners = tuple(filter(None, (lint, self._trace)))
            self.objectives.configure(settings.objectives)
            if has_queue:
                self.pool.hold(queue)
            elif self.pool.queue is not None:
                self.pool.queue.stir()
            if strategy is not None:
                log.info("pool %s: strategy %s", self.name, strategy.name)
                self.keeper.use(strategy)
            self._replace_tasks(settings, changed)
            if is_new:
                self._closing.callback(self._shared.retract, self.name)

        return put_in_force

    def _wanted(
        self, settings: PoolSettings
    ) -> dict[str, tuple[object, Callable[[], Routine | None]]]:
        """Every task: what it depends on, and how it is built; `None`: there is none."""
        probe, scrape = build_probe(settings), build_scrape(settings)
        events = settings.signals.events if settings.signals else False
        # Objects are followed where somebody may be refused.
        watched = None if settings.max_in_flight is None else settings.endpoints.inference_pool
        wiring, rng, key = self._shared.wiring, self._shared.outside.rng, settings.engine_key
        ask, path = partial(wiring.engine_headers, settings), (probe or ProbePlan()).path
        return {
            "pool": (
                (settings.endpoints, settings.learn_models, settings.match_label, key),
                lambda: partial(self.keeper.run, wiring.source(settings)),
            ),
            "probe": (
                (probe, key),
                lambda: Prober(self.feedback, probe, ask(), rng=rng).run if probe else None,
            ),
            "witness": (
                (path, key),
                lambda: Witness(self.feedback, self._doubts, path, ask()).run,
            ),
            "signals": (
                (scrape, key),
                lambda: Scraper(self.feedback, scrape, ask(), rng=rng).run if scrape else None,
            ),
            "events": (
                (events, key),
                lambda: (
                    wiring.event_reader(self.pool, self.heard, settings, self._has_changed).run
                    if events
                    else None
                ),
            ),
            "key": (key, lambda: self._key_follower(settings)),
            "lint": (settings.lint, lambda: self._forget_heads if settings.lint else None),
            "objectives": (
                watched,
                lambda: (
                    partial(self.objectives.run, wiring.objectives(watched)) if watched else None
                ),
            ),
        }

    async def _forget_heads(self) -> None:
        """Drops heads of prompts in time, also where no requests come and nobody asks."""
        while True:
            await asyncio.sleep(_FORGET_S)
            if self.lint is not None:
                self.lint.sample.heads()

    def _key_follower(self, settings: PoolSettings) -> Routine | None:
        folder = self._shared.wiring.key_folder(settings)
        if folder is None:
            return None
        read = partial(self._shared.wiring.engine_headers, settings)
        return partial(follow_key, self.name, folder, read, read(), self._renew_key)

    def _renew_key(self) -> None:
        """Replaces the tasks that ask engines."""
        wanted = self._wanted(self.settings)
        asking = {name: build() for name, (_, build) in wanted.items() if name in _ASKING}
        self._replace_tasks(self.settings, asking)

    def _replace_tasks(self, settings: PoolSettings, changed: Mapping[str, Routine | None]) -> None:
        forget = {
            "probe": self.feedback.cooling.forget_health,
            "signals": self.feedback.forget_signals,
            "events": self.heard.clear,
            "objectives": self.objectives.forget,
        }
        for name, routine in changed.items():
            before = self._tasks.pop(name, None)
            if before is not None:
                before.cancel()
                forget.get(name, lambda: None)()
            if routine is not None:
                self._tasks[name] = asyncio.create_task(routine(), name=f"{name} {self.name}")
        self._keys = {name: key for name, (key, _) in self._wanted(settings).items()}

    def _on_change(self, name: str, endpoints: Sequence[Endpoint]) -> None:
        self._shared.publish(name, endpoints)
        self.feedback.keep({endpoint.name for endpoint in endpoints})
        self._has_changed.set()
