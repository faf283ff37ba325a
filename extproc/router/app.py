"""The composition root of `extproc serve`: builds, wires, starts, reloads, drains."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic
from typing import TYPE_CHECKING, Final, Self
from uuid import uuid4

from extproc import __version__
from extproc.documents import read_file
from extproc.errors import SettingsError
from extproc.grpc_server.budget import Budget
from extproc.grpc_server.calls import Routes
from extproc.router.cluster.reason import describe_error
from extproc.router.feedback.access_log import AccessLogs
from extproc.router.feedback.feedback_metrics import FeedbackCollector
from extproc.router.routing.strategies.base import ClockAndRandom
from extproc.router.service.admin import build_admin
from extproc.router.service.configuration import Configuration, changes, log_what_waits
from extproc.router.service.connection_limit import ConnectionLimit, serve_admin
from extproc.router.service.health import Health
from extproc.router.service.live.recorder import Recorder, Recording
from extproc.router.service.pool_metrics import PoolCollector
from extproc.router.service.pools import Pools
from extproc.router.service.process import prepare_for_long_bodies, raise_limit, share
from extproc.router.service.running_pool import PoolContext
from extproc.router.service.tracer import FLUSH_S, build_tracer
from extproc.router.service.transport import Transport, bind_health, bind_transport
from extproc.router.service.wiring import PoolWiring, build_courier
from extproc.router.settings.reading import parse_settings
from extproc.router.settings.tree import Settings
from extproc.router.share.share_metrics import ShareCollector
from extproc.router.stream.server import ExternalProcessor
from extproc.router.stream.session import SessionOptions
from extproc.router.stream.uploads import Uploads
from extproc.router.telemetry import Metrics

if TYPE_CHECKING:
    from extproc.router.xds.service import Xds

log = logging.getLogger(__name__)

# Before a drain is over, requests that still wait are refused: the answer has to get out.
_LAST_WORD_S: Final = 1.0
# So many more than before, and the garbage collector looks at them.
YOUNG_OBJECTS: Final = 2_000


@dataclass(frozen=True, slots=True)
class Start:
    """What the service starts from: settings, and the file at `path` with the content they were read from.

    Without a `path` they came from flags, as `content` would say the same, or nothing is watched.
    """

    settings: Settings
    path: Path | None = None
    content: bytes = b""

    @property
    def base(self) -> Path:
        """The folder that relative paths in the settings start from."""
        return self.path.parent if self.path else Path()

    @classmethod
    def of_file(cls, path: Path) -> Self:
        """Raises `SettingsError`."""
        content = read_file(path)
        return cls(parse_settings(content, os.environ, str(path)), path, content)


class Application:
    """The running service."""

    def __init__(self, start: Start) -> None:
        settings = start.settings
        outside = ClockAndRandom(Random(), monotonic)  # noqa: S311  # chances, not secrets
        self.metrics = Metrics()
        self.is_draining = False
        self.budget = Budget(settings.server.budget)
        self.xds = _build_xds(settings, self.metrics)
        share = settings.share
        self.courier = build_courier(share, start.base, os.environ, outside) if share else None
        shared = PoolContext(
            PoolWiring(start.base, outside, os.environ),
            self.metrics,
            publish=self.xds.publish if self.xds else lambda *_: None,
            retract=self.xds.remove if self.xds else lambda _: None,
            held=Budget(settings.server.budget // 2),
            courier=self.courier,
        )
        self.pools = Pools(shared)
        self.reader = ThreadPoolExecutor(1, "reader")
        self.tracer = build_tracer(os.environ, self.metrics.count_spans)
        self.processor = ExternalProcessor(
            lambda: self.pools.picker,
            self.metrics,
            SessionOptions(
                lambda: str(uuid4()),
                max_body_bytes=settings.server.max_body_bytes,
                clear_route_cache=settings.server.clear_route_cache or settings.server.xds,
                budget=self.budget,
                uploads=Uploads(Budget(settings.server.announced), monotonic),
                pass_headers=frozenset(settings.server.pass_headers),
                reads_apart=True,
                tickets=self.pools.feedback.tickets,
            ),
            on_served=self.pools.feedback.observe_response,
            unseen_s=settings.server.unseen_s,
            reader=self.reader,
            tracer=self.tracer,
            can_route=lambda: self.pools.can_route,
        )
        self.access_logs = AccessLogs(
            self.pools.feedback.note,
            on_fault=lambda why: self.metrics.access_log_faults.labels(why).inc(),
        )
        self.health = Health(lambda: not self.faults())
        self.configuration = Configuration(settings, str(start.path or "flags"), monotonic())
        self._path = start.path
        self._content = start.content
        self.metrics.streams_open.set_function(lambda: self.processor.streams_open)
        self.metrics.watch(
            lambda: [(each.pool, each.settings.endpoints.kind) for each in self.pools]
        )
        self.metrics.registry.register(PoolCollector(self.pools))
        self.metrics.registry.register(
            FeedbackCollector(lambda: (each.feedback for each in self.pools))
        )
        if self.courier is not None:
            self.metrics.registry.register(
                ShareCollector(self.courier.shares, self.courier.letter_counts)
            )

    def faults(self) -> list[str]:
        """Why the service is not ready; empty if it is."""
        return ["draining"] if self.is_draining else self.pools.faults()

    def record(self, recording: Recording) -> Callable[[], None]:
        """Adds every decision to `recording` until the returned function is called."""
        processor, before = self.processor, self.processor.observer
        processor.observer = Recorder(before, recording)
        return lambda: setattr(processor, "observer", before)

    def routes(self) -> Routes:
        """Every gRPC method that is served."""
        discovery = self.xds.routes() if self.xds else {}
        logs = self.access_logs.routes()
        return {**self.processor.routes(), **self.health.routes(), **logs, **discovery}

    def start(self) -> None:
        self.pools.apply(self.configuration.settings.pools)
        _warn(self.configuration.settings)

    async def watch_settings(self, poll_s: float = 5.0) -> None:
        """Applies the settings file whenever it changes; a bad one is refused and the old one stays.

        What the file's folder does not show is found by a look every `poll_s` seconds.
        """
        if self._path is None:
            return
        async with aclosing(changes(self._path, self._content, poll_s)) as contents:
            async for content in contents:
                await self.reload(content, str(self._path))

    async def reload(self, content: bytes, where: str) -> None:
        """Applies changed settings, or says why not."""
        try:
            settings = await asyncio.to_thread(parse_settings, content, os.environ, where)
            put_in_force = self.pools.prepare(settings.pools)
            if self.xds:
                # Before there is a second pool, or else its first prompts could go to the other.
                self.xds.open(settings.open_pool)
            put_in_force()
        except SettingsError as error:
            self.refuse(str(error))
            log.error("the changed configuration is refused, the old one stays: %s", error)  # noqa: TRY400
            return
        except Exception as error:  # noqa: BLE001  # a bug: the old pools stay, and the next change counts
            self.refuse(describe_error(error))
            log.error("the changed configuration cannot be applied: %s", describe_error(error))  # noqa: TRY400
            return
        log_what_waits(self.configuration.settings, settings)
        _warn(settings)
        self.configuration = self.configuration.replaced(settings, monotonic())
        self.metrics.reloaded("applied")
        log.info("the changed configuration is applied")

    def refuse(self, why: str) -> None:
        """Notes that changed settings are not taken."""
        self.metrics.reloaded("refused")
        self.configuration = self.configuration.refused(why, monotonic())


def _warn(settings: Settings) -> None:
    for _, fault in settings.unreachable():
        log.warning("%s", fault)


async def serve_until_signal(start: Start) -> int:
    """Runs the service until SIGTERM or SIGINT.

    Returns the exit status: 0 if every request in flight at the first signal was served to its end,
    1 if some were cut. Raises `SettingsError` where it cannot start.
    """
    settings = start.settings.server
    app = Application(start)
    shares = share(raise_limit())
    limit = ConnectionLimit(shares.admin)
    signals = catch_signals()
    prepare_for_long_bodies()
    async with AsyncExitStack() as stack:
        transport = await bind_transport(
            settings, app.routes(), app.budget, shares.grpc, start.base
        )
        if settings.health is not None:  # answers to the end, through draining, too
            health = await bind_health(settings.health, app.health.routes())
            await health.start()
            stack.push_async_callback(health.stop)
        if app.tracer is not None:
            stack.push_async_callback(app.tracer.stop, FLUSH_S)
        stack.push_async_callback(app.pools.stop)
        stack.callback(app.reader.shutdown, wait=False)
        admin = build_admin(app, app.metrics.registry, limit)
        await stack.enter_async_context(serve_admin(admin, settings.admin, limit))
        if app.courier is not None:
            await app.courier.carrier.open()
            stack.push_async_callback(_end, run_reported(app.courier.run()))
        app.start()
        for routine in (app.health.run, app.watch_settings):
            stack.callback(run_reported(routine()).cancel)
        await transport.start()
        # Objects of the start-up stay: collections need not scan them again while requests wait.
        # What a request makes goes with it, by count of references: every 700 objects a collection
        # looks in vain. And every 20,000 it holds up requests for as long as ten of them.
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS)
        pools = [
            f"{pool.name} ({pool.strategy.name}, {pool.endpoints.describe()})"
            for pool in start.settings.pools
        ]
        log.info("version %s, pools: %s", __version__, ", ".join(pools))
        log.info("serving on %s, admin on %s", settings.listen, settings.admin)
        await signals.get()
        return await _drain(app, transport, signals, settings.drain_s)


async def _drain(
    app: Application, transport: Transport, signals: asyncio.Queue[int], drain_s: float
) -> int:
    """First signal: no new streams, open ones go on up to `drain_s`. A second one cuts them.

    Requests that wait for room go on waiting: others end, and make some.
    """
    app.is_draining = True
    app.health.leave()
    log.info("draining: %d streams open", app.processor.streams_open)
    transport.drain()
    asyncio.get_running_loop().call_later(max(0.0, drain_s - _LAST_WORD_S), app.pools.stop_holding)
    # Streams of xDS never end by themselves: only requests are waited for.
    ends = {asyncio.create_task(app.processor.drained()), asyncio.create_task(signals.get())}
    await asyncio.wait(ends, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
    cut = app.processor.streams_open
    for end in ends:
        end.cancel()
    await transport.stop()
    log.info("stopped: %d streams cut", cut)
    return 1 if cut else 0


def run_reported(routine: Coroutine[None, None, None]) -> asyncio.Task[None]:
    """Runs what should never end by itself."""
    task = asyncio.create_task(routine)
    task.add_done_callback(_report)
    return task


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _report(task: asyncio.Task[None]) -> None:
    """Logs that a bug ended a routine: requests are still served, but an operator should see it."""
    if not task.cancelled() and task.exception() is not None:
        log.error("%s ended: %s", task.get_coro(), type(task.exception()).__name__)


def catch_signals() -> asyncio.Queue[int]:
    signals: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    return signals


def _build_xds(settings: Settings, metrics: Metrics) -> "Xds | None":
    if not settings.server.xds:
        return None
    from extproc.router.xds.service import Xds  # noqa: PLC0415  # 11 MB of Envoy's messages that only xDS needs

    pools = [pool.name for pool in settings.pools]
    return Xds(
        pools,
        open_pool=settings.open_pool,
        on_rejection=lambda kind: metrics.xds_nacks.labels(kind).inc(),
    )
