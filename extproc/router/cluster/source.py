"""The seam between what finds endpoints (a source) and what routes to them (a sink)."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from extproc.router.routing.endpoint import Endpoint


class Sink(Protocol):
    """Takes a source's lists and failures. Calls come from the event loop and return at once.

    A source does not log its failures: it reports each of them here, in one line that names no
    credential. The sink decides what operators read of them, and how often.
    """

    def replace(self, endpoints: Sequence[Endpoint]) -> None:
        """Takes the whole current list, ready and draining; an endpoint left out is gone."""

    def confirm(self) -> None:
        """Notes that the last list is still true (a bookmark, a repeated answer)."""

    def restarted(self, why: str, reason: str | None = None) -> None:
        """Counts a lost or refused watch; `why` is one of a source's few fixed words.

        `reason` says what failed and is true until the next list or confirmation; `None` where
        nothing failed: a watch that ended in its time.
        """

    def lacks(self, why: str, reason: str, has_list: bool = False) -> None:
        """Notes that the configured object does not exist or is faulty; may repeat the last report.

        Not a failure, so it is not counted: there is no such Service, the file is as faulty as it
        was. `has_list`: the last list is true all the same.
        """


class SourceFault(NamedTuple):
    """What keeps a source from a good list now: a fixed word, and a line for operators.

    `has_list`: there is a list to route by all the same.
    """

    why: str
    reason: str
    has_list: bool = False

    def __str__(self) -> str:
        return f"{self.why}: {self.reason}"


class Source(Protocol):
    """Finds a pool's endpoints and follows their changes."""

    async def run(self, sink: Sink) -> None:
        """Runs until cancelled; keeps the last good list through every failure of its own.

        May be run again after it raised.
        """


class StaticSource(Struct, frozen=True):
    """Passes on one list, once, and confirms it every `confirm_s`: what is configured is never stale."""

    endpoints: Sequence[Endpoint]
    confirm_s: float = 5.0

    async def run(self, sink: Sink) -> None:
        sink.replace(self.endpoints)
        while True:
            await asyncio.sleep(self.confirm_s)
            sink.confirm()
