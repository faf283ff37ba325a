"""Users who come and go: which of a closed loop's users are there, and when. Pure."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from extproc.bench.spec.traffic import TrafficShape

Stay = tuple[float, float]


class UserArrivals:
    """The number of users over time, straight lines between points; user `i` is there while it is above `i`.

    After the last point it stays what it was.
    """

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        self._points = [*points, (math.inf, points[-1][1])]

    def list_stays(self, user: int) -> list[Stay]:
        """When a user is there: spans that don't touch, in order."""
        stays: list[Stay] = []
        for (start_s, low), (end_s, high) in pairwise(self._points):
            stay = _cut(user, (start_s, low), (end_s, high))
            if stay is None:
                continue
            if stays and stays[-1][1] == stay[0]:
                stay = stays.pop()[0], stay[1]
            stays.append(stay)
        return stays


def _cut(user: int, first: tuple[float, float], last: tuple[float, float]) -> Stay | None:
    """The part of a straight line that is above `user`."""
    (start_s, low), (end_s, high) = first, last
    if max(low, high) <= user or start_s == end_s:
        return None
    if min(low, high) > user or low == high:
        return start_s, end_s
    crossed_s = start_s + (end_s - start_s) * (user - low) / (high - low)
    return (crossed_s, end_s) if high > low else (start_s, crossed_s)


def build_crowd(traffic: TrafficShape) -> UserArrivals:
    """From the first number of users to that of each stage in turn; without stages, always the same."""
    users, at_s = float(traffic.vus or (0 if traffic.stages else traffic.concurrency or 0)), 0.0
    points = [(at_s, users)]
    for stage in traffic.stages:
        at_s += stage.duration
        points.append((at_s, float(stage.vus)))
    return UserArrivals(points)


class Visit:
    """One user's stays: when to begin, and whether to go on."""

    def __init__(self, stays: Sequence[Stay]) -> None:
        self._stays = stays
        self._starts = [start_s for start_s, _ in stays]

    def is_there(self, at_s: float) -> bool:
        place = bisect_right(self._starts, at_s) - 1
        return place >= 0 and at_s < self._stays[place][1]

    def next_s(self, at_s: float) -> float | None:
        """The first time from `at_s` on at which the user is there; `None` if there is none."""
        if self.is_there(at_s):
            return at_s
        return next((start_s for start_s in self._starts if start_s > at_s), None)
