"""The seam between the load generator and whatever carries a request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from extproc.bench.processors.processor import ChatQuery
from extproc.bench.record import Clock, Record
from extproc.bench.spec.tree import Target


class Client(Protocol):
    """Sends one request at a time, many at once. Lives and dies in a running event loop."""

    async def send(self, ask: ChatQuery, record: Record) -> None:
        """Fills the record from `started_s` to `end_s`; failures are recorded, never raised."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Wiring:
    """What a client is made of."""

    base_url: str
    target: Target
    api_key: str | None
    clock: Clock


ClientFactory = Callable[[Wiring], Client]
