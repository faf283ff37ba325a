"""A sample and what is said of it: exact percentiles, never percentiles of percentiles."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Stats:
    """A summary in the unit of its sample. `std` divides by n, as vLLM's report does."""

    count: int
    mean: float
    std: float
    min: float
    p25: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    p999: float
    max: float

    @classmethod
    def of(cls, sample: Sequence[float] | Floats, *, scale: float = 1.0) -> Self | None:
        """Summarises `sample` times `scale`; `None` for an empty one."""
        values = np.asarray(sample, dtype=np.float64) * scale
        if not values.size:
            return None
        points = np.percentile(values, (0, 25, 50, 75, 90, 95, 99, 99.9, 100))
        return cls(values.size, float(values.mean()), float(values.std()), *map(float, points))
