"""What a router may read of an endpoint's metrics, and how old it is then."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct


class Signal(Struct, frozen=True):
    """What an endpoint's metrics say: requests that run and wait, and the share of its KV cache in use."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0


class Signals(Protocol):
    """What one gateway last read of each endpoint's metrics; of one that was never read: idle."""

    def read(self, name: str) -> Signal: ...


Scrape = Callable[[float], Signals]
"""Begins to read every endpoint's metrics each so many seconds."""


class _Idle:
    def read(self, name: str) -> Signal:  # noqa: ARG002  # whichever
        return Signal()


def scrape_nothing(every_s: float) -> Signals:  # noqa: ARG001  # never
    """Of endpoints that there are not yet."""
    return _Idle()
