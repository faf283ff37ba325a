"""What a gateway that comes in copies from another one: which endpoint held what before it came. Pure."""

# The rules:
#
# - It is ready before it has any of it: it serves by what it hears, and copies beside that.
# - Of those whose letters' delay is known it asks the promptest one. Whoever came in a moment ago itself says
#   so in its answer; then, or when no answer comes for `_SILENCE_S`, the next one is asked, from where the
#   last one ended. Each one a few times, since letters get lost; after `_JOINS_S` it does without.
# - An answer goes endpoint by endpoint, in the order of their names, and each one's blocks the newest first:
#   so each block comes after the one that leads to it, and what is lost costs only what comes after it.
# - What we heard ourselves is newer than what a page brings: its blocks line up behind it, to be evicted
#   first, and nothing makes room for them.
# - An answer is given in pieces, one each `PAGE_S`, whoever asks: 13,000 blocks a second at most, 3 % of a
#   core. Taken is what we asked for, of whom we asked, and no more than `_MOST_PAGES` of it.

from collections.abc import Iterator, Mapping
from typing import Final

from extproc.router.routing.pool import Pool
from extproc.router.share.letters import (
    PAGE_BLOCKS,
    IndexPage,
    IndexRequest,
    PageEnd,
    links_in,
    name_of,
    tell_links,
)

PAGE_S: Final = 0.04

_SILENCE_S: Final = 3.0
_JOINS_S: Final = 120.0
# Who hears nobody for so long was the first one.
_ALONE_S: Final = 10.0
_TIMES: Final = 3
_MOST_PAGES: Final = 20_000
_MOST_ASKERS: Final = 16
# Of one endpoint: its newest blocks.
_MOST_BLOCKS: Final = 16_384


class Copying:
    """One pool's: asks the others, and answers them. `me` is our own name among them."""

    def __init__(self, pool: Pool, me: int) -> None:
        self._pool, self._me = pool, me
        self._answers: dict[int, Iterator[IndexPage]] = {}
        self._next_s = 0.0
        self._begin()

    def _begin(self) -> None:
        self._strategy = self._pool.strategy
        self.is_whole = self._is_over = False
        self.copied = 0
        self._began_s: float | None = None
        self._asked: int | None = None
        self._heard_s = 0.0
        self._times: dict[int, int] = {}
        self._reached = 0  # the endpoint that the last piece was of
        self._pages = 0

    @property
    def is_asked(self) -> bool:
        """Whether `tell_links` has something to say, now or soon."""
        return bool(self._answers)

    def ask(self, delays: Mapping[int, float | None], now: float) -> IndexRequest | None:
        """To be called with each heartbeat: whom to ask now. `delays` are those of all who are heard."""
        if self._strategy is not self._pool.strategy:
            self._begin()
        if self._began_s is None:
            self._began_s = now
        waited_s = now - self._began_s
        self.is_whole = self.is_whole or (not delays and waited_s > _ALONE_S)
        if self._is_over or (self._asked in delays and now - self._heard_s < _SILENCE_S):
            return None
        if waited_s > _JOINS_S:
            self._end()
            return None
        self._asked = self._choose(delays)
        if self._asked is None:
            return None
        self._times[self._asked] = self._times.get(self._asked, 0) + 1
        self._heard_s = now
        return IndexRequest(self._asked, self._reached)

    def _choose(self, delays: Mapping[int, float | None]) -> int | None:
        left = {name: late_s for name, late_s in delays.items() if self._times.get(name, 0) < _TIMES}
        if delays and not left:
            self._end()  # nobody has more
        known = [
            (self._times.get(name, 0), late_s, name) for name, late_s in left.items() if late_s is not None
        ]
        return min(known)[-1] if known else None

    def hear(self, peer: int, news: IndexRequest | IndexPage, now: float) -> None:
        if isinstance(news, IndexRequest):
            if news.peer == self._me and len(self._answers) < _MOST_ASKERS:
                self._answers[peer] = self._answer(peer, news.endpoint)
        elif news.to == self._me and peer == self._asked and not self._is_over:
            self._heard_s = now
            self._take(news)

    def _take(self, page: IndexPage) -> None:
        self._pages += 1
        if page.end is PageEnd.WHOLE or self._pages > _MOST_PAGES:
            self._end()
        elif page.end is PageEnd.PARTIAL:
            self._times[self._asked or 0] = _TIMES
            self._asked, self._reached = None, 0
        else:
            self._reached = max(self._reached, page.endpoint)
            name = self._names().get(page.endpoint)
            if name is not None and self._pool.shares_picks is not None:
                self.copied += len(page.hashes)
                self._pool.shares_picks.copy_links(name, links_in(page))

    def _end(self) -> None:
        self.is_whole = self._is_over = True
        self._asked = None

    def page(self, now: float) -> IndexPage | None:
        """The next piece of what somebody asked for; `None`: nobody did, or it is too soon."""
        if not self._answers or now < self._next_s:
            return None
        self._next_s = now + PAGE_S
        asker = next(iter(self._answers))
        pages = self._answers.pop(asker)
        page = next(pages, None)
        if page is not None:
            self._answers[asker] = pages  # after all the others
        return page

    def _answer(self, to: int, first: int) -> Iterator[IndexPage]:
        strategy = self._pool.shares_picks
        for endpoint, name in sorted(self._names().items()):
            if endpoint >= first and strategy is not None:
                blocks = strategy.newest_blocks(name, _MOST_BLOCKS)
                for start in range(0, len(blocks), PAGE_BLOCKS):
                    if links := strategy.links_to(name, blocks[start : start + PAGE_BLOCKS]):
                        yield tell_links(to, endpoint, links)
        yield IndexPage(to, end=PageEnd.WHOLE if self.is_whole else PageEnd.PARTIAL)

    def _names(self) -> Mapping[int, str]:
        return {name_of(name): name for name in self._pool.snapshot.names}
