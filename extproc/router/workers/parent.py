"""The parent of several workers: has the address, the watches and the configuration, and no requests."""

import asyncio
import logging
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from shutil import rmtree
from time import monotonic
from typing import Final

import uvloop

from extproc.errors import SettingsError
from extproc.router.app import Start, catch_signals, run_reported, serve_health
from extproc.router.cluster.reason import describe
from extproc.router.service.configuration import changes, tell_what_waits, with_restart
from extproc.router.service.descriptors import raise_limit, share
from extproc.router.service.door import Door, serve_admin
from extproc.router.service.health import Health
from extproc.router.service.outages import Outages
from extproc.router.service.transport import bind_address
from extproc.router.service.wiring import OwnSources, build_peers
from extproc.router.settings.tree import Settings, parse_settings, read_environment
from extproc.router.telemetry import Metrics
from extproc.router.wire.accepting import Acceptor
from extproc.router.workers.crew import Workers, count_restarts
from extproc.router.workers.feeds import PEERS_KEY, Feeds
from extproc.router.workers.forkserver import ForkServer, start_fork_server
from extproc.router.workers.messages import Changed, Leave, Refused, Told, Welcome
from extproc.router.workers.view.admin import build_view
from extproc.router.workers.worker import admin_socket, work

log = logging.getLogger("extproc.router.workers")

_SECRET_BYTES: Final = 32
# After the time to drain a worker cuts what is left; one that hangs is killed.
_GRACE_S: Final = 5.0


def serve_workers(start: Start) -> int:
    """Runs the service in several processes until a signal ends it; returns the exit status.

    To be called before there is a loop or a thread. Raises `SettingsError` where it cannot start.
    """
    _load(start.settings)
    directory = _private_directory()
    clean = partial(rmtree, directory, ignore_errors=True)
    try:
        requests = start_fork_server(work, clean)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Parent(start, ForkServer(requests), directory).run())
    finally:
        clean()


def _load(settings: Settings) -> None:
    """Loads what workers would load later, each for itself."""
    if settings.server.xds:
        import_module("extproc.router.xds.service")
    if settings.share is not None and settings.share.nats is not None:
        with suppress(ImportError):  # an extra; who needs it says so
            import_module("extproc.router.share.nats")


def _private_directory() -> Path:
    """A directory for sockets that nobody else may open.

    In memory where files cannot be written: a container's root is often read-only.
    """
    try:
        return Path(tempfile.mkdtemp(prefix="extproc-"))
    except OSError:
        return Path(tempfile.mkdtemp(prefix="extproc-", dir="/dev/shm"))


