"""Gateways that share their picks, on one clock: each with a pool of its own."""

from collections.abc import Iterable

from extproc.router.routing.strategies.base import PeerCounts
from extproc.router.share.letters import Letter
from extproc.router.share.pool_share import Share
from tests.router.routing.fleet import Fleet


class Gateway(Fleet):
    """A fleet's gateway with its share; letters it wrote wait in `sent`."""

    def __init__(self, place: int, names: str, **options: object) -> None:
        super().__init__(names, seed=place, **options)
        self.share = Share(self.pool, 1_000 + place)

    @property
    def neighbours(self) -> PeerCounts:
        return self.share.peers.counts

    def hear(self, letters: Iterable[Letter]) -> None:
        for letter in letters:
            self.share.hear(letter, self.clock.now_s)


class Town:
    """Gateways on one clock, and a bus that brings everything at once, unless it is told otherwise."""

    def __init__(self, count: int, names: str = "abcd", **options: object) -> None:
        self.gateways = [Gateway(place, names, **options) for place in range(count)]

    def wait(self, seconds: float) -> None:
        for gateway in self.gateways:
            gateway.clock.now_s += seconds

    def post(self) -> None:
        """Everybody's news go to all the others."""
        for sender in self.gateways:
            letters = sender.share.letters(sender.clock.now_s)
            for gateway in self.gateways:
                if gateway is not sender:
                    gateway.hear(letters)

    def beat(self, rounds: int = 1, late_s: float = 0.0) -> None:
        """So many heartbeats of everybody, a second each."""
        for _ in range(rounds):
            self.wait(1.0 - late_s)
            letters = [(one, one.share.heartbeat(one.clock.now_s)) for one in self.gateways]
            self.wait(late_s)
            for sender, letter in letters:
                for gateway in self.gateways:
                    if gateway is not sender:
                        gateway.hear([letter])


def town(count: int, **options: object) -> Town:
    """Gateways that know how late each other's letters are: not at all."""
    found = Town(count, **options)  # type: ignore[arg-type]
    found.beat(3)
    return found
