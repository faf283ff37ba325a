"""Fitting a profile's three costs to the steps of a measured run, by least squares."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import orjson

from extproc.errors import SettingsError

_FIELDS: Final = ("context_tokens", "prefill_tokens", "step_ms")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One step: tokens in the KV cache of what ran, prompt tokens computed, and how long it took."""

    context_tokens: float
    prefill_tokens: float
    step_ms: float


@dataclass(frozen=True, slots=True)
class Fit:
    """The costs of `Profile.step_s`, and the root of the mean squared error they leave."""

    base_ms: float
    kv_us_per_ctx_token: float
    prefill_ms_per_token: float
    error_ms: float
    steps: int


def read_steps(path: Path) -> list[MeasuredStep]:
    """Reads `context_tokens`, `prefill_tokens` and `step_ms` from CSV with a heading, or JSON lines.

    Other fields are ignored. Raises `SettingsError` and names the line that cannot be read.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as fault:
        raise SettingsError(f"{path}: {fault}") from None
    is_json = path.suffix in {".jsonl", ".ndjson"}
    rows = map(orjson.loads, lines) if is_json else csv.DictReader(lines)
    steps: list[MeasuredStep] = []
    try:
        steps.extend(MeasuredStep(*(float(row[name]) for name in _FIELDS)) for row in rows)
    except (KeyError, TypeError, ValueError) as fault:
        raise SettingsError(f"{path}: step {len(steps) + 1}: {fault!r}") from None
    return steps


def fit(steps: Sequence[MeasuredStep]) -> Fit:
    """Returns the costs that leave the least squared error, none of them below zero.

    Raises `SettingsError` where the steps cannot tell the three apart.
    """
    terms = np.array([(1.0, step.context_tokens, step.prefill_tokens) for step in steps]).reshape(-1, 3)
    times = np.array([step.step_ms for step in steps])
    # Costs differ by five orders of magnitude: unit columns keep the rank honest.
    scale = np.maximum(np.linalg.norm(terms, axis=0), 1e-12)
    if np.linalg.matrix_rank(terms / scale) < 3:
        raise SettingsError("these steps cannot tell base, context and prefill apart: measure a mixed load")
    costs = _least_squares(terms / scale, times) / scale
    error_ms = float(np.sqrt(np.mean((times - terms @ costs) ** 2)))
    base_ms, context_ms, prefill_ms = costs.tolist()
    return Fit(base_ms, 1000 * context_ms, prefill_ms, error_ms, len(steps))


def _least_squares(terms: Floats, times: Floats) -> Floats:
    """A term whose cost would be below zero is left out, and the others fitted again."""
    kept = np.ones(terms.shape[1], dtype=bool)
    while True:
        costs = np.zeros(terms.shape[1])
        costs[kept] = np.linalg.lstsq(terms[:, kept], times, rcond=None)[0]
        if (costs >= 0).all():
            return costs
        kept &= costs >= 0
