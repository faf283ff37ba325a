"""After vLLM's production-stack router (2025), its routing logic `prefixaware`: no loads, no eviction."""

from collections.abc import Mapping
from itertools import islice
from typing import Final

from xxhash import xxh64_intdigest

from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.strategies.base import Candidates, Choice, Outside, Reading
from extproc.router.routing.strategies.prefix_cache.strategy import COLD, PREFIX
from extproc.simulator.peers.whole import WholePrompt, text_of

_CHUNK_CHARS: Final = 128


class ProductionStackPrefix(WholePrompt):
    """Any of those that were sent most of the prompt, by chunks of 128 characters, the last one short."""

    name = "production_stack_prefix"
    reasons = (PREFIX, COLD)

    def __init__(self, outside: Outside) -> None:
        self.rng = outside.rng
        self.sent: dict[int, set[str]] = {}

    def read(self, prompt: Prompt | None, _headers: Mapping[str, str], _adapter: str, /) -> Reading:
        text, parent, path = text_of(prompt), 0, list[int]()
        for start in range(0, len(text), _CHUNK_CHARS):
            parent = xxh64_intdigest(text[start : start + _CHUNK_CHARS].encode(), parent)
            path.append(parent)
        return _Asked(self, path)


class _Asked(Reading):
    __slots__ = ("_path", "_strategy")

    def __init__(self, strategy: ProductionStackPrefix, path: list[int]) -> None:
        self._strategy, self._path = strategy, path

    def choose(self, candidates: Candidates, count: int, /) -> Choice:
        sent, rng = self._strategy.sent, self._strategy.rng
        matched = set(candidates.names)
        reason = COLD
        for chunk in self._path:
            those = matched & sent.get(chunk, set())
            if not those:
                break
            matched, reason = those, PREFIX
        # Sorted, since a set has another order in each process.
        first = rng.choice(sorted(matched))
        others = (name for name in candidates.least_loaded(rng) if name != first)
        return Choice((first, *islice(others, count - 1)), reason)

    def taken(self, endpoint: str, /) -> None:
        for chunk in self._path:
            self._strategy.sent.setdefault(chunk, set()).add(endpoint)
