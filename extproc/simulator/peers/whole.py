"""What the peers have in common: they look at the whole prompt, and place nothing on a ring."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Generic, TypeVar

from xxhash import xxh64_intdigest

from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.strategies.base import (
    Candidates,
    Choice,
    Reading,
    Reason,
    Strategy,
    StrategySettings,
)

Seen = TypeVar("Seen")


class WholePrompt(Strategy, Generic[Seen]):
    """A strategy that has to see the body and keeps what it learns to itself."""

    settings = StrategySettings

    def needs_body(self, _headers: Mapping[str, str], /) -> bool:
        return True

    def read(self, prompt: Prompt | None, _headers: Mapping[str, str], _adapter: str, /) -> Reading:
        # The whole prompt, roles and texts in order; empty where there is none.
        return _WholeReading(self, self.look(prompt.head(1 << 24) if prompt else ""))

    @abstractmethod
    def look(self, text: str) -> Seen:
        """Returns what matters of a prompt."""

    @abstractmethod
    def rank(self, seen: Seen, candidates: Candidates) -> tuple[Iterable[str], Reason]:
        """Returns the candidates, the best first, and why that one."""

    def sent(self, _seen: Seen, _endpoint: str) -> None:
        """The prompt went there."""
        return


class _WholeReading(Reading, Generic[Seen]):
    __slots__ = ("_seen", "_strategy")

    def __init__(self, strategy: WholePrompt[Seen], seen: Seen) -> None:
        self._strategy, self._seen = strategy, seen

    def choose(self, candidates: Candidates, count: int, /) -> Choice:
        names, reason = self._strategy.rank(self._seen, candidates)
        return Choice(tuple(islice(names, count)), reason)

    def taken(self, endpoint: str, /) -> None:
        self._strategy.sent(self._seen, endpoint)


def hash_text(text: str, size: int, most: int = 1 << 24) -> list[int]:
    """Returns a hash of each full block of `size` bytes, `most` at most, each made with its parent's."""
    data, parent, hashes = text.encode(), 0, list[int]()
    for start in range(0, min(len(data) // size, most) * size, size):
        parent = xxh64_intdigest(data[start : start + size], parent)
        hashes.append(parent)
    return hashes
