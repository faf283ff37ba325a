"""A source that goes on whatever happens within it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

from extproc.router.cluster.backoff import Backoff
from extproc.router.cluster.reason import describe_error
from extproc.router.cluster.source import Sink, Source

# A source that ran this long had got over what ended it before.
_LIVED_S: Final = 30.0


class Restarting:
    """Runs `source` again, after a back-off, whatever it raises and where it ends by itself.

    A source handles the failures that it expects; what gets here is a bug, of ours or of a library,
    and must not leave a pool deaf for as long as the process lives.
    """

    def __init__(
        self,
        source: Source,
        *,
        rng: Random,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._source = source
        self._backoff = Backoff(rng)
        self._clock = clock
        self._sleep = sleep

    async def run(self, sink: Sink) -> None:
        while True:
            start_s = self._clock()
            reason = await self._run_once(sink)
            if self._clock() - start_s > _LIVED_S:
                self._backoff.reset()
            sink.restarted("internal", reason)
            await self._sleep(self._backoff.next_s())

    async def _run_once(self, sink: Sink) -> str:
        try:
            await self._source.run(sink)
        except asyncio.CancelledError as error:
            if is_cancelled():
                raise
            return describe_error(error)  # a library cancelled its own task; nobody cancelled ours
        except Exception as error:  # noqa: BLE001  # whatever it raises
            return describe_error(error)
        return "the source ended by itself"


def is_cancelled() -> bool:
    """Whether somebody cancelled this task: what it awaits may have swallowed that."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
