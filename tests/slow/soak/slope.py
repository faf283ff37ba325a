"""How fast something grows: a straight line through samples, and how sure one can be of it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import mean
from typing import Final

# Samples that follow each other are alike; means over stretches hardly are.
_STRETCHES: Final = 12
_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth in an hour, and its standard error."""

    per_h: float
    error: float

    def __str__(self) -> str:
        return f"{self.per_h:+.1f} ± {2 * self.error:.1f}"

    def exceeds(self, limit: float) -> bool:
        """Whether it grows by more than `limit`, as good as surely: by two standard errors."""
        return self.per_h - 2 * self.error > limit


def find_slope(samples: Sequence[tuple[float, float]]) -> Slope:
    """Returns the slope of (seconds, value) by least squares over the means of twelve stretches of time."""
    points = [*_stretch(samples)]
    if len(points) < 3:
        return Slope(0.0, inf)
    middle_s, level = mean(at_s for at_s, _ in points), mean(value for _, value in points)
    spread = sum((at_s - middle_s) ** 2 for at_s, _ in points)
    slope = sum((at_s - middle_s) * (value - level) for at_s, value in points) / spread
    left = sum((value - level - slope * (at_s - middle_s)) ** 2 for at_s, value in points)
    return Slope(slope * _HOUR_S, sqrt(left / (len(points) - 2) / spread) * _HOUR_S)


def _stretch(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns the mean time and value of each stretch that has samples."""
    if not samples:
        return []
    first_s, last_s = samples[0][0], samples[-1][0]
    each_s = (last_s - first_s) / _STRETCHES or 1.0
    stretches: dict[int, list[tuple[float, float]]] = {}
    for at_s, value in samples:
        stretches.setdefault(min(_STRETCHES - 1, int((at_s - first_s) / each_s)), []).append(
            (at_s, value)
        )
    return [
        (mean(at_s for at_s, _ in one), mean(value for _, value in one))
        for one in stretches.values()
    ]
