"""The Kolmogorov-Smirnov test, for samples that should have a known distribution."""

import numpy as np
import numpy.typing as npt


def ks_distance(uniform: npt.NDArray[np.float64]) -> float:
    """Returns how far a sample, mapped through its distribution's function, is from uniform."""
    ordered = np.sort(uniform)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max(np.max(steps[1:] - ordered), np.max(ordered - steps[:-1])))


def ks_limit(count: int) -> float:
    """Returns the distance that a true sample of that size exceeds once in a thousand."""
    return 1.95 / float(np.sqrt(count))


def exponential_cdf(gaps: npt.NDArray[np.float64], mean: float) -> npt.NDArray[np.float64]:
    cdf: npt.NDArray[np.float64] = 1 - np.exp(-gaps / mean)
    return cdf


def sampled_cdf(gaps: npt.NDArray[np.float64], reference: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Maps gaps through the distribution of a large reference sample."""
    return np.searchsorted(np.sort(reference), gaps) / len(reference)
