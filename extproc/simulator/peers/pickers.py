"""After GIE's, llm-d's, AIBrix's and Dynamo's routers, as of 2026. Each class says where its rule is."""

from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any, Final

from msgspec import structs

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.prompt.chain import Chain
from extproc.router.routing.strategies.balanced import LEAST_LOAD
from extproc.router.routing.strategies.base import Candidates, ClockAndRandom, CostRow, Reason
from extproc.router.routing.strategies.prefix_cache.strategy import COLD, PREFIX, PrefixCache
from extproc.simulator.peers.signals import Signal, Signals
from extproc.simulator.peers.whole import WholePrompt, hash_text

_MOST_TOKENS: Final = 131_072
_MOST_BLOCKS: Final = 200_000


# Other routers' rules, written after their sources so that a claim about them can be checked. They
# decide on what the simulator gives them; how they are deployed is not imitated. Whose they are:
#
# - `Gie`: the Gateway API Inference Extension (2026), prefix-cache-scorer with the approximate
#   indexer, kv-cache-utilization-scorer, queue-scorer, max-score-picker, weights 3, 2, 2. Chained
#   xxh64 over blocks of 64 tokens at four bytes each, at most 131,072 tokens of a prompt, one LRU of
#   31,250 blocks for each endpoint whatever its cache holds. Kept, because it is theirs: a block in
#   the middle counts though one before it is missing, and the head of a chain is evicted first.
# - `LlmdExact`: llm-d's guide to precise prefixes, same weights, with knowledge that is never wrong
#   or late.
# - `LlmdSticky`: llm-d's newest default (2026), sticky until saturated, as its guide describes it.
# - `AibrixPrefixCache`: AIBrix (2026), algorithms/prefix_cache.go.
# - `Dynamo`: Dynamo's KV router (2026), scheduling/selector.rs, at temperature 0, exact knowledge.
# - `sglang.py`: SGLang's router 0.2, `cache_aware`. KubeAI's rule (0.22.1) is our own
#   `prefix_hash` without a floor (`registry.py`).
#
# What differs from the originals is in the table of docs/why/simulator.md. `Signals` decides how old
# a metric is when it is read: `gie` reads each endpoint every 50 ms, as the real picker does, and
# sees what was true at the end of the endpoint's last step.
class Gie(WholePrompt[Sequence[int]]):
    """The highest weighted sum of three scores wins, ties at random.

    The rules of the Gateway API Inference Extension's `prefix-cache-scorer`, with its approximate
    indexer, `kv-cache-utilization-scorer`, `queue-scorer` and `max-score-picker`. Their weights: of
    the share of the prompt's blocks that the endpoint was sent before, of the free share of its KV
    cache, of its queue between the longest and the shortest. What was sent is remembered in one LRU
    of `lru_blocks` for each endpoint, whatever its cache has room for.
    """

    name = "gie"
    reasons = (PREFIX, COLD)

    def __init__(
        self,
        outside: ClockAndRandom,
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
        self._block_bytes, self._most_blocks = 4 * block_tokens, _MOST_TOKENS // block_tokens
        self.memory = SentPrompt(lru_blocks)

    def look(self, text: str) -> Sequence[int]:
        return hash_text(text, self._block_bytes, self._most_blocks)

    def follow(self, ready: Mapping[str, Endpoint], /) -> None:
        self.memory.follow(ready)

    def sent(self, seen: Sequence[int], endpoint: str) -> None:
        self.memory.add(seen, endpoint)

    def rank(self, seen: Sequence[int], candidates: Candidates) -> tuple[Sequence[str], Reason]:
        signals = {name: self._signals.read(name) for name in candidates.names}
        names = [*signals]
        self._rng.shuffle(names)
        matches = self.matches(seen, signals)
        queues = _queue_scores({name: signal.waiting for name, signal in signals.items()})
        by_prefix, by_kv, by_queue = self._weights
        scores = {
            name: by_prefix * matches[name]
            + by_kv * (1 - signal.kv_usage)
            + by_queue * queues[name]
            for name, signal in signals.items()
        }
        names.sort(key=scores.__getitem__, reverse=True)
        return names, PREFIX if matches[names[0]] else COLD

    def matches(self, seen: Sequence[int], signals: Mapping[str, Signal]) -> Mapping[str, float]:
        """Returns for each endpoint which share of the prompt it has."""
        found = self.memory.matches(seen)
        return {name: found[name] / max(1, len(seen)) for name in signals}


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


class LlmdExact(Gie):
    """GIE's weights, as in llm-d's guide to precise prefixes; it knows every cache and every queue now."""

    name = "llmd_exact"

    def look(self, _text: str) -> Sequence[int]:
        return ()

    def matches(self, _seen: Sequence[int], signals: Mapping[str, Signal]) -> Mapping[str, float]:
        return known_shares(signals)


class LlmdSticky(Gie):
    """Among endpoints that have most of the prompt the least tokens in flight; all, if those keep it waiting.

    What waits at an endpoint are the uncached prompt tokens sent there without a first token yet,
    over `tokens_per_s`, those of one cold prompt of 8,000. Where the best of those that have
    `affinity` of the prompt keeps it waiting `penalty_s` longer than the best other one, all
    compete. `exact`: it knows every cache; else it remembers what it sent, as `gie`.
    """

    name = "llmd_sticky"

    def __init__(
        self,
        outside: ClockAndRandom,
        signals: Signals,
        *,
        affinity: float = 0.8,
        tokens_per_s: float = 5_263.0,
        penalty_s: float = 18.0,
        exact: bool = False,
        lru_blocks: int = 31_250,
    ) -> None:
        super().__init__(outside, signals, lru_blocks=lru_blocks)
        self._affinity, self._exact = affinity, exact
        self._penalty_tokens = penalty_s * tokens_per_s

    def matches(self, seen: Sequence[int], signals: Mapping[str, Signal]) -> Mapping[str, float]:
        return known_shares(signals) if self._exact else super().matches(seen, signals)

    def rank(self, seen: Sequence[int], candidates: Candidates) -> tuple[Sequence[str], Reason]:
        signals = {name: self._signals.read(name) for name in candidates.names}
        names = [*signals]
        self._rng.shuffle(names)
        shares = self.matches(seen, signals)
        loads = {
            name: each.pending + each.prompt * (1 - shares[name]) for name, each in signals.items()
        }
        names.sort(key=loads.__getitem__)
        sticky = [name for name in names if shares[name] >= self._affinity]
        others = [name for name in names if name not in sticky]
        wait, other_wait = (
            min((signals[name].pending for name in group), default=0) for group in (sticky, others)
        )
        if sticky and (not others or wait - other_wait <= self._penalty_tokens):
            names = [*sticky, *others]
        return names, PREFIX if shares[names[0]] else COLD


def known_shares(signals: Mapping[str, Signal]) -> Mapping[str, float]:
    """Which share of the prompt each endpoint's cache has now."""
    return {name: signal.cached / max(1, signal.prompt) for name, signal in signals.items()}


class AibrixPrefixCache(WholePrompt[Sequence[int]]):
    """The best match with at most a mean load and `deviations` standard deviations; else the least loaded.

    AIBrix's algorithms/prefix_cache.go. Blocks of `size` characters, for each endpoint as many as
    for all. Where the highest load is above `factor` times (the mean + 1), and `gap` above the
    lowest, only matches of the least loaded count.
    """

    name = "aibrix"
    reasons = (PREFIX, LEAST_LOAD)

    def __init__(
        self,
        outside: ClockAndRandom,
        *,
        deviations: float = 1.0,
        factor: float = 2.0,
        gap: int = 8,
        size: int = 128,
    ) -> None:
        self._rng, self._size = outside.rng, size
        self._deviations, self._factor, self._gap = deviations, factor, gap
        self._memory = SentPrompt(_MOST_BLOCKS)

    def look(self, text: str) -> Sequence[int]:
        return hash_text(text, self._size)

    def follow(self, ready: Mapping[str, Endpoint], /) -> None:
        self._memory.follow(ready)

    def sent(self, seen: Sequence[int], endpoint: str) -> None:
        self._memory.add(seen, endpoint)

    def rank(self, seen: Sequence[int], candidates: Candidates) -> tuple[Sequence[str], Reason]:
        loads = {name: candidates.in_flight(name) for name in candidates.least_loaded(self._rng)}
        least, most, mean = min(loads.values()), max(loads.values()), fmean(loads.values())
        highest = mean + self._deviations * pstdev(loads.values())
        if most > self._factor * (mean + 1) and most - least >= self._gap:
            highest = least
        found = self._memory.matches(seen)
        # The sort is stable: of equal matches the least loaded comes first.
        fit = [name for name in loads if found[name] and loads[name] <= highest]
        fit.sort(key=found.__getitem__, reverse=True)
        return [*fit, *(name for name in loads if name not in fit)], PREFIX if fit else LEAST_LOAD


class Dynamo(WholePrompt[None]):
    """The least `overlap` · prefill + decode wins, ties at random: Dynamo's scheduling/selector.rs.

    Prefill is what the prompt lacks in an endpoint's cache and what others sent there still lack,
    decode what would be in use in its cache; in blocks there, in tokens here.
    """

    name = "dynamo"
    reasons = (PREFIX, COLD)

    def __init__(self, outside: ClockAndRandom, signals: Signals, *, overlap: float = 1.0) -> None:
        self._rng, self._signals, self._overlap = outside.rng, signals, overlap

    def look(self, _text: str) -> None:
        return

    def rank(self, _seen: None, candidates: Candidates) -> tuple[Sequence[str], Reason]:
        names = [*candidates.names]
        self._rng.shuffle(names)
        signals = {name: self._signals.read(name) for name in names}
        costs = {
            name: self._overlap * (signal.prompt - signal.cached + signal.pending) + signal.active
            for name, signal in signals.items()
        }
        names.sort(key=costs.__getitem__)
        return names, PREFIX if signals[names[0]].cached else COLD


class Oracle(PrefixCache):
    """Our own rule, but what each cache has of a prompt is looked up before its pick, and not inferred."""

    def __init__(self, outside: ClockAndRandom, signals: Signals, **options: Any) -> None:
        super().__init__(outside, **options)
        self._known = signals

    def compare(self, chain: Chain, candidates: Candidates, count: int) -> list[CostRow]:
        for name in candidates.names:
            holding = self.index.holding(name)
            there = bisect_right(chain.cached_ends, self._known.read(name).text * chain.size)
            head = structs.replace(chain, hashes=chain.hashes[:there])
            if holding is not None:
                known = holding.depth(head.hashes, there)
                self.index.evict(holding, chain.hashes[known:])
                if known < there:
                    self.index.apply_peer_pick(holding, head, self._clock())
        return super().compare(chain, candidates, count)
