"""The bus between simulated gateways: letters that come late, or not at all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

from extproc.router.routing.pool import Pool
from extproc.router.share.letters import Letter
from extproc.router.share.pool_share import HEARTBEAT_S, Share
from extproc.simulator.fleet.timeline import VirtualTimeline


class BusFault(StrEnum):
    """What is wrong with a bus."""

    NONE = "none"
    DEAD = "dead"  # nothing ever comes
    DIES = "dies"  # nothing comes from the middle of the measured time on
    AWAY = "away"  # for a minute in the middle of it
    SLOWS = "slows"  # letters come a second late, from the middle on
    HALVES = "halves"  # no letter passes between the halves of the gateways, from the middle on
    RESTART = "restart"  # nothing; but in the middle one gateway is started again


_AWAY_S: Final = 60.0
_SLOW_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sharing:
    """How letters travel: each comes `delay_s` late, a share of `loss` of them never.

    `middle_s` is when a fault begins that begins later.
    """

    delay_s: float = 0.0
    loss: float = 0.0
    fault: BusFault = BusFault.NONE
    middle_s: float = 0.0


class Bus:
    """Carries what each pool's share says to all the others."""

    def __init__(
        self,
        sharing: Sharing,
        pools: Sequence[Pool],
        timeline: VirtualTimeline,
        rng: Random,
        restart: Callable[[int], None],
    ) -> None:
        self._sharing = sharing
        self._timeline = timeline
        self._rng = rng
        self._pools, self._restart_gateway = pools, restart
        self._shares = [Share(pool, rng.getrandbits(64)) for pool in pools]
        self._planned = 0  # of what the timeline has planned
        # Services start, and beat, at moments of their own.
        for place in range(len(pools)):
            self._plan_beat(rng.random() * HEARTBEAT_S, place)
        if sharing.fault is BusFault.RESTART:
            timeline.at(sharing.middle_s, self._restart, 0)

    def post(self, gateway: int) -> None:
        """Sends what this gateway has to say."""
        for letter in self._shares[gateway].letters(self._timeline.now):
            self._send(gateway, letter)

    def _restart(self, gateway: int) -> None:
        """It says farewell, and comes back at once, under another name and with nothing in its head."""
        self._send(gateway, self._shares[gateway].farewell(self._timeline.now))
        self._restart_gateway(gateway)
        self._shares[gateway] = Share(self._pools[gateway], self._rng.getrandbits(64))

    def _beat(self, gateway: int) -> None:
        self._planned -= 1
        self._send(gateway, self._shares[gateway].heartbeat(self._timeline.now))
        # A run is over when nothing is planned any more; hearts would beat for ever.
        if len(self._timeline) > self._planned:
            self._plan_beat(HEARTBEAT_S, gateway)

    def _plan_beat(self, after_s: float, gateway: int) -> None:
        self._planned += 1
        self._timeline.at(self._timeline.now + after_s, self._beat, gateway)

    def _send(self, gateway: int, letter: Letter) -> None:
        to = [place for place in range(len(self._shares)) if self._carries(gateway, place)]
        is_slow = (
            self._sharing.fault is BusFault.SLOWS and self._timeline.now >= self._sharing.middle_s
        )
        if delay_s := _SLOW_S if is_slow else self._sharing.delay_s:
            self._planned += 1
            self._timeline.at(self._timeline.now + delay_s, self._arrive, letter, to)
        else:
            self._deliver(letter, to)

    def _arrive(self, letter: Letter, to: Sequence[int]) -> None:
        self._planned -= 1
        self._deliver(letter, to)

    def _deliver(self, letter: Letter, to: Sequence[int]) -> None:
        for place in to:
            self._shares[place].receive(letter, self._timeline.now)

    def _carries(self, sender: int, place: int) -> bool:
        sharing, since_s = self._sharing, self._timeline.now - self._sharing.middle_s
        if sender == place or (sharing.loss and self._rng.random() < sharing.loss):
            return False
        match sharing.fault:
            case BusFault.DEAD:
                return False
            case BusFault.DIES:
                return since_s < 0
            case BusFault.AWAY:
                return not 0 <= since_s < _AWAY_S
            case BusFault.HALVES:
                return since_s < 0 or (sender < len(self._shares) // 2) == (
                    place < len(self._shares) // 2
                )
        return True
