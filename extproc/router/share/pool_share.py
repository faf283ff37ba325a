"""One pool's part in the sharing; the courier calls it, whatever carries the letters.

A transport posts `letters` to all other gateways, `wait_s` after `on_news` was called, `heartbeat`
every `HEARTBEAT_S`, and `farewell` when the service ends; what comes in it gives to `receive`, in
any order. It may lose letters, and deliver them twice. Nothing here waits for it.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.strategies.base import Withdrawal
from extproc.router.share.delay import wait_s
from extproc.router.share.letters import (
    LETTER_BLOCKS,
    LETTER_NEWS,
    MAX_ENDPOINTS,
    Ended,
    Goodbye,
    Heartbeat,
    Letter,
    News,
    Picked,
    Withdrawn,
    name_of,
    pick_news,
    withdrawal_news,
)
from extproc.router.share.peers import Peers

HEARTBEAT_S: Final = 1.0
# More unposted news are dropped, the oldest first: the next heartbeat corrects the counts.
_MOST_NEWS: Final = 8 * LETTER_NEWS
_MOST_NAMES: Final = 4 * MAX_ENDPOINTS


class Share:
    """Writes letters of our picks of a pool, and reads the others'; `me` is drawn at random at each start.

    `now` is in seconds, always of the same monotonic clock. `on_news` is called with the first news
    after `letters` took all.
    """

    def __init__(self, pool: Pool, me: int, on_news: Callable[[], None] = lambda: None) -> None:
        self.peers = Peers(pool, me)
        self.me, self.pool = me, pool
        self._pool = name_of(pool.name)
        self._on_news = on_news
        self._number = 0
        self._picks = 0  # since the last heartbeat
        self._news: deque[Picked | Ended | Withdrawn] = deque(maxlen=_MOST_NEWS)
        self._open: dict[int, tuple[Pick, int, int]] = {}  # by identity: two picks may be equal
        self._counts: dict[int, int] = {}
        self._names: dict[str, int] = {}
        pool.witness = self

    @property
    def wait_s(self) -> float:
        return wait_s(self.peers.limit_s)

    # The pool's witness.

    def picked(self, pick: Pick) -> None:
        endpoint = self._name(pick.endpoint.name)
        self._number += 1
        self._picks += 1
        chain, missing = pick.reading.content()
        self._add(pick_news(self._number, endpoint, missing, chain))
        self._open[id(pick)] = (pick, self._number, endpoint)
        self._counts[endpoint] = self._counts.get(endpoint, 0) + 1

    def ended(self, pick: Pick) -> None:
        found = self._open.pop(id(pick), None)
        if found is None:
            return  # taken before anybody listened
        _, number, endpoint = found
        self._number += 1
        self._add(Ended(self._number, endpoint, number))
        self._counts[endpoint] -= 1
        if not self._counts[endpoint]:
            del self._counts[endpoint]

    def withdrawn(self, withdrawal: Withdrawal) -> None:
        self._add(
            withdrawal_news(self._name(withdrawal.endpoint), withdrawal.chain, withdrawal.had)
        )

    # Letters.

    def letters(self, now: float) -> list[Letter]:
        """What happened since the last time; empty where nothing did."""
        written, news, blocks = list[Letter](), list[News](), 0
        for one in self._news:
            size = 0 if isinstance(one, Ended) else len(one.hashes)
            if news and (blocks + size > LETTER_BLOCKS or len(news) == LETTER_NEWS):
                written.append(self._letter(news, now))
                news, blocks = [], 0
            news.append(one)
            blocks += size
        self._news.clear()
        return [*written, self._letter(news, now)] if news else written

    def heartbeat(self, now: float) -> Letter:
        """Drops silent peers; returns our open requests, and the echoes that the others measure delay by."""
        self.peers.check(now, self._picks)
        self._picks = 0
        busiest = sorted(self._counts.items(), key=lambda item: -item[1])[:MAX_ENDPOINTS]
        letter = self._letter([Heartbeat(self._number, dict(busiest))], now)
        letter.echoes.extend(self.peers.echoes(now))
        return letter

    def farewell(self, now: float) -> Letter:
        return self._letter([Goodbye()], now)

    def receive(self, letter: Letter, now: float) -> None:
        """Takes a letter; ignores one of another pool, or of our own."""
        if letter.pool == self._pool:
            self.peers.receive(letter, now)

    def _letter(self, news: list[News], now: float) -> Letter:
        return Letter(self.me, self._pool, int(now * 1e6), news, [])

    def _add(self, news: Picked | Ended | Withdrawn) -> None:
        self._news.append(news)
        if len(self._news) == 1:
            self._on_news()

    def _name(self, endpoint: str) -> int:
        found = self._names.get(endpoint)
        if found is None:
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()  # most of them are long gone
            found = self._names[endpoint] = name_of(endpoint)
        return found
