"""Finds the pick of an access log's entry, by a number. Pure.

A proxy logs a request when it has ended, with the number that our reply put into its dynamic
metadata. `x-request-id` will not do: clients may set it, and two may set the same. An entry whose
number is neither open nor has just ended is ignored: anybody who reaches the port may write one.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from extproc.router.routing.pool import Pick

# An entry comes within a second of the request's end: Envoy delays its log no longer.
_ENDED_S: Final = 5.0
# A pick keeps its prompt's hashes, up to 100 kB for the longest, 3 kB for a chat of 8 kB.
_ENDED_PICKS: Final = 1_024


class Tickets:
    """Picks by number, of open requests, and of ended ones for a short while.

    Whoever knows a number may say what became of the request. So numbers follow from each other by a
    keyed hash: who has seen some guesses no other. `first` is drawn at random, so that two services
    hardly use the same. The pick of an open request costs no memory here, since its stream holds it,
    too.
    """

    def __init__(self, clock: Callable[[], float], first: int) -> None:
        self._clock = clock
        self._first, self._given = first, 0
        self._open: dict[int, Pick] = {}
        self._ended: OrderedDict[int, tuple[Pick, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open) + len(self._ended)

    def give(self, pick: Pick) -> int:
        self._given += 1
        # Python hashes bytes by SipHash, with a key that each process draws.
        number = hash(b"%d %d" % (self._first, self._given)) & 0xFFFF_FFFF_FFFF_FFFF or 1
        self._open[number] = pick
        return number

    def end(self, number: int) -> None:
        """Notes that the request has ended: its log entry comes soon or not at all."""
        pick = self._open.pop(number, None)
        now_s = self._clock()
        if pick is not None:
            self._ended[number] = (pick, now_s)
        while self._ended:
            oldest, (_, ended_s) = next(iter(self._ended.items()))
            if len(self._ended) <= _ENDED_PICKS and now_s - ended_s <= _ENDED_S:
                break
            del self._ended[oldest]

    def pop(self, number: int) -> Pick | None:
        """Returns the pick, once; `None` for a number that is not ours, was taken, or is too old."""
        pick = self._open.pop(number, None)
        if pick is None:
            pick, _ = self._ended.pop(number, (None, 0.0))
        return pick
