import numpy as np
import pytest

from extproc.bench.measure.groups import cut_timeline
from tests.bench.synthetic import failed, record, steady


def test_slices_hold_the_rates_the_latencies_and_what_was_in_flight() -> None:
    run = steady(1200)
    at = cut_timeline(run.records, run.info.duration_s)

    assert at.at_s.size == 60
    assert np.median(at.asked_rps) == pytest.approx(10, rel=0.05)
    assert np.median(at.completed_rps) == pytest.approx(10, rel=0.05)
    assert np.median(at.in_flight) == 15
    assert at.ttft_p99_ms[5] == pytest.approx(500)


def test_rates_add_up_to_the_requests_and_a_slice_without_any_has_no_latency() -> None:
    due = [record(index, index / 7) for index in range(300)] + [failed(index, index) for index in range(5)]
    at, empty = cut_timeline(due, 45.0), cut_timeline([], 0.0)

    assert at.asked_rps.sum() * (at.at_s[1] - at.at_s[0]) == pytest.approx(305)
    assert np.isnan(cut_timeline([record(index, 0.0) for index in range(40)], 30.0).ttft_p50_ms[-1])
    assert (empty.at_s.size, empty.asked_rps.tolist()) == (1, [0.0])
