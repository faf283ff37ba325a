"""Makes pictures of the service: of what it counts anyway, and what the tape has of the last minute.

Pure: time comes in.
"""

from collections import Counter, deque
from collections.abc import Mapping
from math import floor
from typing import Final, Protocol

from msgspec import Struct

from extproc import __version__
from extproc.feedback.desk import Desk
from extproc.routing.pool import Pool
from extproc.service.configuration import Configuration
from extproc.service.keeper import PoolKeeper
from extproc.service.live.picture import (
    ConfigurationPicture,
    DecisionRow,
    EndpointRow,
    Picture,
    PoolPicture,
    RefusalPicture,
)
from extproc.service.live.tape import Tape
from extproc.service.pools import Pools

# What is told of "now": long enough to count something at one request a second.
WINDOW_S: Final = 60


class Scene(Protocol):
    """What there is to see of the running service."""

    @property
    def pools(self) -> Pools: ...

    @property
    def streams_open(self) -> int: ...

    @property
    def configuration(self) -> Configuration: ...

    def faults(self) -> list[str]:
        """Why the service is not ready; empty if it is."""
        ...

    def remarks(self) -> list[str]:
        """What is wrong with single pools while the service is ready."""
        ...


Pair = tuple[float, float]
_NOTHING: Final = (0.0, 0.0)


class Counts(Struct, frozen=True):
    """What was counted of a pool's endpoints up to one moment, by name.

    Pairs: answers and their seconds to the first byte; bytes sent and foreseen in the cache; tokens looked
    for and found there.
    """

    picks: Mapping[str, int]
    first_bytes: Mapping[str, Pair]
    sent: Mapping[str, Pair]
    found: Mapping[str, Pair]


_NO_COUNTS: Final = Counts({}, {}, {}, {})


class Painter:
    """Draws the service again and again, and remembers the counts of the last minute."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._before: deque[tuple[float, dict[str, Counts]]] = deque()
        self._number = 0

    def draw(self, scene: Scene, now_s: float) -> Picture:
        """O(endpoints): some microseconds each."""
        desks = {desk.pool.name: desk for desk in scene.pools.desks}
        counts = {name: self._count(desk) for name, desk in desks.items()}
        then_s, then = self._remember(now_s, counts)
        self._number += 1
        faults = scene.faults()
        pools = [
            _draw_pool(keeper, desks[name], counts[name], then.get(name, _NO_COUNTS))
            for keeper in scene.pools
            for name in [keeper.pool.name]
        ]
        return Picture(
            number=self._number,
            version=__version__,
            is_ready=not faults,
            faults=faults,
            remarks=scene.remarks(),
            configuration=_draw_configuration(scene.configuration, now_s),
            streams=scene.streams_open,
            window_s=round(now_s - then_s, 3),
            reasons={pool: dict(reasons) for pool, reasons in self._tape.reasons.items()},
            pools=pools,
            decided=self._tape.total,
            decisions=self._decisions(now_s),
        )

    def _count(self, desk: Desk) -> Counts:
        found = {name: (vitals.queried_tokens, vitals.hit_tokens) for name, vitals in desk.vitals.items()}
        picks = dict(self._tape.picks.get(desk.pool.name, {}))
        return Counts(
            picks, dict(desk.tally.first_byte_sums), desk.pool.strategy.foreseen_by_endpoint(), found
        )

    def _remember(self, now_s: float, counts: dict[str, Counts]) -> tuple[float, dict[str, Counts]]:
        """Returns the oldest counts of the window, and when they were taken."""
        before = self._before
        before.append((now_s, counts))
        while before[0][0] < now_s - WINDOW_S:
            before.popleft()
        return before[0]

    def _decisions(self, now_s: float) -> list[DecisionRow]:
        """The last ones, the newest first."""
        return [
            DecisionRow(
                one.number, round(now_s - one.at_s, 2), one.pool, one.reason, one.endpoint, _hex(one.key)
            )
            for one in reversed(self._tape.last)
        ]


def _draw_configuration(configuration: Configuration, now_s: float) -> ConfigurationPicture:
    told = configuration.refusal
    refusal = None if told is None else RefusalPicture(round(now_s - told.at_s, 1), told.why)
    age_s = round(now_s - configuration.since_s, 1)
    return ConfigurationPicture(configuration.where, configuration.number, age_s, refusal)


def _draw_pool(keeper: PoolKeeper, desk: Desk, now: Counts, then: Counts) -> PoolPicture:
    pool = keeper.pool
    total = sum(now.picks.values()) - sum(then.picks.values())
    states = list(pool.states())
    in_flight = pool.book.counts()
    loads = [in_flight[name] for name in pool.snapshot.names]
    rows = [
        EndpointRow(
            endpoint.name,
            endpoint.address,
            state,
            in_flight.get(endpoint.name, 0),
            _ratio(now.picks.get(endpoint.name, 0) - then.picks.get(endpoint.name, 0), total),
            round(desk.cooling.cooled_for_s(endpoint.name), 1) if state == "cooling" else None,
            _mean(now.first_bytes, then.first_bytes, endpoint.name),
            _mean(now.sent, then.sent, endpoint.name),
            _mean(now.found, then.found, endpoint.name),
            endpoint.zone,
        )
        for endpoint, state in states
    ]
    return PoolPicture(
        name=pool.name,
        strategy=pool.strategy.name,
        age_s=None if keeper.age_s is None else round(keeper.age_s, 1),
        fault=None if keeper.fault is None else str(keeper.fault),
        in_flight=pool.book.total,
        max_in_flight=pool.max_in_flight,
        bound=_bound(pool),
        balance=_ratio(max(loads, default=0) * len(loads), sum(loads)),
        picks=total,
        states=Counter(state for _, state in states),
        first_byte_s=_mean_of_all(now.first_bytes, then.first_bytes),
        foreseen=_mean_of_all(now.sent, then.sent),
        found=_mean_of_all(now.found, then.found),
        endpoints=rows,
    )


def _bound(pool: Pool) -> int | None:
    candidates = pool.candidates()
    bound = pool.strategy.bound(candidates) if candidates else None
    return None if bound is None else floor(bound) + 1


def _mean(now: Mapping[str, Pair], then: Mapping[str, Pair], name: str) -> float | None:
    pair = now.get(name)
    if pair is None:
        return None
    whole, part = _added(pair, then.get(name, _NOTHING)) or pair
    return _ratio(part, whole)


def _mean_of_all(now: Mapping[str, Pair], then: Mapping[str, Pair]) -> float | None:
    added = [_added(pair, then.get(name, _NOTHING)) for name, pair in now.items()]
    pairs = [pair for pair in added if pair is not None] or now.values()
    return _ratio(sum(part for _, part in pairs), sum(whole for whole, _ in pairs))


def _added(now: Pair, then: Pair) -> Pair | None:
    """What was counted in between; `None` where that is nothing, or the counts began again."""
    whole, part = now[0] - then[0], now[1] - then[1]
    return (whole, part) if whole > 0 and part >= 0 else None


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole > 0 else None


def _hex(key: int | None) -> str | None:
    return None if key is None else f"{key:016x}"
