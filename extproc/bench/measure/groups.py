"""Requests by turn, endpoint and share found cached; and a run in slices of time, for plots."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from extproc.bench.measure import metrics
from extproc.bench.measure.metrics import sample
from extproc.bench.measure.stats import Floats, Stats
from extproc.bench.record import Record

_MOST_SLICES = 60
_REQUESTS_PER_SLICE = 20


@dataclass(frozen=True, slots=True)
class Timeline:
    """One value per slice; `at_s` is its middle. A slice without requests has `nan` latencies."""

    at_s: Floats
    asked_rps: Floats
    completed_rps: Floats
    in_flight: Floats
    ttft_p50_ms: Floats
    ttft_p99_ms: Floats


def cut_timeline(
    records: Sequence[Record], duration_s: float, offered_until_s: float = np.inf
) -> Timeline:
    """Cuts `[0, duration_s]`; latencies go by the intended start, `in_flight` by the middle.

    Nothing is asked for after `offered_until_s`: a slice that is mostly later has no such rate, and
    of another only the part before it counts.
    """
    # A slice needs some requests, or the plot shows their arrivals instead of the load.
    slices = min(_MOST_SLICES, 1 + len(records) // _REQUESTS_PER_SLICE)
    edges = np.linspace(0.0, max(duration_s, 1e-9), slices + 1)
    width_s = float(edges[1] - edges[0])
    middles = (edges[:-1] + edges[1:]) / 2
    offered_s = np.clip(offered_until_s - edges[:-1], 0.0, width_s)
    offered_s[offered_s < width_s / 2] = np.nan
    latencies = [sample(part, metrics.ttft) * 1000 for part in _by_slice(records, edges)]
    return Timeline(
        at_s=middles,
        asked_rps=_rate([record.intended_s for record in records], edges, offered_s),
        completed_rps=_rate(
            [record.end_s for record in records if record.is_ok and record.end_s is not None],
            edges,
            width_s,
        ),
        in_flight=_in_flight(records, middles),
        ttft_p50_ms=np.array(
            [np.percentile(part, 50) if part.size else np.nan for part in latencies]
        ),
        ttft_p99_ms=np.array(
            [np.percentile(part, 99) if part.size else np.nan for part in latencies]
        ),
    )


def _by_slice(records: Sequence[Record], edges: Floats) -> list[list[Record]]:
    parts: list[list[Record]] = [[] for _ in edges[1:]]
    places = np.searchsorted(edges, [record.intended_s for record in records], side="right") - 1
    for record, place in zip(records, places, strict=True):
        parts[min(int(place), len(parts) - 1)].append(record)
    return parts


def _rate(times_s: Sequence[float], edges: Floats, width_s: Floats | float) -> Floats:
    return np.asarray(np.histogram(times_s, bins=edges)[0] / width_s, dtype=np.float64)


def _in_flight(records: Sequence[Record], at_s: Floats) -> Floats:
    sent = np.sort([record.sent_s for record in records if record.sent_s is not None])
    ended = np.sort(
        [
            record.end_s
            for record in records
            if record.sent_s is not None and record.end_s is not None
        ]
    )
    started = np.searchsorted(sent, at_s, side="right")
    return (started - np.searchsorted(ended, at_s, side="right")).astype(np.float64)


UNKNOWN = "unknown"
_BUCKETS = ("0 %", "under 25 %", "25-50 %", "50-75 %", "75-100 %")


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one group; latencies in milliseconds from the intended start."""

    label: str
    requests: int
    failed: int
    input_tokens: int
    output_tokens: int
    hit_rate: float | None
    ttft_ms: Stats | None
    e2e_ms: Stats | None


@dataclass(frozen=True, slots=True)
class Groups:
    """The three views; the rows of each hold every request once."""

    turns: tuple[Row, ...]
    endpoints: tuple[Row, ...]
    hits: tuple[Row, ...]

    @classmethod
    def of(cls, records: Sequence[Record]) -> "Groups":
        return cls(
            turns=_rows(records, lambda record: (record.turn, f"turn {record.turn + 1}")),
            endpoints=_rows(
                records, lambda record: (not record.endpoint, record.endpoint or UNKNOWN)
            ),
            hits=_rows(records, _hit_bucket),
        )


def _hit_bucket(record: Record) -> tuple[int, str]:
    if record.cached_tokens is None or not record.input_tokens:
        return len(_BUCKETS), UNKNOWN
    if not record.cached_tokens:
        return 0, _BUCKETS[0]
    quarter = min(4, 1 + int(4 * record.cached_tokens / record.input_tokens))
    return quarter, _BUCKETS[quarter]


def _rows(records: Iterable[Record], key: Callable[[Record], tuple[int, str]]) -> tuple[Row, ...]:
    grouped: defaultdict[tuple[int, str], list[Record]] = defaultdict(list)
    for record in records:
        grouped[key(record)].append(record)
    return tuple(_row(label, members) for (_, label), members in sorted(grouped.items()))


def _row(label: str, records: Sequence[Record]) -> Row:
    totals = metrics.tokens(records)
    return Row(
        label=label,
        requests=len(records),
        failed=metrics.counts(records).failed,
        input_tokens=totals.input,
        output_tokens=totals.output,
        hit_rate=totals.hit_rate,
        ttft_ms=Stats.of(metrics.sample(records, metrics.ttft), scale=1000),
        e2e_ms=Stats.of(metrics.sample(records, metrics.e2e), scale=1000),
    )
