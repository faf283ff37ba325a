"""What least load would have found in caches: an estimate from the prompts that come while somebody looks.

Each prompt is also put where the fewest were put, in an index of its own: nothing waits there, so
an even spread is what least load comes to. Only conversations that began since then count, for
both, and each strategy begins anew: the estimate speaks for one alone. The caches of the estimate
evict later than most engines', which speaks for least load.
"""

from typing import Final

from msgspec import Struct

from extproc.router.routing.pool import Pick
from extproc.router.routing.strategies.base import Strategy
from extproc.router.routing.strategies.prefix_cache.index import PrefixIndex

# Of all endpoints together, in bytes of prompts: 25 MB of memory.
_CAPACITY_BYTES: Final = 64 * 1024 * 1024
_MOST_CONVERSATIONS: Final = 10_000


class CacheShares(Struct, frozen=True, array_like=True):
    """Of the prompts of `age_s` what was predicted in caches, and what least load would have found."""

    predicted: float
    by_least_load: float
    age_s: float


class LeastLoadEstimate:
    """The estimate for one pool, and the strategy that is in force."""

    def __init__(self) -> None:
        self._index = PrefixIndex(_CAPACITY_BYTES)
        self._names: frozenset[str] = frozenset()
        self._strategy: Strategy | None = None
        self._since_s = 0.0
        self._given: dict[str, int] = {}
        self._begun: set[int] = set()
        self._prompt_bytes = self._predicted_bytes = self._found_bytes = 0

    def shares(self, strategy: Strategy, now_s: float) -> CacheShares | None:
        """`None` before a prompt that came while this strategy was in force."""
        whole = self._prompt_bytes
        if not whole or strategy is not self._strategy:
            return None
        age_s = round(now_s - self._since_s, 1)
        return CacheShares(self._predicted_bytes / whole, self._found_bytes / whole, age_s)

    def note(self, pick: Pick, now_s: float) -> None:
        chain, missing = pick.reading.content()
        if chain is None or not chain.size:
            return
        self._follow(pick, now_s)
        if not chain.answers and len(self._begun) < _MOST_CONVERSATIONS:
            self._begun.add(chain.home)
        if chain.home not in self._begun:
            return
        name = min(self._given, key=self._given.__getitem__)
        self._given[name] += 1
        holding = self._index.holding(name)
        if holding is not None:
            taken = self._index.insert(holding, chain, now_s)
            self._index.release(holding, chain, taken, now_s)
            self._prompt_bytes += chain.size
            self._predicted_bytes += max(0, chain.size - missing)
            self._found_bytes += chain.cached_bytes(taken.had)

    def _follow(self, pick: Pick, now_s: float) -> None:
        """Begins anew with other endpoints, too: what they would hold by now nobody can say."""
        names, strategy = frozenset(pick.pool.snapshot.names), pick.pool.strategy
        if names != self._names or strategy is not self._strategy:
            self._names, self._strategy, self._since_s = names, strategy, now_s
            self._index = PrefixIndex(_CAPACITY_BYTES // max(1, len(names)))
            self._index.follow(dict.fromkeys(names, ""))
            self._given = dict.fromkeys(sorted(names), 0)
            self._begun.clear()
            self._prompt_bytes = self._predicted_bytes = self._found_bytes = 0
