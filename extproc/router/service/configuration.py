"""Which configuration is in force, since when, and why the last other one is not; the file's changes."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Final, Self

import yaml
from msgspec import Struct
from msgspec.structs import replace

from extproc.router.cluster.file import wakeups
from extproc.router.settings.tree import Settings

log = logging.getLogger(__name__)


class Refusal(Struct, frozen=True):
    """A changed file that was not taken: when, by the clock, and what was wrong."""

    at_s: float
    why: str


class Configuration(Struct, frozen=True):
    """The settings in force. `number` counts them from 1; `where` they came from is a file, or `flags`."""

    settings: Settings
    where: str
    since_s: float
    number: int = 1
    refusal: Refusal | None = None

    def refused(self, why: str, now_s: float) -> Self:
        return replace(self, refusal=Refusal(now_s, why))

    def replaced(self, settings: Settings, now_s: float) -> Self:
        return replace(self, settings=settings, since_s=now_s, number=self.number + 1, refusal=None)

    def text(self) -> str:
        """As YAML: what was set, by the file or the environment. No secrets: settings name files of them."""
        tree = self.settings.model_dump(mode="json", exclude_unset=True)
        return str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=100))


async def changes(path: Path, content: bytes, poll_s: float) -> AsyncGenerator[bytes]:
    """Yields the file's content each time that it is another one; `content` is what was read first.

    Says once that the file is gone, and once that it is there again.
    """
    is_there = True
    async with aclosing(wakeups(path.parent, poll_s=poll_s)) as ticks:
        async for _ in ticks:
            try:
                # Compared with what was loaded: a change before the first tick counts too.
                fresh = await asyncio.to_thread(path.read_bytes)
            except OSError as error:
                if is_there:
                    log.warning("%s cannot be read, what it said stays: %s", path, error.strerror)
                is_there = False
                continue
            if not is_there:
                log.info("%s can be read again", path)
            is_there = True
            if fresh != content:
                content = fresh
                yield fresh


_WITH_RESTART: Final = ("server", "share")


def log_what_waits(before: Settings, after: Settings) -> None:
    """Says which sections take effect with a restart only."""
    for section in _WITH_RESTART:
        if getattr(after, section) != getattr(before, section):
            log.warning("a change of the section %s takes effect with a restart", section)
