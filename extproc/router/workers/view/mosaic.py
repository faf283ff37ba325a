"""The pictures of several processes as one. Pure: pictures and times come in."""

# The rules:
#
# - Each process sends a picture a second while somebody looks, each whole. The last of each is what is shown;
#   one that is older than `SILENT_S` shows nothing any more.
# - What is counted since somebody looks, by reason and in decisions, never goes back: of a worker that has
#   gone, or began again, it is kept.
# - Decisions have numbers of their own here, in the order in which they were taken, as far as the pictures of
#   one second tell; what a worker left out of its pictures has numbers, too.
# - A mean of all is weighed by picks: who answered how many requests, a picture does not tell.

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from typing import Any, Final

from msgspec.structs import replace

from extproc import __version__
from extproc.router.service.live.picture import (
    ConfigurationPicture,
    DecisionRow,
    EndpointRow,
    Picture,
    PoolPicture,
)
from extproc.router.service.live.tape import KEPT
from extproc.router.workers.view.pools import alike, in_flight, most, worst

SILENT_S: Final = 3.0

_NOTHING: Final = Picture(
    number=0,
    version=__version__,
    is_ready=False,
    faults=("no worker answers",),
    remarks=(),
    configuration=ConfigurationPicture("", 1, 0.0, None),
    streams=0,
    window_s=0.0,
    reasons={},
    pools=(),
    decided=0,
    decisions=(),
)


class Mosaic:
    """Hears the workers' pictures and draws one of all. `now` counts seconds, and only forward."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, Picture]] = {}
        self._gone: Counter[tuple[str, str]] = Counter()
        self._new: list[tuple[float, DecisionRow]] = []
        self._decided = 0
        self._decisions: deque[tuple[float, DecisionRow]] = deque(maxlen=KEPT)
        self._number = 0

    def __repr__(self) -> str:
        return f"<Mosaic of {len(self._last)} workers>"

    def hear(self, worker: str, picture: Picture, now: float) -> None:
        _, before = self._last.get(worker, (0.0, _NOTHING))
        if picture.decided < before.decided or picture.number < before.number:
            self.lose(worker)
            before = _NOTHING
        self._last[worker] = (now, picture)
        self._decided += picture.decided - before.decided
        new = [row for row in picture.decisions if row.number > before.decided]
        self._new += [(now - row.age_s, row) for row in new]

    def lose(self, worker: str) -> None:
        """Forgets a worker, but for what was counted there."""
        if worker in self._last:
            self._gone += _flat(self._last.pop(worker)[1].reasons)

    def is_silent(self, worker: str, now: float) -> bool:
        """Whether nothing came from a worker for a while, or never."""
        return worker not in self._last or now - self._last[worker][0] > SILENT_S

    def draw(self, now: float, faults: Sequence[str] = (), remarks: Sequence[str] = ()) -> Picture:
        """Returns a picture of all; `faults` are why the service is not ready whatever the workers say."""
        self._number += 1
        self._note()
        heard = [picture for _, picture in self._last.values()]
        told = [one for worker, (_, one) in self._last.items() if not self.is_silent(worker, now)]
        told = told or [_NOTHING]
        is_ready = not faults and any(picture.is_ready for picture in told)
        reasons = self._gone + sum((_flat(picture.reasons) for picture in heard), Counter())
        return Picture(
            number=self._number,
            version=__version__,
            is_ready=is_ready,
            faults=[] if is_ready else _once([faults, *(picture.faults for picture in told)]),
            remarks=_once([*(lines for one in told for lines in (one.faults, one.remarks)), remarks]),
            configuration=_configuration(told),
            streams=sum(picture.streams for picture in told),
            window_s=max(picture.window_s for picture in told),
            reasons=_nested(reasons),
            pools=merge_pools([picture.pools for picture in told]),
            decided=self._decided,
            decisions=[replace(row, age_s=round(now - at_s, 2)) for at_s, row in reversed(self._decisions)],
        )

    def _note(self) -> None:
        """Gives numbers to the new decisions, the last ones there are."""
        self._new.sort(key=lambda one: one[0])
        first = self._decided - len(self._new) + 1
        for number, (at_s, row) in enumerate(self._new, first):
            self._decisions.append((at_s, replace(row, number=number)))
        self._new.clear()


def merge_pools(told: Sequence[Sequence[PoolPicture]]) -> list[PoolPicture]:
    """Returns the pools of all processes, in the order of the first that shows them."""
    return [_merge(same) for same in alike(told, lambda pool: pool.name)]


def _merge(pools: Sequence[PoolPicture]) -> PoolPicture:
    picks = sum(pool.picks for pool in pools)
    weighed = ([(row, (row.share or 0.0) * pool.picks) for row in pool.endpoints] for pool in pools)
    rows = [_merge_rows(same, picks) for same in alike(weighed, lambda one: one[0].name)]
    members = [row for row in rows if row.state != "draining"]
    loads = [row.in_flight for row in members]
    weights = [pool.picks for pool in pools]
    return replace(
        pools[0],
        age_s=most(pool.age_s for pool in pools),
        fault=next((pool.fault for pool in pools if pool.fault), None),
        in_flight=sum(loads),
        elsewhere=sum(row.elsewhere for row in members),
        bound=most(pool.bound for pool in pools),
        balance=round(max(loads) * len(loads) / sum(loads), 4) if sum(loads) else None,
        picks=picks,
        states=Counter(row.state for row in rows),
        first_byte_s=_mean(pools, weights, lambda pool: pool.first_byte_s),
        foreseen=_mean(pools, weights, lambda pool: pool.foreseen),
        found=_mean(pools, weights, lambda pool: pool.found),
        endpoints=rows,
    )


def _merge_rows(told: Sequence[tuple[EndpointRow, float]], picks: int) -> EndpointRow:
    rows, weights = [row for row, _ in told], [weight for _, weight in told]
    total, elsewhere = in_flight((row.in_flight, row.elsewhere) for row in rows)
    state = worst(row.state for row in rows)
    return replace(
        rows[0],
        state=state,
        in_flight=total,
        elsewhere=elsewhere,
        share=round(fsum(weights) / picks, 4) if picks else None,
        left_s=most(row.left_s for row in rows) if state == "cooling" else None,
        first_byte_s=_mean(rows, weights, lambda row: row.first_byte_s),
        foreseen=_mean(rows, weights, lambda row: row.foreseen),
        found=_mean(rows, weights, lambda row: row.found),
    )


def _mean(
    shown: Sequence[Any], weights: Sequence[float], figure: Callable[[Any], float | None]
) -> float | None:
    """Weighed, of those who tell; where none of them has a weight, all alike."""
    known = [
        (value, weight)
        for one, weight in zip(shown, weights, strict=True)
        for value in [figure(one)]
        if value is not None
    ]
    if not known:
        return None
    whole = fsum(weight for _, weight in known)
    if not whole:
        return round(fsum(value for value, _ in known) / len(known), 4)
    return round(fsum(value * weight for value, weight in known) / whole, 4)


def _configuration(told: Sequence[Picture]) -> ConfigurationPicture:
    """One that refused a change is told first."""
    shown = [picture.configuration for picture in told]
    return next((one for one in shown if one.refusal is not None), shown[0])


def _once(lines: Iterable[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(line for some in lines for line in some))


def _flat(reasons: Mapping[str, Mapping[str, int]]) -> Counter[tuple[str, str]]:
    return Counter({(pool, reason): many for pool, of in reasons.items() for reason, many in of.items()})


def _nested(reasons: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for (pool, reason), many in reasons.items():
        found.setdefault(pool, {})[reason] = many
    return found
