"""What a router may read of an endpoint, and how old it is then."""

from collections.abc import Callable
from random import Random
from typing import Final, Protocol

from msgspec import Struct


class Signal(Struct, frozen=True):
    """What an endpoint's metrics say: requests that run and wait, and the share of its KV cache in use.

    What no metric says is there for those that read without delay, in tokens: of the `prompt` that
    is routed `cached` ones are in the cache, `pending` ones of others are not prefilled yet, and
    with it `active` ones would be in use. `text` is the share of its characters that is cached, to
    one block.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    prompt: int = 0
    cached: int = 0
    pending: int = 0
    active: int = 0
    text: float = 0.0


class Signals(Protocol):
    """What one gateway last read of each endpoint; of one that was never read: idle."""

    def read(self, name: str) -> Signal: ...


Scrape = Callable[[float], Signals]
"""Begins to read every endpoint each so many seconds; 0: at every look, and what no metric says too."""


class CallSignals(Struct, frozen=True):
    """Calls for every look."""

    read: Callable[[str], Signal]


def scrape_nothing(every_s: float) -> Signals:  # noqa: ARG001  # never
    """Signals of endpoints that do not exist yet."""
    return CallSignals(lambda _name: Signal())


# Nobody reads all endpoints at once, or they would all be out of date at once.
_JITTER: Final = 0.1

ReadAt = Callable[[str, float], Signal]
"""What an endpoint's metrics said at a time that is not long past; of one that is gone: idle."""


class SignalScraper:
    """Reads each endpoint every `every_s` seconds, give or take a tenth, from a moment of its own on.

    It reads when somebody looks, as of when it would have read: what nobody looks at costs nothing.
    """

    def __init__(
        self, every_s: float, rng: Random, clock: Callable[[], float], read_at: ReadAt
    ) -> None:
        self._every_s = every_s
        self._rng, self._clock, self._read_at = rng, clock, read_at
        self._read: dict[str, Signal] = {}
        self._next_s: dict[str, float] = {}

    def read(self, name: str) -> Signal:
        now = self._clock()
        last_s, next_s = -1.0, self._next_s.get(name)
        if next_s is None:
            next_s = now + self._rng.random() * self._every_s
            last_s = next_s - self._every_s
        while next_s <= now:
            last_s, next_s = (
                next_s,
                next_s + self._every_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER),
            )
        self._next_s[name] = next_s
        if last_s >= 0:
            self._read[name] = self._read_at(name, last_s)
        return self._read.get(name, Signal())
