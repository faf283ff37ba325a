"""Ways to tell a running router its strategy."""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import yaml

from extproc.bench.spec.experiments import Ab
from extproc.bench.spec.section import Component
from extproc.errors import ExtprocError, SettingsError


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
        tree = yaml.safe_load(self._original)
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
