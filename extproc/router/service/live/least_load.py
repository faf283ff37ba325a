"""What least load would have found in caches: an estimate from the prompts that come while somebody looks.

Each prompt is also put where the fewest were put, in an index of its own: nothing waits there, so
an even spread is what least load comes to. Only conversations that began since somebody looks
count, for both. The caches of the estimate evict later than most engines', which speaks for least
load.
"""

from typing import Final

from extproc.router.routing.pool import Pick
from extproc.router.routing.strategies.prefix_cache.index import PrefixIndex

# Of all endpoints together, in bytes of prompts: 25 MB of memory.
_CAPACITY_BYTES: Final = 64 * 1024 * 1024
_MOST_CONVERSATIONS: Final = 10_000


class LeastLoadEstimate:
    """The estimate for one pool."""

    def __init__(self) -> None:
        self._index = PrefixIndex(_CAPACITY_BYTES)
        self._names: frozenset[str] = frozenset()
        self._given: dict[str, int] = {}
        self._begun: set[int] = set()
        self._prompt_bytes = self._predicted_bytes = self._found_bytes = 0

    def shares(self) -> tuple[float, float] | None:
        """What was predicted in caches, what least load would have found; `None` before a prompt."""
        whole = self._prompt_bytes
        return (self._predicted_bytes / whole, self._found_bytes / whole) if whole else None

    def note(self, pick: Pick, now_s: float) -> None:
        chain, missing = pick.reading.content()
        if chain is None or not chain.size:
            return
        self._follow(pick)
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

    def _follow(self, pick: Pick) -> None:
        """Begins anew with other endpoints: what they would hold by now nobody can say."""
        names = frozenset(pick.pool.snapshot.names)
        if names != self._names:
            self._names = names
            self._index = PrefixIndex(_CAPACITY_BYTES // max(1, len(names)))
            self._index.follow(dict.fromkeys(names, ""))
            self._given = dict.fromkeys(sorted(names), 0)
            self._begun.clear()
            self._prompt_bytes = self._predicted_bytes = self._found_bytes = 0
