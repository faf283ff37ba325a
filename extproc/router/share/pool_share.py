"""One pool's part in the sharing: what a transport calls, whichever it is.

A transport posts `letters` to all other gateways, `wait_s` after `on_news` was called, `heartbeat` every
`HEARTBEAT_S`, and `farewell` when the service ends; what comes in it gives to `hear`, in any order. It may
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
    """Tells others of a pool's picks and hears of theirs; `me` is drawn at random for each start.

    `now` counts seconds and only forward, the same clock always.
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
        """Looks who fell silent; returns what is open here, and what the others measure their delay by."""
        picks = self.outbox.picks
        self.peers.check(now, picks - self._picks)
        self._picks = picks
        letter = self._letter([self.outbox.stand()], now)
        letter.echoes.extend(self.peers.echoes(now))
        return letter

    def farewell(self, now: float) -> Letter:
        return self._letter([Goodbye()], now)

    def hear(self, letter: Letter, now: float) -> None:
        """Takes a letter; one of another pool, or of our own, is left alone."""
        if letter.pool == self._pool:
            self.peers.hear(letter, now)

    def _letter(self, news: list[News], now: float) -> Letter:
        return Letter(self.me, self._pool, int(now * 1e6), news, [])
