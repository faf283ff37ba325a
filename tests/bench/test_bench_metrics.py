import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.bench.measure import metrics
from extproc.bench.measure.groups import Groups
from extproc.bench.measure.stats import FEWEST, Stats
from extproc.bench.record import INTERRUPTED, Record, Window
from extproc.bench.report import report
from extproc.bench.report.headline import summary_text
from extproc.bench.spec.tree import Slo
from tests.bench.synthetic import failed, record, result, spec, steady
from tests.tables import table


def late(index: int = 0) -> Record:
    """Asked for at 1 s, held by the cap until 3 s, taken up at 3.25 s, written at 3.5 s."""
    begun = {"admitted_s": 3.0, "started_s": 3.25, "sent_s": 3.5}
    return record(index, 1.0, **begun, first_token_s=4.0, end_s=6.0, chunk_s=[4.0, 4.5, 6.0])


def test_measure_follows_its_definition() -> None:
    expected = {
        "ttft": 3.0,
        "ttft_sent": 0.5,
        "e2e": 5.0,
        "e2e_sent": 2.5,
        "tpot": 0.2,
        "lag": 0.25,
    }
    expected |= {"ntpot": 5.0 / 11, "time_per_token": 2.5 / 11, "held": 2.0}

    assert {name: metrics.MEASURES[name](late()) for name in expected} == pytest.approx(expected)


@table(
    ("name", "changes"),
    [
        ("ttft", {"first_token_s": None}),
        ("ttft_sent", {"sent_s": None}),
        ("e2e", {"end_s": None}),
        ("tpot", {"output_tokens": 1}),
        ("tpot", {"chunk_s": [4.0]}),
        *((name, {"output_tokens": 0}) for name in ("ntpot", "time_per_token")),
        ("lag", {"started_s": None}),
    ],
)
def test_figure_that_a_request_lacks_is_absent_and_not_zero(
    name: str, changes: dict[str, object]
) -> None:
    assert metrics.MEASURES[name](record(0, 1.0, **changes)) is None


