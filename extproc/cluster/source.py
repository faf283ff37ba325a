"""The seam between what knows endpoints (a source) and what routes to them (a sink)."""

from collections.abc import Sequence
from typing import Protocol

from extproc.routing.endpoint import Endpoint


class Sink(Protocol):
    """Where a source tells what it knows. Calls come from the event loop and return at once."""

    def replace(self, endpoints: Sequence[Endpoint]) -> None:
        """Takes the whole current list, ready and draining; an endpoint left out is gone."""
        ...

    def confirm(self) -> None:
        """Notes that the last list is still true (a bookmark, a repeated answer); resets the age."""
        ...

    def restarted(self, why: str) -> None:
        """Counts a lost or refused watch; `why` is one of a source's few fixed words."""
        ...


class Source(Protocol):
    """Something that knows a pool's endpoints and hears of changes."""

    async def run(self, sink: Sink) -> None:
        """Runs until cancelled; keeps the last good list through every failure of its own."""
        ...
