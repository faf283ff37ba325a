"""Puts an arm of a comparison in force: sets a running router's strategy, empties the caches."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from extproc.bench.experiments.replicas import LabError, Replicas, with_strategy
from extproc.bench.experiments.run import Interrupted
from extproc.bench.spec.section import Component
from extproc.bench.spec.tree import Ab, Spec
from extproc.bench.status_server import StatusServer
from extproc.documents import read_file
from extproc.errors import SettingsError

_POLL_S = 0.1
_TIMEOUT_S = 30.0


class Switch:
    """A way to set the router's strategy; this one changes nothing, as where each arm is a server."""

    async def put(self, arm: Component) -> None:
        """Asks for a strategy."""

    async def restore(self) -> None:
        """Leaves the router as it was found."""


class SettingsFileSwitch(Switch):
    """Rewrites the `strategy` section of one pool in the settings file that the router watches."""

    def __init__(self, path: Path, pool: str | None) -> None:
        self._path = path
        self._pool = pool
        self._original = read_file(path).decode()

    async def put(self, arm: Component) -> None:
        self._write(with_strategy(self._original, self._pool, arm.section))

    async def restore(self) -> None:
        self._write(self._original)

    def _write(self, text: str) -> None:
        if self._path.read_text("utf-8") == text:
            return
        # In one step, so that the router never reads half a file.
        draft = self._path.with_name(f".{self._path.name}.draft")
        draft.write_text(text, "utf-8")
        os.replace(draft, self._path)  # noqa: PTH105  (Path.replace is the same; os.replace says it is atomic)


class BoardSwitch(Switch):
    """Asks for an arm on the board: who reads it changes the router, and leaves it as it was found."""

    def __init__(self, board: StatusServer) -> None:
        self._board = board

    async def put(self, arm: Component) -> None:
        self._board.want(arm.section)


class CommandSwitch(Switch):
    """Runs a command of the operator's, `{strategy}` replaced; its last arm stays in force."""

    def __init__(self, command: Iterable[str]) -> None:
        self._command = tuple(command)

    async def put(self, arm: Component) -> None:
        words = [word.replace("{strategy}", arm.name) for word in self._command]
        process = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, complaint = await process.communicate()
        if process.returncode:
            raise LabError(
                f"{words[0]} ended with {process.returncode}: {complaint.decode(errors='replace').strip()}"
            )


def build_switch(ab: Ab, board: StatusServer | None = None) -> Switch:
    """Picks the way that the spec gives, else the board; raises `SettingsError` for none, or two."""
    if ab.urls:
        return Switch()
    if ab.settings_file and ab.command:
        raise SettingsError("ab: give settings-file or command, not both")
    if ab.settings_file:
        return SettingsFileSwitch(ab.settings_file, ab.pool)
    if ab.command:
        return CommandSwitch(ab.command)
    if board is None:
        raise SettingsError(
            "ab: give settings-file or command, to change the strategy with; or two urls"
        )
    return BoardSwitch(board)


class Lab:
    """Prepares the router and the endpoints for one arm; without `ab.admin` it cannot see that it worked.

    What it waits for may take minutes: it gives up when `stop` is set.
    """

    def __init__(
        self,
        http: aiohttp.ClientSession,
        switch: Switch,
        ab: Ab,
        endpoints: Iterable[str],
        stop: asyncio.Event | None = None,
    ) -> None:
        self._http = http
        self._stop = stop or asyncio.Event()
        self._switch = switch
        self._ab = ab
        self._endpoints = tuple(endpoints)
        self._replicas: Replicas | None = None

    async def prepare(self, arm: Component) -> None:
        """Puts `arm` in force, sees that it is, and empties every cache; raises `LabError`, `Interrupted`."""
        try:
            await self._put(arm)
            await asyncio.gather(*map(self._flush, self._endpoints))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LabError(f"{arm.name}: {type(error).__name__} {error}") from error

    async def confirm(self, arm: Component) -> None:
        """Sees that nobody changed the router while `arm` was measured; raises `LabError`."""
        change = None if self._replicas is None else await self._replicas.find_change()
        if change is not None:
            raise LabError(f"{arm.name}: while it was measured {change}")

    async def _put(self, arm: Component) -> None:
        if self._ab.admin is None:
            await self._switch.put(arm)
            return
        is_first, replicas = (
            self._replicas is None,
            Replicas(self._http, self._ab.admin, self._ab.pool),
        )
        await replicas.look(arm, must_exist=is_first)
        self._replicas = replicas
        await self._switch.put(arm)
        until_s = time.monotonic() + self._ab.switch_timeout
        # Another process is awaited: there is no event of ours to wait for.
        while (missing := await replicas.look(arm)) is not None:
            if time.monotonic() > until_s:
                raise LabError(f"{arm.name}: after {self._ab.switch_timeout:g} s {missing}")
            await self._pause()
        # Workers of a replica may count what they have read a moment after one of them has
        # answered.
        await self._pause()
        await replicas.note_loads()

    async def _pause(self) -> None:
        if self._stop.is_set():
            raise Interrupted("interrupted before an arm was in force")
        await asyncio.sleep(_POLL_S)

    async def _flush(self, endpoint: str) -> None:
        """Empties a cache; blocks that a request still holds cannot go, so that it may take a moment."""
        async with asyncio.timeout(self._ab.switch_timeout):
            while not await self._is_flushed(endpoint):
                await self._pause()

    async def _is_flushed(self, endpoint: str) -> bool:
        base = endpoint.rstrip("/") if "://" in endpoint else f"http://{endpoint}"
        async with self._http.post(f"{base}/reset_prefix_cache") as answer:
            if answer.status != 200:
                raise LabError(
                    f"{endpoint} does not empty its cache (status {answer.status}): vLLM does with "
                    "VLLM_SERVER_DEV_MODE=1; `flush: []` goes without"
                )
            # Some versions say nothing, others whether it worked.
            return (await answer.text()).replace(" ", "") != '{"success":false}'

    async def restore(self) -> None:
        await self._switch.restore()


@asynccontextmanager
async def open_lab(
    spec: Spec, board: StatusServer | None = None, stop: asyncio.Event | None = None
) -> AsyncIterator[Lab]:
    """Yields the lab of a spec; leaves the router as it was found, whatever happened meanwhile.

    Arms are shown on `board` where the spec has no way of its own.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as http:
        lab = Lab(http, build_switch(spec.ab, board), spec.ab, spec.flushed, stop)
        try:
            yield lab
        finally:
            await lab.restore()
