"""A worker: the service as `extproc serve` runs it alone, with what the parent gives it."""

import asyncio
import logging
import os
import socket
import ssl
import sys
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

import uvloop

from extproc.errors import SettingsError
from extproc.router.app import Application, Crew, Start, catch_signals, run
from extproc.router.routing.strategies.base import Outside
from extproc.router.service.configuration import with_restart
from extproc.router.service.descriptors import raise_limit, share
from extproc.router.service.door import Door
from extproc.router.service.transport import build_listener, build_tls
from extproc.router.service.wiring import build_mesh, build_nats, seal_letters
from extproc.router.settings.tree import Settings, parse_settings, read_environment
from extproc.router.share.courier import Courier, Tally
from extproc.router.telemetry import configure_logging
from extproc.router.workers.channel import Channel, worker_end
from extproc.router.workers.fed import Consecutive, Fed, Unsaid
from extproc.router.workers.feeds import PEERS_KEY
from extproc.router.workers.handed import HandedTransport
from extproc.router.workers.links import Both, Links
from extproc.router.workers.messages import (
    LANES,
    CannotStart,
    Changed,
    Leave,
    LetGo,
    Ready,
    Refused,
    Serving,
    ToParent,
    ToWorker,
    Welcome,
)
from extproc.router.workers.spread import Held

log = logging.getLogger("extproc.router.workers")

# The name that letters among workers are sealed with where no other gateways share.
_ALONE: Final = "workers"
_TELL_S: Final = 0.05
# Said again although nothing changed: that we do not hang.
_ALIVE_S: Final = 1.0

Line = Channel[ToParent, ToWorker]


def admin_socket(directory: str, lane: int) -> Path:
    """Where a worker's own admin port is."""
    return Path(directory) / f"worker-{lane}.admin"


def work(messages: socket.socket, handed: socket.socket) -> int:
    """A worker's life, as the fork server begins it; returns its exit status."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_work(messages, handed))


async def _work(messages: socket.socket, handed: socket.socket) -> int:
    signals = catch_signals()
    line: Line = await Channel.open(messages, worker_end())
    welcome = await line.receive()
    if not isinstance(welcome, Welcome):
        return 0  # the parent has gone
    try:
        return await Worker(welcome, line, handed, signals).run()
    except SettingsError as error:
        line.send(CannotStart(str(error)))
        return 2
    finally:
        await line.close()


class Worker:
    """The service, and whom it listens to."""

    def __init__(
        self, welcome: Welcome, line: Line, handed: socket.socket, signals: asyncio.Queue[int]
    ) -> None:
        path = Path(welcome.path) if welcome.path is not None else None
        where = welcome.path or "flags"
        first, now = (
            parse_settings(text, read_environment(), where) for text in (welcome.first, welcome.content)
        )
        settings = with_restart(first, now)
        configure_logging(settings.server.log_level, sys.stderr, worker=welcome.lane)
        self._welcome = welcome
        self._where = where
        self._line = line
        self._signals = signals
        self._fed = Fed(monotonic)
        tally = Tally()
        self._links = Links(welcome.lane, LANES, tally)
        start = Start(settings, path, welcome.content)
        courier = self._build_courier(settings, start.base, tally)
        self._app = Application(start, Crew(self._fed, Unsaid(monotonic), courier, self._links))
        self._links.listen(self._app.pools.desks.hear)
        self._door = Door(share(raise_limit()).admin)
        self._transport = self._build_transport(settings, handed)

    async def run(self) -> int:
        admin = admin_socket(self._welcome.directory, self._welcome.lane)
        await self._transport.bind()
        return await run(
            self._app,
            self._transport,
            self._signals,
            f"unix:{admin}",
            self._door,
            self._follow,
            self._tell,
        )

    def _build_courier(self, settings: Settings, base: Path, tally: Tally) -> Courier:
        """Letters go to the other workers, and beyond them where gateways share."""
        outside = Outside(Random(), monotonic)  # noqa: S311  # chances, not secrets
        sharing = settings.share
        if sharing is None:
            return seal_letters(self._links, _ALONE, self._welcome.secret, outside, tally)
        secret = sharing.secret.read(base, os.environ)
        if sharing.mesh is not None:
            workers, lane = self._welcome.count, self._welcome.lane
            peers = Consecutive(self._fed.source(PEERS_KEY), workers)
            far = build_mesh(sharing.mesh, peers, outside, tally, lane=lane, workers=workers)
        elif sharing.nats is not None:
            far = build_nats(sharing.nats, sharing.cluster, base, os.environ, tally)
        return seal_letters(Both(self._links, far), sharing.cluster, secret, outside, tally)

    def _build_transport(self, settings: Settings, handed: socket.socket) -> HandedTransport:
        connections = share(raise_limit()).grpc
        listener = build_listener(settings.server, self._app.routes(), self._app.budget, connections)
        tls = settings.server.tls

        def build() -> ssl.SSLContext | None:
            return build_tls(tls) if tls is not None else None

        return HandedTransport(listener, build, handed, self._links.add)

    async def _follow(self) -> None:
        """Does what the parent says; when that is gone, drains and ends."""
        while (message := await self._line.receive()) is not None:
            match message:
                case Changed(content):
                    await self._app.reload(content, self._where)
                case Refused(why):
                    self._app.refuse(why)
                case Leave():
                    self._signals.put_nowait(0)
                case LetGo():
                    self._transport.let_go()
                case Welcome():
                    pass
                case _:
                    self._fed.take(message)
        self._signals.put_nowait(0)

    async def _tell(self) -> None:
        """Keeps the parent informed."""
        self._line.send(Serving(os.getpid()))
        told: set[Ready | Held] = set()
        told_s = 0.0
        has_asked = False
        while True:
            if monotonic() - told_s > _ALIVE_S:
                told, told_s = set(), monotonic()
            now: set[Ready | Held] = {Ready(tuple(self._app.faults())), self._transport.held()}
            for fresh in now - told:
                self._line.send(fresh)
            told = now
            if not self._app.faults() and not has_asked:
                has_asked = True
                self._links.ask()
            await asyncio.sleep(_TELL_S)
