"""One picture of a pool: what its caches hold and what its engines do, if requests go where a rule sends them.

Time is the requests' own: a picture may be painted minutes later, and comes out the same.
"""

# What is simulated of an engine, and what not:
#
# - Its cache is the router's own index of it: least recently used goes first, open requests stay.
# - It prefills in steps. A request waits for the end of the step that runs, then its whole prompt,
#   less what the cache has, is computed in the next step, together with those that came meanwhile.
#   The first token comes at that step's end. A step costs `step_ms` beside what it prefills, and
#   more for each token of its requests in the cache, whose keys and values every step reads.
# - Of a prompt's last answer nothing is found where it stood behind thoughts, which prompts leave out.
#   Nobody tells of thoughts. They are where prompts repeat far less than was computed, by its time.
# - An answer takes as long as the real one took. So both pictures have the same answers, and what a
#   picture changes is the time before them. Faster answers would bring the next turn sooner, and a
#   prefill that is saved holds up no answer of others: both are left out, and speak for less gain.

from collections.abc import Mapping
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random
from typing import Any, Final

from msgspec import Struct

from extproc.router.routing.pool import Pool, Snapshot
from extproc.router.routing.prompt.chain import Chain
from extproc.router.routing.strategies.balanced import LeastLoad
from extproc.router.routing.strategies.base import ClockAndRandom, EngineFigures, Reading
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache

_MEAN: Final = 256
# If prompts repeat less of the answers, these were mostly thoughts. Prefills of others make an answer
# take longer, so chats without thoughts repeat two thirds of what was computed by its time.
_WHOLE: Final = 0.25


class Placed(Struct, frozen=True):
    """One request in a picture: bytes found, milliseconds of prefill, when its first token came."""

    endpoint: str
    reading: Reading
    found: int
    work_ms: float
    first_s: float


class _Steps:
    """Of one engine, when the step ends that runs, and when the last one ends that has work."""

    __slots__ = ("begin_s", "end_s")

    def __init__(self) -> None:
        self.begin_s = self.end_s = -inf

    def join(self, now_s: float, step_s: float, work_s: float, *, is_busy: bool) -> float:
        """Returns when a prompt that comes now has its first token."""
        if now_s >= self.end_s:
            # A step without a prefill runs where others decode; half of it is left on average.
            self.begin_s = now_s + is_busy * step_s / 2
            self.end_s = self.begin_s + step_s + work_s
        elif now_s < self.begin_s:
            self.end_s += work_s
        else:
            self.begin_s, self.end_s = self.end_s, self.end_s + step_s + work_s
        return self.end_s


class Picture:
    """Where requests went by one rule, in virtual time. They must come in order.

    The rule is that of `prefix_cache`, whose `options` say which engines these are; or the least
    load.
    """

    def __init__(self, rng: Random, options: Mapping[str, Any], *, by_load: bool = False) -> None:
        self._now_s = 0.0
        outside = ClockAndRandom(rng, lambda: self._now_s)
        self._caches = PrefixCache(outside, **options, gateways=1)
        self._blind = LeastLoad(outside) if by_load else None
        self._pool = Pool("", self._caches)
        self._steps: dict[str, _Steps] = {}
        self._ends: list[tuple[float, int, Placed]] = []
        self._numbers = count()
        # How long the last answer took, and whether prompts repeat enough of answers, on average.
        self._answer_s = self._repeats = 0.0

    @property
    def fill(self) -> float:
        """How full the emptiest cache is. A full one finds what it will find from now on."""
        holdings = map(self._caches.index.holding, self._pool.snapshot.names)
        return min((each.fill for each in holdings if each is not None), default=0.0)

    def follow(self, snapshot: Snapshot, figures: EngineFigures) -> None:
        """Takes the endpoints, and what is known of them by now."""
        if snapshot is not self._pool.snapshot:
            self._pool.install(snapshot)
            self._steps = {name: self._steps.get(name) or _Steps() for name in snapshot.names}
        self._caches.signals.adopt(figures)

    def place(self, at_s: float, chain: Chain, name: str = "") -> Placed:
        """Takes the next request, to the endpoint of this `name`, or else by the rule."""
        while self._ends and self._ends[0][0] <= at_s:
            self._now_s, _, ended = heappop(self._ends)
            self._answer_s = self._now_s - ended.first_s
            self._pool.book.release(ended.endpoint)
            ended.reading.ended(ended.endpoint)
        self._now_s = at_s
        reading, book, engine = (
            self._caches.read_chain(chain),
            self._pool.book,
            self._caches.signals,
        )
        if not name:
            name = (self._blind or reading).choose(self._pool.candidates(), 1).names[0]
        is_busy = book.in_flight(name) > 0
        book.acquire(name)
        reading.taken(name)
        holding = self._caches.index.holding(name)
        step_s = engine.step_ms_with(holding.pinned_bytes if holding is not None else 0) / 1000
        found = chain.size - reading.content()[1]
        said = found - chain.ends[chain.cached_ends.index(found)] if found else 0
        if said:
            made = self._answer_s / step_s * engine.bytes_per_token
            self._repeats += (said - _WHOLE * made - self._repeats) / _MEAN
        if self._repeats < 0:
            found -= said
        work_ms = (chain.size - found) * engine.ms_per_byte * engine.slow.get(name, 1.0)
        first_s = self._steps[name].join(at_s, step_s, work_ms / 1000, is_busy=is_busy)
        return Placed(name, reading, found, work_ms, first_s)

    def end(self, placed: Placed, at_s: float) -> None:
        """Says when the request will have ended there."""
        heappush(self._ends, (at_s, next(self._numbers), placed))
