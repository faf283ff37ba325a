"""The clock and the chance that strategies get where a test needs neither to change."""

import random

from extproc.router.routing.strategies.base import ClockAndRandom


def fixed_outside(seed: int = 0) -> ClockAndRandom:
    """A clock that stands at zero, and draws that are the same each time."""
    return ClockAndRandom(random.Random(seed), lambda: 0.0)
