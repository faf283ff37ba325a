"""After the Endpoint Picker of the Gateway API Inference Extension, as of 2026, with the usual weights.

The rules of its plugins `prefix-cache-scorer`, `kv-cache-utilization-scorer`, `queue-scorer` and
`max-score-picker`, and of its approximate prefix indexer: blocks of 64 tokens of four bytes.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from xxhash import xxh64_intdigest

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.strategies.base import Candidates, Choice, Outside, Reading
from extproc.router.routing.strategies.prefix_cache.strategy import COLD, PREFIX
from extproc.simulator.peers.signals import Signals
from extproc.simulator.peers.whole import WholePrompt, text_of

_MOST_TOKENS: Final = 131_072


class Gie(WholePrompt):
    """The highest weighted sum of three scores wins, ties at random.

    Their weights: of the share of the prompt's blocks that the endpoint was sent before, of the free share
    of its KV cache, of its queue between the longest and the shortest. What was sent is remembered
    in one LRU of `lru_blocks` for each endpoint, whatever its cache has room for.
    """

    name = "gie"
    reasons = (PREFIX, COLD)

    def __init__(
        self,
        outside: Outside,
        signals: Signals,
        *,
        prefix: float = 3.0,
        kv_cache: float = 2.0,
        queue: float = 2.0,
        block_tokens: int = 64,
        lru_blocks: int = 31_250,
    ) -> None:
        self._rng = outside.rng
        self._signals = signals
        self._weights = prefix, kv_cache, queue
        self._block_bytes = 4 * block_tokens
        self._most_blocks = _MOST_TOKENS // block_tokens
        self.sent = SentPrompt(lru_blocks)

    def read(self, prompt: Prompt | None, _headers: Mapping[str, str], _adapter: str, /) -> Reading:
        return _GieReading(self, self._hashes(text_of(prompt).encode()))

    def follow(self, ready: Mapping[str, Endpoint], /) -> None:
        self.sent.follow(ready)

    def rank(self, hashes: Sequence[int], candidates: Candidates) -> list[tuple[float, str]]:
        """Returns scores and names, the best first."""
        matches, names = self.sent.matches(hashes), [*candidates.names]
        signals = {name: self._signals.read(name) for name in names}
        queues = _queue_scores({name: signal.waiting for name, signal in signals.items()})
        by_prefix, by_kv, by_queue = self._weights
        self._rng.shuffle(names)
        scores = [
            by_prefix * matches[name] / max(1, len(hashes))
            + by_kv * (1 - signals[name].kv_usage)
            + by_queue * queues[name]
            for name in names
        ]
        return sorted(zip(scores, names, strict=True), key=lambda scored: -scored[0])

    def _hashes(self, data: bytes) -> list[int]:
        """Full blocks only, each hashed with its parent."""
        size, parent, hashes = self._block_bytes, 0, list[int]()
        stop = min(len(data) // size, self._most_blocks) * size
        for start in range(0, stop, size):
            parent = xxh64_intdigest(data[start : start + size], parent)
            hashes.append(parent)
        return hashes


def _queue_scores(waiting: Mapping[str, int]) -> dict[str, float]:
    longest, shortest = max(waiting.values()), min(waiting.values())
    if longest == shortest:
        return dict.fromkeys(waiting, 1.0)
    return {name: (longest - count) / (longest - shortest) for name, count in waiting.items()}


class SentPrompt:
    """Which blocks each endpoint was sent, the last `most` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._by_hash: dict[int, set[str]] = {}
        self._by_name: dict[str, OrderedDict[int, None]] = {}

    def matches(self, hashes: Sequence[int]) -> Counter[str]:
        """Blocks by name, up to the first that nobody has; as there, a gap in the middle is no end."""
        found = Counter[str]()
        for block in hashes:
            names = self._by_hash.get(block)
            if not names:
                break
            found.update(names)
        return found

    def add(self, hashes: Sequence[int], name: str) -> None:
        blocks = self._by_name.setdefault(name, OrderedDict())
        for block in hashes:
            blocks[block] = None
            blocks.move_to_end(block)
            self._by_hash.setdefault(block, set()).add(name)
        while len(blocks) > self._most:
            self._drop(blocks.popitem(last=False)[0], name)

    def follow(self, ready: Mapping[str, Endpoint], /) -> None:
        for name in [name for name in self._by_name if name not in ready]:
            for block in self._by_name.pop(name):
                self._drop(block, name)

    def _drop(self, block: int, name: str) -> None:
        names = self._by_hash[block]
        names.discard(name)
        if not names:
            del self._by_hash[block]


class _GieReading(Reading):
    __slots__ = ("_hashes", "_strategy")

    def __init__(self, strategy: Gie, hashes: Sequence[int]) -> None:
        self._strategy, self._hashes = strategy, hashes

    def choose(self, candidates: Candidates, count: int, /) -> Choice:
        ranked = self._strategy.rank(self._hashes, candidates)
        best = ranked[0][1]
        reason = PREFIX if self._strategy.sent.matches(self._hashes)[best] else COLD
        return Choice(tuple(name for _, name in islice(ranked, count)), reason)

    def taken(self, endpoint: str, /) -> None:
        self._strategy.sent.add(self._hashes, endpoint)
