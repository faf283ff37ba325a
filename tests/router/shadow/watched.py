"""Requests that others route, shown to a pool with a `shadow`."""

from collections.abc import Iterator
from random import Random

from extproc.router.routing.pool import Pick
from extproc.router.routing.strategies.base import Reading, Reason
from extproc.router.shadow.comparison import PoolShadow
from tests.router.routing.fleet import Fleet, ask, words


class WatchedFleet(Fleet):
    """A fleet whose requests go where the test says; small caches, so that they are soon full."""

    def __init__(self, names: str = "abcd", kv_tokens: int = 4_096) -> None:
        super().__init__(names, kv_tokens=kv_tokens)
        self.shadow = PoolShadow(self.pool, self.outside, {"kv_tokens": kv_tokens}, late_s=1.0)
        self.pool.watcher = self.shadow

    def arrive(self, *texts: str) -> Reading:
        reading = self.picker.find(ask(*texts)).reading
        self.shadow.arrived(reading)
        return reading

    def show(self, endpoint: str, *texts: str, took_s: float = 2.0) -> None:
        """A request that `endpoint` answers; the proxy tells of its end a second late."""
        reading = self.arrive(*texts)
        self.clock.now_s += took_s / 2
        if endpoint:
            served = self.pool.snapshot.ready[endpoint]
            pick = Pick(self.pool, "", Reason("shown"), served, (), reading, is_shown=True)
            pick.acquire()
        self.clock.now_s += took_s / 2 + 1
        pick.release() if endpoint else self.shadow.left(reading)

    def show_chats(self, minutes: float, *, by_turns: bool = True) -> None:
        """Chats of three turns: each turn goes to the next endpoint, or all to one."""
        until_s, names, chats = self.clock.now_s + 60 * minutes, sorted(self.pool.snapshot.ready), 0
        while self.clock.now_s < until_s:
            for turn, texts in enumerate(_turns(f"chat {chats} at {until_s}")):
                self.show(names[(chats + turn * by_turns) % len(names)], *texts)
            chats += 1


def _turns(name: str) -> Iterator[list[str]]:
    rng, texts = Random(name), list[str]()
    for turn in range(3):
        texts += [words(f"{name} said {turn}", 60)] * (turn > 0)
        texts += [words(f"{name} asked {turn}", rng.randint(100, 900))]
        yield [*texts]
