"""The engines' key in a file, followed: a mounted Secret is renewed under a running service."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path

from extproc.errors import SettingsError
from extproc.router.cluster.file import wakeups
from extproc.router.logs import ONCE_A_MINUTE

log = logging.getLogger(__name__)


async def follow_key(
    pool: str,
    folder: Path,
    read: Callable[[], Mapping[str, str]],
    known: Mapping[str, str],
    renew: Callable[[], None],
) -> None:
    """Calls `renew` whenever `read` gives another key than the last one; one that is none changes nothing."""
    async with aclosing(wakeups(folder, poll_s=5.0)) as ticks:
        async for _ in ticks:
            try:
                found = await asyncio.to_thread(read)
                if found != known:
                    renew()
                    known = found
                    log.info("pool %s: engines are asked with the new key from now on", pool)
            except SettingsError as error:
                log.warning("pool %s: the old key stays: %s", pool, error, extra=ONCE_A_MINUTE)
