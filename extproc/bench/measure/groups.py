"""Requests by what they have in common: the turn, the endpoint that answered, the share found cached."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from extproc.bench.measure import measures, metrics
from extproc.bench.measure.stats import Stats
from extproc.bench.record import Record

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
            endpoints=_rows(records, _endpoint),
            hits=_rows(records, _hit_bucket),
        )


def _endpoint(record: Record) -> tuple[int, str]:
    return (0, record.endpoint) if record.endpoint else (1, UNKNOWN)


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
        ttft_ms=Stats.of(metrics.sample(records, measures.ttft), scale=1000),
        e2e_ms=Stats.of(metrics.sample(records, measures.e2e), scale=1000),
    )