def interpolate(values: Sequence[float], share: float) -> float:
    """The percentile by its definition: linear between the two neighbours in order."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_stats_are_exact_for_any_sample(values: list[float]) -> None:
    stats = Stats.of(values, scale=1000)

    assert stats is not None
    shares = {"min": 0, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99}
    shares |= {"p999": 0.999, "max": 1}
    for name, share in shares.items():
        is_known = len(values) >= FEWEST or name not in {"p99", "p999"}
        found = pytest.approx(1000 * interpolate(values, share)) if is_known else None
        assert getattr(stats, name) == found, name
    mean = 1000 * math.fsum(values) / len(values)
    assert len(values) == stats.count
    assert stats.mean == pytest.approx(mean)
    assert stats.std**2 == pytest.approx(
        math.fsum((1000 * v - mean) ** 2 for v in values) / len(values)
    )
    assert Stats.of([]) is None


def test_counts_keep_every_request_and_name_each_failure() -> None:
    unfinished = record(3, 3.0, end_s=None, sent_s=None)

    counts = metrics.counts(
        [record(0, 0.0), failed(1, 1.0), failed(2, 2.0, "status 500"), unfinished]
    )

    assert metrics.Counts(4, 3, 1, 1, {"status 500": 1, "timeout": 1}) == counts
    assert counts.failed == 2


def test_latencies_and_gaps_cover_completed_requests_only() -> None:
    summary = metrics.latencies([record(0, 0.0), failed(1, 1.0)])
    gaps = metrics.chunk_gaps([late(), record(1, 0.0, chunk_s=[1.0, 1.25]), failed(2, 0.0)])

    assert (summary["ttft"].count, summary["itl"].count) == (1, 10)
    assert summary["e2e"].p50 == pytest.approx(1500)
    assert metrics.latencies([failed(1, 1.0)]) == {}
    assert gaps.tolist() == [0.5, 1.5, 0.25]


def test_throughput_of_the_whole_run_is_totals_per_duration() -> None:
    run = steady(100)
    whole = metrics.throughput(run.records, metrics.whole_run(run))
    figures = (whole.requests_rps, whole.output_tps, whole.total_tps, whole.in_flight)

    assert figures == pytest.approx([each / 11.4 for each in (100, 1100, 1100 + 10_000, 100 * 1.5)])


def test_throughput_of_the_steady_window_excludes_ramp_and_stragglers() -> None:
    records = steady(100).records
    inside = metrics.measure(records, Window(3.0, 9.0), Slo())
    flow = inside.throughput
    only = metrics.throughput(
        [record(0, 0.0, chunk_s=[0.5, 1.5], output_tokens=10)], Window(1.0, 2.0)
    )

    assert (flow.started_rps, flow.requests_rps, flow.output_tps) == pytest.approx(
        (10, 10, 110), rel=0.03
    )
    assert flow.in_flight == pytest.approx(15, rel=0.01)
    e2e_s = inside.latency_ms["e2e_sent"].mean / 1000
    assert flow.in_flight == pytest.approx(flow.started_rps * e2e_s, rel=0.03)  # Little's law
    assert (only.output_tps, only.input_tps) == pytest.approx((5, 0))


@table(
    ("slo", "good"),
    [
        (Slo(ttft_ms=500.1), 3),
        (Slo(ttft_ms=499), 0),
        (Slo(tpot_ms=100.1), 3),
        (Slo(itl_ms=99), 0),
        (Slo(e2e_ms=1500.1, ttft_ms=600), 3),
        (Slo(e2e_ms=1000), 0),
    ],
)
def test_goodput_counts_failures_in_its_denominator(slo: Slo, good: int) -> None:
    records = [record(index, index) for index in range(3)] + [failed(3, 3.0)]

    goodput = metrics.goodput(records, slo, span_s=10.0)

    assert metrics.Goodput(good, good / 4, good / 10) == goodput


def test_goodput_judges_from_the_intended_start_and_a_single_token_breaks_no_tpot_limit() -> None:
    assert not metrics.is_good(late(), Slo(ttft_ms=1000))
    assert metrics.is_good(late(), Slo(ttft_ms=3000))
    assert metrics.is_good(record(0, 0.0, output_tokens=1, chunk_s=[0.5]), Slo(tpot_ms=1, itl_ms=1))
    assert metrics.goodput([record(0, 0.0)], Slo(), 1.0) is None


def test_hit_rate_weighs_by_tokens_and_totals_show_how_far_the_estimate_is_off() -> None:
    told = ((300, 300), (100, 0), (900, None))
    records = [
        record(i, 0.0, input_tokens=asked, cached_tokens=hit) for i, (asked, hit) in enumerate(told)
    ]
    totals = metrics.tokens([record(0, 0.0), record(1, 1.0)])

    assert metrics.hit_rate(records) == pytest.approx(0.75)
    assert metrics.hit_rate(records[2:]) is None  # without cached tokens
    assert (totals.input, totals.output, totals.sources) == (200, 22, {"server": 2})
    assert totals.estimate_error == pytest.approx(10 / 111)


def test_whole_run_holds_the_last_request_and_an_empty_run_no_latency() -> None:
    run, empty = result([failed(0, 10.0)], duration_s=10.0), result([], duration_s=0.0)
    nothing = metrics.measure(empty.records, metrics.whole_run(empty), Slo(ttft_ms=1))

    assert metrics.measure(run.records, metrics.whole_run(run), Slo()).counts.offered == 1
    assert (nothing.throughput.total_tps, nothing.goodput, nothing.latency_ms) == (0, None, {})


def test_conversations_are_told_as_k6_tells_iterations() -> None:
    """Of seven: one is answered, three are cut off (one in its wait), one fails, one never begins, one is not due."""
    cut = record(3, 0.0, failure=INTERRUPTED, end_s=9.0)
    begun = [record(0, 0.0), record(1, 0.0, is_last=True), record(2, 0.0), cut, record(4, 0.0)]
    waiting = record(7, 0.0, failure=INTERRUPTED, started_s=None)
    unsent = record(10, 0.0, failure="not sent", started_s=None, end_s=None)
    run = result(
        [*begun, record(6, 0.0), waiting, failed(8, 0.0), unsent], of=spec(total_conversations=7)
    )
    said = report.build(run)

    assert str(said.conversations) == "1 complete, 3 interrupted, 1 failed, 2 dropped"
    assert f"conversations, whole run......: {said.conversations}\n" in summary_text(said)
    assert "tokens, whole run.............: 500 in, 55 out\n" in summary_text(said)
    assert report.build(result([record(0, 0.0)], of=spec())).conversations is None


def test_groups_tell_turns_endpoints_and_hit_buckets_apart() -> None:
    cached = [record(index, 0.0, cached_tokens=tokens) for index, tokens in enumerate((0, 20, 100))]
    groups = Groups.of([*cached, record(3, 0.0, cached_tokens=None, endpoint=None), failed(4, 0.0)])

    turns = [(row.label, row.requests, row.failed) for row in groups.turns]
    assert turns == [("turn 1", 3, 1), ("turn 2", 2, 0)]
    assert [row.label for row in groups.endpoints] == ["10.0.0.0:8000", "10.0.0.1:8000", "unknown"]
    hits = {row.label: row.requests for row in groups.hits}
    assert hits == {"0 %": 1, "under 25 %": 1, "75-100 %": 1, "unknown": 2}
    assert math.isclose(groups.turns[0].hit_rate or 0, 0.5)


def build_metrics(index: int, intended_s: float, kind: str) -> Record:
    if kind in ("timeout", "not sent"):
        return failed(index, intended_s, kind)
    changes = {"open": {"end_s": None}, "untold": {"cached_tokens": None, "endpoint": None}}
    return record(index, intended_s, **changes.get(kind, {}))


KINDS = st.sampled_from(["good", "timeout", "not sent", "open", "untold"])
RECORDS = st.lists(st.tuples(st.integers(0, 90), KINDS), max_size=40).map(
    lambda pairs: [build_metrics(index, at, kind) for index, (at, kind) in enumerate(pairs)]
)


@given(RECORDS, st.integers(1, 99))
def test_two_windows_hold_together_what_one_holds(records: list[Record], cut: int) -> None:
    # Nothing happens at such an odd time, so that nothing is in both.
    middle = cut + 0.0123
    parts = [
        metrics.throughput(records, window)
        for window in (Window(0.0, middle), Window(middle, 100.0))
    ]
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
