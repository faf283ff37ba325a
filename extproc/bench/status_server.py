"""A run's status over HTTP while it goes: how far it is, its figures so far, the arm it wants.

An operator elsewhere reads it, and may be restarted at any time: each answer has the whole status.
"""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from extproc.bench.progress import Pace, RunSnapshot
from extproc.errors import AddressError, SettingsError
from extproc.router.routing.endpoint import parse_address, parse_target


class RunStatus(msgspec.Struct, frozen=True):
    """How a run stands. `finished` of `planned` requests are over, of the one of an experiment that goes.

    `progress` is of the whole, as far as that is known; `figures` are of what is over, warm-up
    included. `wanted` is the strategy that the router is to have.
    """

    doing: str = ""
    progress: str = ""
    finished: int = 0
    planned: int | None = None
    figures: dict[str, float] = {}
    wanted: dict[str, Any] | None = None


class StatusServer:
    """Implements `Progress` by keeping the state that the server sends."""

    def __init__(self) -> None:
        self._doing, self._pace = "", Pace(1)
        self._last = RunSnapshot()
        self._ttft_s: list[float] = []
        self._wanted: dict[str, Any] | None = None

    def begin(self, doing: str, pace: Pace | None = None) -> None:
        """Another run of an experiment begins."""
        self._doing = doing
        if pace is None:
            pace = Pace(1)
            pace.begin()
        self._pace = pace
        self._last, self._ttft_s = RunSnapshot(), []

    def want(self, arm: Mapping[str, Any]) -> None:
        self._wanted = dict(arm)

    def update(self, snapshot: RunSnapshot) -> None:
        self._last = snapshot
        self._ttft_s.extend(snapshot.ttft_s)

    def notice(self) -> RunStatus:
        last = self._last
        return RunStatus(
            doing=self._doing,
            progress=self._pace.show(last.share),
            finished=last.finished,
            planned=last.goal.requests,
            figures=self._find_figures(),
            wanted=self._wanted,
        )

    def _find_figures(self) -> dict[str, float]:
        last, failed = self._last, Counter(self._last.failures).total()
        if last.at_s <= 0 or not last.finished:
            return {}
        figures = {
            "req_per_s": (last.finished - failed) / last.at_s,
            "failed": failed / last.finished,
        }
        if self._ttft_s:
            median, p95 = np.percentile(self._ttft_s, (50, 95))
            figures |= {"ttft_median_ms": 1000 * float(median), "ttft_p95_ms": 1000 * float(p95)}
        return {name: round(value, 6) for name, value in figures.items()}

    async def _answer(self, _: web.Request) -> web.Response:
        return web.Response(
            body=msgspec.json.encode(self.notice()), content_type="application/json"
        )

    def serving(self, host: str, port: int) -> AbstractAsyncContextManager[None]:
        """Answers at `/` for as long as the context lasts; raises `SettingsError` if the address is taken."""
        app = web.Application()
        app.router.add_get("/", self._answer)
        return serve_app(app, host, port)


@asynccontextmanager
async def serve_app(app: web.Application, host: str, port: int) -> AsyncIterator[None]:
    """Serves an application; raises `SettingsError` if the address cannot be had."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise SettingsError(f"{host}:{port}: {error.strerror}") from None
        yield
    finally:
        await runner.cleanup()


def decode_status(text: bytes) -> RunStatus | None:
    """Reads one; `None` for whatever else somebody says."""
    try:
        return msgspec.json.decode(text, type=RunStatus)
    except msgspec.DecodeError:
        return None


def split_location(text: str) -> tuple[str, int]:
    """Splits `ip:port`, `[ipv6]:port` or `name:port`; raises `AddressError`."""
    try:
        host, _, port = parse_address(text).rpartition(":")
    except AddressError:
        return parse_target(text)
    return host.strip("[]"), int(port)
