"""What the workers of one service tell each other of how requests ended, so that all know what one hears.

A proxy's access log comes to one worker, whoever placed the request. How the news travel is not known here.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from msgspec import Struct

from extproc.router.feedback.cooling import Charge
from extproc.router.feedback.outcome import Exchange, Outcome
from extproc.router.routing.order import Word


class Judged(Struct, frozen=True, tag=True):
    """What a request to an endpoint came to; told where it may leave the endpoint out, or take it back."""

    pool: str
    outcome: Outcome


class Settled(Struct, frozen=True, tag=True):
    """What became of a request, told to who placed it."""

    exchange: Exchange


class OnTrial(Struct, frozen=True, tag=True):
    """An endpoint got the one request that shows whether it works again."""

    pool: str
    endpoint: str


class Logged(Struct, frozen=True, tag=True):
    """An access log tells of a pool's requests."""

    pool: str


class Newcomer(Struct, frozen=True, tag=True):
    """Who has just begun asks for what the others know."""


class Known(Struct, frozen=True, tag=True):
    """What there is against a pool's endpoints, for a newcomer."""

    pool: str
    charges: Sequence[Charge]


class Gone(Struct, frozen=True, tag=True):
    """Nothing more comes of who tells this: nobody tells it of itself."""


News = Judged | Settled | OnTrial | Logged | Newcomer | Known | Word | Gone


class Siblings(Protocol):
    """The other workers; we are number `lane` of `lanes`."""

    @property
    def lane(self) -> int: ...

    @property
    def lanes(self) -> int: ...

    def others(self) -> Collection[int]:
        """Those that there are now."""
        ...

    def tell(self, news: News) -> None:
        """Tells all others; raises nothing, and what cannot go out at once is dropped."""
        ...

    def tell_one(self, lane: int, news: News) -> None:
        """Tells one of them, if it is there."""
        ...


class WordsAfterLetters:
    """The other workers, as an order of queues needs them: a word counts picks that were told before it.

    `post` tells what the letters have to tell, now.
    """

    def __init__(self, siblings: Siblings, post: Callable[[], None]) -> None:
        self._siblings = siblings
        self._post = post

    @property
    def lane(self) -> int:
        return self._siblings.lane

    def others(self) -> Collection[int]:
        return self._siblings.others()

    def tell(self, word: Word) -> None:
        self._post()
        self._siblings.tell(word)

    def tell_one(self, lane: int, word: Word) -> None:
        self._siblings.tell_one(lane, word)
