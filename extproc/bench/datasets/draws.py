"""Drawing lengths and times from the distributions of a spec file."""

import math

import numpy as np
import numpy.typing as npt

from extproc.bench.spec.traffic import Distribution

Draws = npt.NDArray[np.float64]


def draw(distribution: Distribution, count: int, rng: np.random.Generator) -> Draws:
    """Returns `count` values, clipped to `min` and `max`."""
    values = _draw_unclipped(distribution, count, rng)
    return np.clip(values, distribution.min, distribution.max)


def draw_tokens(distribution: Distribution, count: int, rng: np.random.Generator) -> list[int]:
    """Returns `count` whole numbers of tokens, each at least one."""
    return [max(1, round(value)) for value in draw(distribution, count, rng).tolist()]


def _draw_unclipped(distribution: Distribution, count: int, rng: np.random.Generator) -> Draws:
    mean = distribution.mean or 0.0
    match distribution.kind:
        case "fixed":
            return np.full(count, distribution.value)
        case "uniform":
            return rng.uniform(distribution.min, distribution.max, count)
        case "normal":
            return rng.normal(mean, distribution.std, count)
        case "lognormal":
            # The mean of a lognormal is exp(mu + sigma^2 / 2).
            return rng.lognormal(math.log(mean) - distribution.sigma**2 / 2, distribution.sigma, count)
        case "exponential":
            return rng.exponential(mean, count)
        case "choice":
            return rng.choice(np.asarray(distribution.values), count)
