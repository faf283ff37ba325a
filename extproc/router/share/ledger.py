"""What one peer has open, endpoint by endpoint, as its news tell: in any order, with gaps, or twice."""

# The rules:
#
# - A peer numbers its picks and ends together: 1, 2, 3. A heartbeat has the truth after its news up to some
#   number. So what is open is the newest heartbeat's truth, and the news of higher numbers on top of it,
#   each once; of lower ones it knows already.
# - Without losses that is the truth after the highest number that came, whatever the order. What was lost is
#   healed by the first heartbeat that comes after it.
# - Picks and ends name their endpoint, both of them, so that an end whose pick was lost, or is late, takes
#   one away all the same. Between heartbeats that may be one too many: nothing is shown below zero.
# - A piece of news from before the last heartbeat but one is not looked at at all. So numbers need to be kept
#   for two heartbeats only; and for no more than `_MOST`, since a peer may be mad.

from collections.abc import Mapping
from typing import Final

_MOST: Final = 65_536


class Ledger:
    __slots__ = ("_before", "_heard", "_open", "_through")

    def __init__(self) -> None:
        self._through = self._before = 0  # what the newest heartbeat counts in, and the one before it
        # By number, since `_before`: where a pick went, and of an end the endpoint's complement. Plain
        # numbers, since there are thousands, which would be the garbage collector's work.
        self._heard: dict[int, int] = {}
        self._open: dict[int, int] = {}  # below zero where ends came before their picks, or without

    def counts(self) -> dict[int, int]:
        return {endpoint: count for endpoint, count in self._open.items() if count > 0}

    def note(self, number: int, endpoint: int, step: int) -> int | None:
        """Takes a pick (1) or an end (-1); returns by how much the count changes, `None`: it is no news."""
        heard = self._heard
        if number <= self._before or number in heard or len(heard) >= _MOST:
            return None
        heard[number] = endpoint if step > 0 else ~endpoint
        return self._add(endpoint, step) if number > self._through else 0

    def stand(self, number: int, counts: Mapping[int, int]) -> None:
        """Takes a heartbeat: what was open after the news up to `number`."""
        if number < self._through:
            return
        if number > self._through:
            self._before, self._through = self._through, number
        self._open = dict(counts)
        self._heard = {place: heard for place, heard in self._heard.items() if place > self._before}
        for place, heard in self._heard.items():
            if place > number:
                self._add(*((heard, 1) if heard >= 0 else (~heard, -1)))

    def _add(self, endpoint: int, step: int) -> int:
        before = self._open.get(endpoint, 0)
        self._open[endpoint] = after = before + step
        return step if min(before, after) >= 0 else 0
