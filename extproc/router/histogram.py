"""A histogram of durations that costs a request next to nothing: it is read when somebody scrapes. Pure."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """How many took how long: `counts` by bound, the last one without."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_s = 0.0

    def count(self, took_s: float) -> None:
        self.counts[bisect_left(self.bounds, took_s)] += 1
        self.sum_s += took_s
