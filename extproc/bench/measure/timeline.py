"""A run cut into equal slices of time, for plots."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from extproc.bench.measure import measures
from extproc.bench.measure.metrics import sample
from extproc.bench.measure.stats import Floats
from extproc.bench.record import Record

_MOST_SLICES = 60
_REQUESTS_PER_SLICE = 20


@dataclass(frozen=True, slots=True)
class Timeline:
    """One value per slice; `at_s` is its middle. A slice without requests has `nan` latencies."""

    at_s: Floats
    asked_rps: Floats
    completed_rps: Floats
    failed_rps: Floats
    in_flight: Floats
    ttft_p50_ms: Floats
    ttft_p99_ms: Floats


def cut_timeline(records: Sequence[Record], duration_s: float) -> Timeline:
    """Cuts `[0, duration_s]`; latencies go by the intended start, `in_flight` by the middle."""
    # A slice needs some requests, or the plot shows their arrivals instead of the load.
    slices = min(_MOST_SLICES, 1 + len(records) // _REQUESTS_PER_SLICE)
    edges = np.linspace(0.0, max(duration_s, 1e-9), slices + 1)
    width_s = float(edges[1] - edges[0])
    middles = (edges[:-1] + edges[1:]) / 2
    latencies = [sample(part, measures.ttft) * 1000 for part in _by_slice(records, edges)]
    return Timeline(
        at_s=middles,
        asked_rps=_rate([record.intended_s for record in records], edges, width_s),
        completed_rps=_rate(
            [record.end_s for record in records if record.is_ok and record.end_s is not None], edges, width_s
        ),
        failed_rps=_rate([record.intended_s for record in records if record.failure], edges, width_s),
        in_flight=_in_flight(records, middles),
        ttft_p50_ms=np.array([np.percentile(part, 50) if part.size else np.nan for part in latencies]),
        ttft_p99_ms=np.array([np.percentile(part, 99) if part.size else np.nan for part in latencies]),
    )


def _by_slice(records: Sequence[Record], edges: Floats) -> list[list[Record]]:
    parts: list[list[Record]] = [[] for _ in edges[1:]]
    places = np.searchsorted(edges, [record.intended_s for record in records], side="right") - 1
    for record, place in zip(records, places, strict=True):
        parts[min(int(place), len(parts) - 1)].append(record)
    return parts


def _rate(times_s: Sequence[float], edges: Floats, width_s: float) -> Floats:
    return np.histogram(times_s, bins=edges)[0] / width_s


def _in_flight(records: Sequence[Record], at_s: Floats) -> Floats:
    sent = np.sort([record.sent_s for record in records if record.sent_s is not None])
    ended = np.sort(
        [record.end_s for record in records if record.sent_s is not None and record.end_s is not None]
    )
    started = np.searchsorted(sent, at_s, side="right")
    return (started - np.searchsorted(ended, at_s, side="right")).astype(np.float64)
