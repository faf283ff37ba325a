"""A mean over repeated runs and how sure it is: Student's t, as repeats are few."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over `count` values; `low` and `high` are `None` where one value tells no spread."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def mean_interval(values: Sequence[float], confidence: float) -> Interval | None:
    """The mean of `values` with its two-sided interval; `None` without values."""
    if not values:
        return None
    mean, count = float(np.mean(values)), len(values)
    if count == 1:
        return Interval(mean, None, None, 1)
    margin = student_quantile(confidence, count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count)
    return Interval(mean, mean - margin, mean + margin, count)


def student_quantile(confidence: float, freedom: int) -> float:
    """The t with P(|T| < t) = `confidence` at `freedom` degrees, by bisection, to nine digits."""
    low, high = 0.0, 1.0
    while student_within(high, freedom) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_within(middle, freedom) < confidence else (low, middle)
    return (low + high) / 2


def student_within(t: float, freedom: int) -> float:
    """P(|T| < t), the finite sums of Abramowitz & Stegun 26.7.3 (odd degrees) and 26.7.4 (even)."""
    angle = math.atan(t / math.sqrt(freedom))
    cos = math.cos(angle)
    is_odd = freedom % 2
    term = cos if is_odd else 1.0
    total = term if freedom > 1 else 0.0
    for power in range(2 + is_odd, freedom - 1, 2):
        term *= cos * cos * (power - 1) / power
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if is_odd else math.sin(angle) * total
