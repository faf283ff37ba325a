"""Our own picks of a pool, as news for the others' letters. Sends nothing itself."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from extproc.router.routing.pool import Pick
from extproc.router.routing.strategies.base import Withdrawal
from extproc.router.share import letters

# More unposted news are dropped, the oldest first: the next heartbeat corrects the counts.
_MOST_NEWS: Final = 8 * letters.LETTER_NEWS
_MOST_NAMES: Final = 4 * letters.MAX_ENDPOINTS


class Outbox:
    """Collects news of a pool's picks until `post` takes them.

    `on_news` is called with the first after each post.
    """

    def __init__(self, on_news: Callable[[], None] = lambda: None) -> None:
        self.picks = 0
        self._on_news = on_news
        self._number = 0
        self._news: deque[letters.Picked | letters.Ended | letters.Withdrawn] = deque(maxlen=_MOST_NEWS)
        self._open: dict[int, tuple[Pick, int, int]] = {}  # by identity: two picks may be equal
        self._counts: dict[int, int] = {}
        self._names: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._news)

    def picked(self, pick: Pick) -> None:
        endpoint = self._name(pick.endpoint.name)
        self._number += 1
        self.picks += 1
        chain, missing = pick.reading.content()
        self._add(letters.pick_news(self._number, endpoint, missing, chain))
        self._open[id(pick)] = (pick, self._number, endpoint)
        self._counts[endpoint] = self._counts.get(endpoint, 0) + 1

    def ended(self, pick: Pick) -> None:
        found = self._open.pop(id(pick), None)
        if found is None:
            return  # taken before anybody listened
        _, number, endpoint = found
        self._number += 1
        self._add(letters.Ended(self._number, endpoint, number))
        self._counts[endpoint] -= 1
        if not self._counts[endpoint]:
            del self._counts[endpoint]

    def withdrawn(self, withdrawal: Withdrawal) -> None:
        self._add(letters.withdrawal_news(self._name(withdrawal.endpoint), withdrawal.chain, withdrawal.had))

    def post(self) -> Iterator[list[letters.News]]:
        """Yields what is new, a letter's worth each time."""
        news = [*self._news]
        self._news.clear()
        start = blocks = 0
        for place, one in enumerate(news):
            size = 0 if isinstance(one, letters.Ended) else len(one.hashes)
            if place > start and (
                blocks + size > letters.LETTER_BLOCKS or place - start == letters.LETTER_NEWS
            ):
                yield news[start:place]  # type: ignore[misc]  # a list of some kinds of news is one of all
                start, blocks = place, 0
            blocks += size
        if news:
            yield news[start:]  # type: ignore[misc]  # likewise

    def stand(self) -> letters.Heartbeat:
        busiest = sorted(self._counts.items(), key=lambda item: -item[1])[: letters.MAX_ENDPOINTS]
        return letters.Heartbeat(self._number, dict(busiest))

    def _add(self, news: letters.Picked | letters.Ended | letters.Withdrawn) -> None:
        self._news.append(news)
        if len(self._news) == 1:
            self._on_news()

    def _name(self, endpoint: str) -> int:
        found = self._names.get(endpoint)
        if found is None:
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()  # most of them are long gone
            found = self._names[endpoint] = letters.name_of(endpoint)
        return found
