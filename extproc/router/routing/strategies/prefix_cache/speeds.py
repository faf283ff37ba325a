"""How fast a pool is, and how much slower each endpoint, by what the engines say of their prefills. Pure.

An engine counts the requests that it prefilled and the time from each one's first step to its first
token. What that should have taken follows from the constants and the tokens that were not cached.
The quotient of the two is no speed: it has the steps of others in it, and constants may be wrong.
But it is the same for all endpoints of a pool that are alike. So each is divided by the median.

Others' steps only add to it: by right constants the median is .95 to 3.3 (16 workloads, simulated).
So a smaller one shows constants of a slower engine (an H100's by those of an L4: .15 to .21). A
larger one may be a queue, and shows nothing.

A process that stood still for 15 s took these 15 s for one prefill. So an endpoint's own figure is
the mean of batches of its requests, without the slowest and the fastest one: a stall spoils one.
"""

from collections import deque
from collections.abc import Collection
from statistics import fmean, median_low
from typing import Final

from msgspec import Struct

# So many requests count, not so many seconds: a slow endpoint gets few, and must not become unknown.
_BATCH: Final = 10
_BATCHES: Final = 30
_FEWEST_BATCHES: Final = 5
# Endpoints of one kind differ by less, measured so.
_ALIKE: Final = 1.6
_MOST: Final = 8.0
# A pool whose quotient is smaller is faster than its constants; next to nothing is no measurement.
_RIGHT: Final = 0.8
_FASTEST: Final = 0.01


class Prefills(Struct, frozen=True):
    """What an engine prefilled between two looks at its metrics: requests, tokens not cached, milliseconds."""

    requests: float
    tokens: float
    ms: float


class _Batches:
    """An endpoint's quotients of measured and expected time, and the batch that is not full yet.

    `time` is their mean; `None`: there are too few.
    """

    __slots__ = ("expected_ms", "measured_ms", "requests", "time", "times")

    def __init__(self) -> None:
        self.time: float | None = None
        self.times: deque[float] = deque(maxlen=_BATCHES)
        self.requests = self.expected_ms = self.measured_ms = 0.0

    def add(self, prefills: Prefills, expected_ms: float) -> bool:
        """Returns whether a batch is full now: only then `time` has changed."""
        self.requests += prefills.requests
        self.measured_ms += prefills.ms
        self.expected_ms += expected_ms
        if self.requests < _BATCH:
            return False
        self.times.append(self.measured_ms / self.expected_ms)
        self.requests = self.expected_ms = self.measured_ms = 0.0
        if len(self.times) >= _FEWEST_BATCHES:
            self.time = fmean(sorted(self.times)[1:-1])
        return True


class Speeds:
    """Slowness by endpoint, 1 for the median (of two, the faster); only of those that differ from it by much.

    `scale` is what the constants of a slower engine have to be multiplied by; 1 for right ones.
    """

    def __init__(self) -> None:
        self.scale = 1.0
        self.slow: dict[str, float] = {}
        self._batches: dict[str, _Batches] = {}

    def follow(self, names: Collection[str]) -> None:
        self._batches = {name: self._batches.get(name) or _Batches() for name in names}
        self.slow = {name: factor for name, factor in self.slow.items() if name in names}

    def add(self, name: str, prefills: Prefills, expected_ms: float) -> None:
        """Adds what an endpoint did, and what it should have taken for it."""
        if not self._batches[name].add(prefills, expected_ms):
            return
        known = ((each, batches.time) for each, batches in self._batches.items())
        times = {each: time for each, time in known if time is not None}
        middle = median_low(times.values()) if times else 0.0
        self.scale = middle if _FASTEST < middle < _RIGHT else 1.0
        factors = {each: ms / middle for each, ms in times.items()} if middle else {}
        self.slow = {
            each: min(max(factor, 1 / _MOST), _MOST)
            for each, factor in factors.items()
            if not 1 / _ALIKE < factor < _ALIKE
        }
