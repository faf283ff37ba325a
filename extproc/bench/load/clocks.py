"""How far another machine's clocks are from ours, from round trips. Pure.

As NTP does it: the fastest of several round trips bounds the error by half its length, whichever way
was the slow one.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """One question and its answer: when it left and came back by our clock, and what the other's clocks said.

    Seconds; `theirs_s` and our two are of monotonic clocks, whose zeros have nothing to do with each other.
    `skew_s` is how far the other's time of day was ahead of ours.
    """

    left_s: float
    theirs_s: float
    back_s: float
    skew_s: float

    @property
    def length_s(self) -> float:
        return self.back_s - self.left_s

    @property
    def offset_s(self) -> float:
        """What to add to our monotonic clock's reading to have the other's, were both ways equally long."""
        return self.theirs_s - (self.left_s + self.back_s) / 2


def find_fastest(trips: Iterable[RoundTrip]) -> RoundTrip:
    """Returns the trip to go by: its `offset_s` is off by half its length at most."""
    return min(trips, key=lambda trip: trip.length_s)