class Parent:
    """What there is once for all workers."""

    def __init__(self, start: Start, server: ForkServer, directory: Path) -> None:
        rng = Random()  # noqa: S311  # chances, not secrets
        self._settings = start.settings
        self._path = start.path
        self._first = self._content = start.content
        self._directory = directory
        self._secret = secrets.token_bytes(_SECRET_BYTES)
        self._server = server
        self._base, self._rng = start.base, rng
        self._metrics = Metrics()
        self._is_draining = False
        self._workers = Workers(
            start.settings.server.workers,
            server,
            welcome=self._welcome,
            known=self._known,
            on_change=self._look,
            restarts=count_restarts(self._metrics.registry),
        )
        self._feeds = Feeds(
            OwnSources(start.base, rng),
            self._workers.tell,
            self._metrics,
            Outages(monotonic),
            clock=monotonic,
        )
        self._health = Health(lambda: self._workers.is_ready and not self._is_draining)
        self._acceptor: Acceptor | None = None

    async def run(self) -> int:
        signals = catch_signals()
        self._server.watch()
        server = self._settings.server
        async with AsyncExitStack() as stack:
            stack.callback(self._server.close)
            self._acceptor = Acceptor(await bind_address("server.listen", server.listen), self._workers.hand)
            stack.callback(self._acceptor.close)
            await serve_health(self._health, server, stack)
            await stack.enter_async_context(self._serve_admin(server.admin))
            self._follow()
            stack.push_async_callback(self._feeds.stop)
            for routine in (self._health.run(), self._feeds.run(), self._watch_settings()):
                stack.callback(run_reported(routine).cancel)
            running = asyncio.create_task(self._workers.run())
            log.info("%d workers serve on %s, admin on %s", server.workers, server.listen, server.admin)
            return await self._until_end(running, signals)

    def _serve_admin(self, listen: str) -> AbstractAsyncContextManager[None]:
        door = Door(share(raise_limit()).admin)
        view = build_view(self._admin_sockets, self._metrics.registry, door, faults=self._faults)
        return serve_admin(view, listen, door)

    def _faults(self) -> list[str]:
        return ["draining"] if self._is_draining else []

    def _follow(self) -> None:
        sharing = self._settings.share
        if sharing is not None and sharing.mesh is not None:
            self._feeds.follow(PEERS_KEY, PEERS_KEY, build_peers(sharing.mesh, self._base, self._rng))
        self._feeds.apply(self._settings.pools)

    def _known(self) -> Iterator[Told]:
        return self._feeds.known()

    def _welcome(self, lane: int) -> Welcome:
        path = None if self._path is None else str(self._path)
        count = self._settings.server.workers
        return Welcome(lane, count, str(self._directory), path, self._first, self._content, self._secret)

    def _look(self) -> None:
        """Accepts while somebody is there to take connections."""
        if self._acceptor is None or self._is_draining:
            return
        if self._workers.serving():
            self._acceptor.offer()
        else:
            self._acceptor.pause()

    def _admin_sockets(self) -> list[Path]:
        return [admin_socket(str(self._directory), lane) for lane in self._workers.serving()]

    async def _watch_settings(self) -> None:
        """Has the workers apply the settings file whenever it changes; a bad one is refused, once for all."""
        if self._path is None:
            return
        async with aclosing(changes(self._path, self._content)) as contents:
            async for content in contents:
                try:
                    await self._reload(content, str(self._path))
                except Exception as error:  # noqa: BLE001  # the next change must be heard all the same
                    self._metrics.reloaded("refused")
                    log.error("the changed configuration cannot be applied: %s", describe(error))  # noqa: TRY400

    async def _reload(self, content: bytes, where: str) -> None:
        try:
            settings = await asyncio.to_thread(parse_settings, content, read_environment(), where)
        except SettingsError as error:
            self._metrics.reloaded("refused")
            self._workers.tell(Refused(str(error)))
            log.error("the changed configuration is refused, the old one stays: %s", error)  # noqa: TRY400
            return
        tell_what_waits(self._settings, settings)
        self._settings = with_restart(self._settings, settings)
        self._content = content
        self._workers.tell(Changed(content))
        self._feeds.apply(settings.pools)
        self._metrics.reloaded("applied")

    async def _until_end(self, running: asyncio.Task[int], signals: asyncio.Queue[int]) -> int:
        """First signal: all workers drain together. A second one cuts them."""
        signal = asyncio.create_task(signals.get())
        gone = asyncio.create_task(self._server.gone.wait())
        await asyncio.wait([running, signal, gone], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            return _status(running)
        if gone.done():
            log.error("the process that starts workers is gone")
        self._leave()
        again = asyncio.create_task(signals.get())
        limit_s = self._settings.server.drain_s + _GRACE_S
        await asyncio.wait([running, again], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            self._workers.tell(Leave())
            await asyncio.wait([running], timeout=_GRACE_S)
        if not running.done():
            self._workers.kill()
            await asyncio.wait([running], timeout=_GRACE_S)
        status = _status(running) if running.done() else 1
        log.info("stopped, with status %d", status)
        return max(status, int(gone.done()))

    def _leave(self) -> None:
        self._is_draining = True
        self._workers.leaving.set()
        self._health.leave()
        if self._acceptor is not None:
            self._acceptor.close()
        self._workers.tell(Leave())


def _status(running: asyncio.Task[int]) -> int:
    """Raises what ended them: only what an operator can put right has a text."""
    error = running.exception()
    if isinstance(error, BaseExceptionGroup):
        faults = [fault for fault in error.exceptions if isinstance(fault, SettingsError)]
        raise faults[0] if faults else SettingsError(f"workers: {describe(error.exceptions[0])}") from None
    return running.result()
