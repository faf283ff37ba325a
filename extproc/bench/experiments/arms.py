"""An arm of a comparison, put in force: a running router told its strategy, the caches emptied."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import aiohttp
import yaml

from extproc.bench.spec.experiments import Ab
from extproc.bench.spec.section import Component
from extproc.bench.spec.tree import Spec
from extproc.documents import parse_document
from extproc.errors import ExtprocError, SettingsError

_POLL_S = 0.1
_TIMEOUT_S = 30.0


class LabError(ExtprocError):
    """A strategy could not be put in force, or a cache not be emptied: nothing can be compared."""


class Switch(Protocol):
    """A way to tell the router its strategy."""

    async def put(self, arm: Component) -> bool:
        """Asks for a strategy; returns whether the router must read its settings again for it."""
        ...

    async def restore(self) -> None:
        """Leaves the router as it was found."""
        ...


class SettingsFileSwitch:
    """Rewrites the `strategy` section of one pool in the settings file that the router watches."""

    def __init__(self, path: Path, pool: str | None) -> None:
        self._path = path
        self._pool = pool
        self._original = path.read_text("utf-8")

    async def put(self, arm: Component) -> bool:
        tree = parse_document(self._original, str(self._path)).tree
        find_pool(tree["pools"], self._pool)["strategy"] = {"name": arm.name, **arm.options}
        return self._write(yaml.safe_dump(tree, sort_keys=False))

    async def restore(self) -> None:
        self._write(self._original)

    def _write(self, text: str) -> bool:
        if self._path.read_text("utf-8") == text:
            return False
        # In one step, so that the router never reads half a file.
        draft = self._path.with_name(f".{self._path.name}.draft")
        draft.write_text(text, "utf-8")
        os.replace(draft, self._path)  # noqa: PTH105  (Path.replace is the same; os.replace says it is atomic)
        return True


def find_pool(pools: Iterable[dict[str, object]], name: str | None) -> dict[str, object]:
    for pool in pools:
        if name in {None, pool["name"]}:
            return pool
    raise LabError(f"the settings file has no pool {name!r}")


class CommandSwitch:
    """Runs a command of the operator's, `{strategy}` replaced; its last arm stays in force."""

    def __init__(self, command: Iterable[str]) -> None:
        self._command = tuple(command)

    async def put(self, arm: Component) -> bool:
        words = [word.replace("{strategy}", arm.name) for word in self._command]
        process = await asyncio.create_subprocess_exec(
            *words, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        _, complaint = await process.communicate()
        if process.returncode:
            raise LabError(
                f"{words[0]} ended with {process.returncode}: {complaint.decode(errors='replace').strip()}"
            )
        return False

    async def restore(self) -> None:
        return


def build_switch(ab: Ab) -> Switch:
    """Picks the way that the spec gives; raises `SettingsError` if it gives none or both."""
    if bool(ab.settings_file) == bool(ab.command):
        raise SettingsError("ab: give settings-file or command, to change the strategy with")
    return SettingsFileSwitch(ab.settings_file, ab.pool) if ab.settings_file else CommandSwitch(ab.command)


class Lab:
    """Prepares the router and the endpoints for one arm; without `ab.admin` it cannot see that it worked."""

    def __init__(self, http: aiohttp.ClientSession, switch: Switch, ab: Ab, endpoints: Iterable[str]) -> None:
        self._http = http
        self._switch = switch
        self._ab = ab
        self._endpoints = tuple(endpoints)

    async def prepare(self, arm: Component) -> None:
        """Puts `arm` in force, sees that it is, and empties every cache; raises `LabError`."""
        try:
            await self._put(arm)
            await asyncio.gather(*map(self._flush, self._endpoints))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise LabError(f"{arm.name}: {type(error).__name__} {error}") from error

    async def _put(self, arm: Component) -> None:
        before = await self._reloads()
        must_reload = await self._switch.put(arm)
        if self._ab.admin is None:
            return
        # Another process is awaited: there is no event of ours to wait for.
        async with asyncio.timeout(self._ab.switch_timeout):
            while not await self._is_in_force(arm, before if must_reload else None):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)

    async def _is_in_force(self, arm: Component, before: dict[str, float] | None) -> bool:
        if before is not None:
            reloads = await self._reloads()
            if reloads["refused"] > before["refused"]:
                raise LabError(f"the router refused {arm.name}: its log says why")
            if reloads["applied"] == before["applied"]:
                return False
        async with self._http.get(f"http://{self._ab.admin}/pools", raise_for_status=True) as answer:
            pools = await answer.json()
        return str(find_pool(pools, self._ab.pool)["strategy"]) == arm.name

    async def _reloads(self) -> dict[str, float]:
        """How often the router has applied and refused a changed settings file, by its own metrics."""
        counts = {"applied": 0.0, "refused": 0.0}
        if self._ab.admin is None:
            return counts
        async with self._http.get(f"http://{self._ab.admin}/metrics", raise_for_status=True) as answer:
            lines = (await answer.text()).splitlines()
        for result in counts:
            sample = f'extproc_config_reloads_total{{result="{result}"}} '
            counts[result] += sum(
                float(line.removeprefix(sample)) for line in lines if line.startswith(sample)
            )
        return counts

    async def _flush(self, endpoint: str) -> None:
        """Empties a cache; blocks that a request still holds cannot go, so that it may take a moment."""
        async with asyncio.timeout(self._ab.switch_timeout):
            while not await self._is_flushed(endpoint):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)

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
async def open_lab(spec: Spec) -> AsyncIterator[Lab]:
    """Yields the lab of a spec; leaves the router as it was found, whatever happened meanwhile."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as http:
        endpoints = spec.scrape if spec.ab.flush is None else spec.ab.flush
        lab = Lab(http, build_switch(spec.ab), spec.ab, endpoints)
        try:
            yield lab
        finally:
            await lab.restore()
