"""Sums that must hold whatever happened to the requests."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.bench.measure import metrics
from extproc.bench.measure.groups import Groups
from extproc.bench.record import Record, Window
from extproc.bench.spec.tree import Slo
from tests.bench.synthetic import failed, record


def build(index: int, intended_s: float, kind: str) -> Record:
    if kind in ("timeout", "not sent"):
        return failed(index, intended_s, kind)
    changes = {"open": {"end_s": None}, "untold": {"cached_tokens": None, "endpoint": None}}
    return record(index, intended_s, **changes.get(kind, {}))


KINDS = st.sampled_from(["good", "timeout", "not sent", "open", "untold"])
RECORDS = st.lists(st.tuples(st.integers(0, 90), KINDS), max_size=40).map(
    lambda pairs: [build(index, at, kind) for index, (at, kind) in enumerate(pairs)]
)


@given(RECORDS, st.integers(1, 99))
def test_two_windows_hold_together_what_one_holds(records: list[Record], cut: int) -> None:
    # Nothing happens at such an odd time, so that nothing is in both.
    middle = cut + 0.0123
    parts = [metrics.throughput(records, window) for window in (Window(0.0, middle), Window(middle, 100.0))]
    whole = metrics.throughput(records, Window(0.0, 100.0))

    for name in ("started_rps", "requests_rps", "input_tps", "output_tps", "in_flight"):
        before, after = (getattr(part, name) for part in parts)
        assert before * middle + after * (100 - middle) == pytest.approx(getattr(whole, name) * 100)


@given(RECORDS, st.floats(1, 3000))
def test_every_request_is_counted_once_and_is_in_one_row_of_each_view(
    records: list[Record], ttft_ms: float
) -> None:
    counts, groups = metrics.counts(records), Groups.of(records)
    goodput = metrics.goodput(records, Slo(ttft_ms=ttft_ms), 100.0)

    assert counts.completed + counts.failed + counts.unfinished == counts.offered == len(records)
    for view in (groups.turns, groups.endpoints, groups.hits):
        assert sum(row.requests for row in view) == len(records)
        assert sum(row.failed for row in view) == counts.failed
    assert (goodput is None) == (not records)
    if goodput:
        assert goodput.good <= counts.completed
        assert goodput.share <= 1
