"""Arrivals at a mean rate of one: what makes a schedule exact, random or bursty."""

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.float64]


def draw_unit_arrivals(kind: str, burstiness: float, count: int, rng: np.random.Generator) -> Times:
    """Returns `count` ascending arrivals at a mean rate of one.

    `constant`: exactly one apart, the first at zero. `poisson`: exponential gaps. `gamma`: gaps with
    shape `burstiness` and mean one, so below one is burstier than Poisson (vLLM's definition).
    """
    if kind == "constant":
        return np.arange(count, dtype=np.float64)
    shape = 1.0 if kind == "poisson" else burstiness
    return np.cumsum(rng.gamma(shape, 1 / shape, count))
