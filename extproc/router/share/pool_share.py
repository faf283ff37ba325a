"""One pool's part in the sharing; the courier calls it, whatever carries the letters.

A transport posts `letters` to all other gateways, `wait_s` after `on_news` was called, `heartbeat` every
`HEARTBEAT_S`, and `farewell` when the service ends; what comes in it gives to `receive`, in any order. It may
lose letters, and deliver them twice. Nothing here waits for it.
"""

from collections.abc import Callable
from typing import Final

from extproc.router.routing.pool import Pool
from extproc.router.share.delay import wait_s
from extproc.router.share.letters import Goodbye, Letter, News, name_of
from extproc.router.share.outbox import Outbox
from extproc.router.share.peers import Peers

HEARTBEAT_S: Final = 1.0


class Share:
    """Writes letters of our picks of a pool, and reads the others'; `me` is drawn at random at each start.

    `now` is in seconds, always of the same monotonic clock.
    """

    def __init__(self, pool: Pool, me: int, on_news: Callable[[], None] = lambda: None) -> None:
        self.peers = Peers(pool, me)
        self.outbox = Outbox(on_news)
        self.me, self._pool = me, name_of(pool.name)
        self._picks = 0
        pool.witness = self.outbox

    @property
    def wait_s(self) -> float:
        return wait_s(self.peers.limit_s)

    def letters(self, now: float) -> list[Letter]:
        """What happened since the last time; empty where nothing did."""
        return [self._letter(news, now) for news in self.outbox.post()]

    def heartbeat(self, now: float) -> Letter:
        """Drops silent peers; returns our open requests, and the echoes that the others measure delay by."""
        picks = self.outbox.picks
        self.peers.check(now, picks - self._picks)
        self._picks = picks
        letter = self._letter([self.outbox.stand()], now)
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
