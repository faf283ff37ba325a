"""Who asked for what: finds the pick that an entry of an access log tells of. Pure.

A proxy tells of a request when it has ended, by a number that we gave with the pick and that it brings back
in metadata of ours. Not by `x-request-id`: a client may write that one, and two may write the same. An entry
without a number that is open or has just ended is not believed: anybody who reaches the port may write one.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from extproc.router.routing.pool import Pick

# What was told of a request is told within a second of its end, the longest that Envoy keeps a log back.
_KEPT_S: Final = 5.0
# A pick keeps its prompt's hashes, up to 100 kB for the longest, 3 kB for a chat of 8 kB.
_KEPT: Final = 1_024


class Tickets:
    """Picks by number: of open requests, and for a short while of ended ones.

    `first` is where the numbers begin: at random, so that those of two services hardly meet. An open
    request's pick costs nothing here, since its stream holds it, too.
    """

    def __init__(self, clock: Callable[[], float], first: int) -> None:
        self._clock = clock
        self._next = first
        self._open: dict[int, Pick] = {}
        self._ended: OrderedDict[int, tuple[Pick, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open) + len(self._ended)

    def give(self, pick: Pick) -> int:
        self._next = number = (self._next + 1) & 0xFFFF_FFFF_FFFF_FFFF or 1
        self._open[number] = pick
        return number

    def end(self, number: int) -> None:
        """Hears that the request has ended: what is told of it comes soon or not at all."""
        pick = self._open.pop(number, None)
        now_s = self._clock()
        if pick is not None:
            self._ended[number] = (pick, now_s)
        while self._ended:
            oldest, (_, ended_s) = next(iter(self._ended.items()))
            if len(self._ended) <= _KEPT and now_s - ended_s <= _KEPT_S:
                break
            del self._ended[oldest]

    def take(self, number: int) -> Pick | None:
        """Returns the pick, once; `None` for a number that is not ours, was taken, or is too old."""
        pick = self._open.pop(number, None)
        if pick is None:
            pick, _ = self._ended.pop(number, (None, 0.0))
        return pick
