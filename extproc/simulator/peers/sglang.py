"""After SGLang's router (sgl-router 0.2, October 2025), its policy `cache_aware`, its command's defaults.

Its tree's eviction is left out: it begins at 67 million characters an endpoint, which no run here
reaches.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.strategies.balanced import LEAST_LOAD
from extproc.router.routing.strategies.base import Candidates, ClockAndRandom, Reason
from extproc.router.routing.strategies.prefix_cache.strategy import COLD, PREFIX
from extproc.simulator.peers.whole import WholePrompt


class SglangCacheAware(WholePrompt[str]):
    """Follows the longest match while loads are balanced, and the shortest queue while they are not.

    Unbalanced: the most loaded endpoint has more than `balance_abs` requests more than the least
    loaded, and more than `balance_rel` times as many. Otherwise, where more than `cache_threshold`
    of the text was sent before, one of those goes that were sent it, whichever the map has first;
    else the endpoint with the smallest tree.
    """

    name = "sglang_cache_aware"
    reasons = (LEAST_LOAD, PREFIX, COLD)

    def __init__(
        self,
        outside: ClockAndRandom,
        *,
        cache_threshold: float = 0.3,
        balance_abs: int = 64,
        balance_rel: float = 1.5,
    ) -> None:
        self._rng = outside.rng
        self._threshold, self._abs, self._rel = cache_threshold, balance_abs, balance_rel
        self._order: dict[str, float] = {}
        self.tree = Tree()

    def look(self, text: str) -> str:
        return text

    def follow(self, ready: Mapping[str, Endpoint], /) -> None:
        # Their map has a hash's order: any, but for each key the same.
        self._order = {name: self._order.get(name) or self._rng.random() for name in ready}
        self.tree.follow(ready)

    def sent(self, seen: str, endpoint: str) -> None:
        self.tree.add(seen, endpoint)

    def rank(self, seen: str, candidates: Candidates) -> tuple[Iterable[str], Reason]:
        first, reason = self._first(seen, candidates)
        return chain(
            [first], (name for name in candidates.least_loaded(self._rng) if name != first)
        ), reason

    def _first(self, text: str, candidates: Candidates) -> tuple[str, Reason]:
        least = next(candidates.least_loaded(self._rng))
        loads = [candidates.in_flight(name) for name in candidates.names]
        if max(loads) - min(loads) > self._abs and max(loads) > min(loads) * self._rel:
            return least, LEAST_LOAD
        matched, names = self.tree.match(text)
        fit = [name for name in names if candidates.allows(name)]
        if fit and matched > self._threshold * len(text):
            return min(fit, key=self._order.__getitem__), PREFIX
        return min(candidates.names, key=lambda name: self.tree.sizes.get(name, 0)), COLD


class _Node:
    __slots__ = ("below", "names", "text")

    def __init__(self, text: str, names: Iterable[str]) -> None:
        self.text = text
        self.names = set(names)
        self.below: dict[str, _Node] = {}


class Tree:
    """A radix tree of texts; each stretch has the endpoints that were sent it.

    `sizes` counts the characters of each name's stretches.
    """

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self._root = _Node("", ())

    def match(self, text: str) -> tuple[int, frozenset[str]]:
        """Returns how much of `text` anybody was sent, and who was sent the last of it."""
        node, at = self._root, 0
        while below := node.below.get(text[at : at + 1]):
            node = below
            common = _common(node.text, text, at)
            at += common
            if common < len(node.text):
                break
        return at, frozenset(node.names)

    def add(self, text: str, name: str) -> None:
        node, at = self._root, 0
        self.sizes.setdefault(name, 0)
        while at < len(text):
            below = node.below.get(text[at])
            if below is None:
                below = node.below[text[at]] = _Node(text[at:], ())
            elif (common := _common(below.text, text, at)) < len(below.text):
                below = node.below[text[at]] = _split(below, common)
            if name not in below.names:
                below.names.add(name)
                self.sizes[name] += len(below.text)
            node, at = below, at + len(below.text)

    def follow(self, ready: Mapping[str, Endpoint], /) -> None:
        gone = self.sizes.keys() - ready.keys()
        for node in self._nodes() if gone else ():
            node.names -= gone
        self.sizes = {name: self.sizes.get(name, 0) for name in ready}

    def _nodes(self) -> Iterator[_Node]:
        stack = [self._root]
        while stack:
            node = stack.pop()
            yield node
            stack += node.below.values()


def _split(node: _Node, at: int) -> _Node:
    """Cuts a stretch in two; returns the upper one."""
    upper = _Node(node.text[:at], node.names)
    node.text = node.text[at:]
    upper.below[node.text[0]] = node
    return upper


def _common(stretch: str, text: str, at: int) -> int:
    """How many characters of `stretch` stand in `text` from `at` on, by comparing halves."""
    if text.startswith(stretch, at):
        return len(stretch)
    low, high = 0, min(len(stretch), len(text) - at)
    while low < high:
        middle = (low + high + 1) // 2
        if text.startswith(stretch[low:middle], at + low):
            low = middle
        else:
            high = middle - 1
    return low
