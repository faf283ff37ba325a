"""What an engine takes for its work, learnt from the times to the first token. Pure.

A request whose endpoint had nothing else to prefill waits for the engine's step, and for its own
prefill:

    first token = base + slope · bytes that were not cached

The line is Theil and Sen's: the median of the slopes between pairs of samples. A third of the
samples may be anything (another gateway's queue, an index that is wrong, a client that stopped
reading) and the line is still right. Three checks stand before a new line:

- Pairs must agree that more bytes take longer (Kendall's measure). Where the first byte does not
  depend on the prefill, as with response headers that are sent at once, half of the pairs say the
  opposite.
- A slope more than `_FAR` times the profile's, or less than that part of it, is rejected: it
  measured something else.
- Each new line counts a quarter, so half a thousand samples suffice for a new engine, and a bad
  minute is forgotten.
"""

from collections import deque
from math import exp, log
from random import Random
from statistics import median, quantiles
from typing import Final

from msgspec import Struct

# Samples in the window; new samples between two fits; pairs in a fit.
_WINDOW: Final = 256
_EACH: Final = 64
_PAIRS: Final = 512
# Of 512 pairs from 256 unrelated samples, 0.5 ± 0.03 rise.
_RISING: Final = 0.64
_FAR: Final = 8.0
_SHARE: Final = 0.25
# The rest of a step, and the request's own: a fifth of them wait for less.
_BASE_STEPS: Final = 1.2
# A pair closer together than this part of the middle half says little about a slope.
_APART: Final = 0.5


class LearntCosts(Struct, frozen=True):
    """Milliseconds for a byte that is not cached, and for a step that does little else."""

    ms_per_byte: float
    step_ms: float


class FittedLine(Struct, frozen=True):
    """Theil and Sen's slope; a fifth of the samples are below the base, where nobody waits for others.

    `rising` is the share of the pairs with a slope above 0.
    """

    slope: float
    base: float
    rising: float


def fit_line(samples: list[tuple[float, float]], rng: Random) -> FittedLine | None:
    """Returns the line through some of the pairs; `None` where the samples are all at one place."""
    low, _, high = quantiles((x for x, _ in samples), n=4)
    apart = _APART * (high - low)
    slopes = []
    for _ in range(_PAIRS):
        (x, y), (other_x, other_y) = rng.choice(samples), rng.choice(samples)
        if abs(other_x - x) > apart:
            slopes.append((other_y - y) / (other_x - x))
    if not slopes:
        return None
    slope = median(slopes)
    base = quantiles((y - slope * x for x, y in samples), n=5)[0]
    return FittedLine(slope, base, sum(each > 0 for each in slopes) / len(slopes))


class Learner:
    """The costs of a pool's engines as they turn out to be; those they begin with, until there are samples.

    `samples` counts all samples, `lines` the fitted lines that passed the checks.
    """

    def __init__(self, start: LearntCosts, rng: Random) -> None:
        self.costs = start
        self.samples = self.lines = 0
        self._start = start
        self._rng = rng
        self._recent: deque[tuple[float, float]] = deque(maxlen=_WINDOW)

    def add(self, missing_bytes: float, first_token_ms: float) -> bool:
        """Adds one sample; says whether the costs are others now."""
        self._recent.append((missing_bytes, first_token_ms))
        self.samples += 1
        if self.samples % _EACH or len(self._recent) < 2 * _EACH:
            return False
        line = fit_line(list(self._recent), self._rng)
        if (
            line is None
            or line.rising < _RISING
            or not 1 / _FAR <= line.slope / self._start.ms_per_byte <= _FAR
        ):
            return False
        self.lines += 1
        start, now = self._start, self.costs
        step_ms = min(max(line.base / _BASE_STEPS, start.step_ms / _FAR), start.step_ms * _FAR)
        self.costs = LearntCosts(
            _toward(now.ms_per_byte, line.slope), _toward(now.step_ms, step_ms)
        )
        return True

    def forget(self) -> None:
        """Begins anew with its samples: those to come are of another kind."""
        self._recent.clear()


def _toward(now: float, aim: float) -> float:
    return now * exp(_SHARE * log(aim / now))


class Slowdown:
    """How much slower than its pool one endpoint is, as a factor: 1 until much speaks against it.

    The median of measured over expected times, followed in small steps: whether a request took
    twice as long or twenty times is all the same.
    """

    __slots__ = ("_log", "samples")

    _STEP: Final = 0.02
    _MAX_LOG: Final = log(4)
    # Endpoints of one kind differ by less, measured so.
    _ALIKE: Final = log(1.4)

    def __init__(self) -> None:
        self._log = 0.0
        self.samples = 0

    @property
    def factor(self) -> float:
        return 1.0 if abs(self._log) < self._ALIKE else exp(self._log)

    def add(self, expected_ms: float, measured_ms: float) -> None:
        self.samples += 1
        step = self._STEP if measured_ms > expected_ms * exp(self._log) else -self._STEP
        self._log = min(max(self._log + step, -self._MAX_LOG), self._MAX_LOG)
