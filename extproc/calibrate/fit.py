"""From times to an engine's costs: two least-squares fits, and the texts that are made of them. Pure."""

# What is fitted, in the simulator's words (extproc/simulator/engine/profiles.py):
#
# - **A step that only decodes**: base + kv x tokens in the cache of all that decode. Measured between
#   the tokens of answers, so the way through the server is not in it.
# - **A first token**: way + way' x prompt tokens + a step. The way is what the engine's scheduler does
#   not see: HTTP, template, tokenizer, and back. The step is a decode's, plus prefill x new tokens,
#   plus attention x pairs; but it takes at least `floor`: the kernels of a prefill have to be
#   launched one by one, and a GPU computes some hundred tokens in that time (H200, Llama 8B without
#   compilation: 20 ms). Sizes up to some limit are on the floor; every limit is tried, and the one
#   with the smallest error is taken.
#
# Errors count as shares of a time: a tenth of 30 ms matters as much as a tenth of a second. A cost
# below nothing is none: the smallest is dropped and the rest fitted again.

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

import numpy as np
from numpy.typing import NDArray

# A prompt of so many tokens stands for all in `engine`, which has no term for attention.
USUAL_PROMPT: Final = 4_000
_Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FirstToken:
    """A prompt of `new` tokens behind `cached` ones, alone in the engine: `ms` to its first token."""

    new: int
    cached: int
    ms: float

    @property
    def total(self) -> int:
        return self.new + self.cached

    @property
    def pairs(self) -> float:
        """Of a new token with each token before it."""
        return self.new * (self.cached + self.new / 2)


@dataclass(frozen=True, slots=True)
class TokenGap:
    """`ms` between two tokens of an answer while requests of `context` tokens in all decode."""

    context: int
    ms: float


@dataclass(frozen=True, slots=True)
class FittedCosts:
    """The costs of a simulator's profile, by their names there; errors are shares of the measured times."""

    base_ms: float
    kv_us_per_ctx_token: float
    prefill_ms_per_token: float
    attention_ns: float
    floor_ms: float
    way_ms: float
    way_us_per_token: float
    error_median: float
    error_worst: float

    @property
    def usual_prefill_ms(self) -> float:
        """What a token of a prompt of `USUAL_PROMPT` tokens costs, its attention included."""
        return self.prefill_ms_per_token + self.attention_ns * USUAL_PROMPT / 2 / 1e6


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine says of its size, by the names of vLLM's options; what it does not say is vLLM's default."""

    kv_tokens: int
    block_size: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int


def fit(
    firsts: Sequence[FirstToken], gaps: Sequence[TokenGap], max_num_batched_tokens: int
) -> FittedCosts:
    """Fits both models to the quickest of each size: what disturbs a measurement only adds to it.

    Raises `ValueError` with fewer than two gaps or five sizes.
    """
    quickest: dict[tuple[int, int], FirstToken] = {}
    for first in sorted(firsts, key=lambda one: -one.ms):
        quickest[first.new, first.cached] = first
    firsts = list(quickest.values())
    if len(gaps) < 2 or len(firsts) < 5:
        raise ValueError("too few measurements for a fit")
    decode = np.array([[1, gap.context / 1e3] for gap in gaps])
    gap_ms = np.array([gap.ms for gap in gaps])
    base, kv = solve_shares(decode, gap_ms)
    steps = [ceil(first.new / max_num_batched_tokens) for first in firsts]
    without = [
        first.ms - base * count - kv * first.total / 1e3
        for first, count in zip(firsts, steps, strict=True)
    ]
    sizes = sorted({first.new for first in firsts})
    tried = [_fit_first(firsts, without, base, limit) for limit in (0, *sizes[1:-3])]
    errors, costs = min(tried, key=lambda one: float(np.mean(one[0])))
    way, way_each, prefill, attention, floor = costs
    errors = np.concatenate([errors, np.abs(decode @ (base, kv) / gap_ms - 1)])
    return FittedCosts(
        base_ms=float(base),
        kv_us_per_ctx_token=float(kv),
        prefill_ms_per_token=prefill,
        attention_ns=attention,
        floor_ms=floor,
        way_ms=way,
        way_us_per_token=way_each,
        error_median=float(np.median(errors)),
        error_worst=float(np.max(errors)),
    )


def _fit_first(
    firsts: Sequence[FirstToken], without: Sequence[float], base: float, limit: int
) -> tuple[_Matrix, tuple[float, float, float, float, float]]:
    """Fits first tokens less a decode's step, with prompts of up to `limit` new tokens on the floor.

    Returns errors as shares, and: way ms, way us a token, prefill ms a token, attention ns, floor ms.
    """
    rows = [
        [1, first.total / 1e3, 0, 0, 1]
        if first.new <= limit
        else [1, first.total / 1e3, first.new, first.pairs / 1e6, 0]
        for first in firsts
    ]
    wanted = np.array(without)
    matrix = np.array(rows, float)
    found = solve_shares(matrix, wanted, np.array([first.ms for first in firsts]))
    errors = np.abs((matrix @ found - wanted) / [first.ms for first in firsts])
    way, way_each, prefill, attention, above = (float(cost) for cost in found)
    return errors, (way, way_each, prefill, attention, float(base + above) if above else 0.0)


def solve_shares(matrix: _Matrix, wanted: _Matrix, scale: _Matrix | None = None) -> _Matrix:
    """Least squares with no cost below nothing; errors are divided by `scale`, else by what is wanted."""
    weights = 1 / np.maximum(wanted if scale is None else scale, 0.1)
    used = list(np.flatnonzero(matrix.any(axis=0)))
    found = np.zeros(matrix.shape[1])
    while used:
        some = np.linalg.lstsq(matrix[:, used] * weights[:, None], wanted * weights, rcond=None)[0]
        if some.min() >= 0:
            found[used] = some
            break
        del used[int(some.argmin())]
    return found
