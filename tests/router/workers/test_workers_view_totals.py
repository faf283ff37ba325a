"""Metrics of several processes as those of one: what is counted never goes back, whoever comes and goes."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.samples import Exemplar

from extproc.router.gauges import RULES, Rule, rule_of
from extproc.router.service.exposition import _Families
from extproc.router.telemetry import Metrics
from extproc.router.workers.view.admin import parse
from extproc.router.workers.view.totals import Totals
from tests.router.service.test_service_metrics import families as first_scrape
from tests.router.workers.families import value, values

__all__ = ["first_scrape"]

START = "process_start_time_seconds"


def counter(**counts: float) -> Metric:
    family = CounterMetricFamily("extproc_picks", "Picks.", labels=["reason"])
    for reason, count in counts.items():
        family.add_metric([reason], count)
    return family


def histogram(*buckets: float, total: float = 0.0) -> Metric:
    names = ["0.1", "1.0", "+Inf"]
    return HistogramMetricFamily(
        "extproc_time", "A time.", buckets=list(zip(names, buckets, strict=True)), sum_value=total
    )


def gauge(name: str, number: float, **labels: str) -> Metric:
    family = GaugeMetricFamily(name, "A gauge.", labels=list(labels))
    family.add_metric(list(labels.values()), number)
    return family


def once(*told: Sequence[Metric]) -> dict[str, float]:
    workers = {f"worker-{number}": families for number, families in enumerate(told, 1)}
    return values(Totals().merge(workers))


def test_every_metric_of_the_service_that_is_no_sum_has_a_rule(first_scrape: list[Metric]) -> None:
    """And there is no rule for a metric that is not there."""
    needed = {family.name for family in first_scrape if family.type in {"gauge", "info", "unknown"}}
    copies = {name for name, rule in RULES.items() if rule is Rule.COPY}

    assert needed == RULES.keys() - copies
    assert copies <= {family.name for family in first_scrape if family.type == "counter"}


def test_counters_and_histograms_are_sums() -> None:
    first, second = [counter(home=3, cold=1), histogram(1, 2, 2, total=0.5)], [counter(home=4)]
    told = once(first, [*second, histogram(0, 1, 4, total=2)])

    assert told == {
        "extproc_picks_total{home}": 7,
        "extproc_picks_total{cold}": 1,
        "extproc_time_bucket{0.1}": 1,
        "extproc_time_bucket{1.0}": 3,
        "extproc_time_bucket{+Inf}": 6,
        "extproc_time_count": 6,
        "extproc_time_sum": 2.5,
    }


@pytest.mark.parametrize(
    ("name", "labels", "of_two", "merged"),
    [
        ("extproc_endpoint_in_flight", {"endpoint": "a"}, (3, 4), 7),
        ("extproc_streams_open", {}, (3, 4), 7),
        ("extproc_pool_age_seconds", {"pool": "a"}, (3, 4), 4),
        ("extproc_pool_endpoints", {"state": "ready"}, (3, 4), 3),
        ("extproc_pool_endpoints", {"state": "cooling"}, (1, 0), 1),
        ("extproc_share_peers", {"state": "prompt"}, (3, 0), 0),
        ("extproc_share_peers", {"state": "lost"}, (1, 0), 1),
        ("extproc_share_fresh", {"pool": "a"}, (1, 0), 0),
        ("extproc_config_refused", {}, (1, 0), 1),
        ("process_resident_memory_bytes", {}, (3, 4), 7),
        ("process_start_time_seconds", {}, (3, 4), 3),
        ("process_open_fds", {}, (3, 4), 4),
        ("process_max_fds", {}, (3, 4), 3),
    ],
)
def test_a_gauge_is_merged_by_its_rule(
    name: str, labels: dict[str, str], of_two: tuple[float, float], merged: float
) -> None:
    told = once(*([gauge(name, number, **labels)] for number in of_two))

    assert [*told.values()] == [merged]


def test_what_all_tell_alike_of_the_service_is_told_once() -> None:
    registries = [list(Metrics().registry.collect()) for _ in range(3)]

    assert [number for name, number in once(*registries).items() if name.startswith("extproc_info")] == [1]


def test_a_worker_that_is_killed_and_started_again_takes_nothing_back() -> None:
    """1. Two workers. 2. One is gone. 3. It is there again, and has counted less, or more, than before."""
    totals = Totals()
    totals.merge({"a": [counter(home=5), gauge(START, 1)], "b": [counter(home=2), gauge(START, 1)]})
    alone = totals.merge({"b": [counter(home=3), gauge(START, 1)]})
    less = totals.merge({"a": [counter(home=1), gauge(START, 2)], "b": [counter(home=3), gauge(START, 1)]})
    more = totals.merge({"a": [counter(home=9), gauge(START, 3)], "b": [counter(home=3), gauge(START, 1)]})

    assert [value(told, "extproc_picks_total{home}") for told in (alone, less, more)] == [8, 9, 18]


def test_a_worker_that_does_not_answer_keeps_its_counts_and_loses_its_gauges() -> None:
    totals = Totals()
    one = [counter(home=5), gauge("extproc_streams_open", 2)]
    totals.merge({"a": one, "b": one})
    silent = totals.merge({"a": one})
    again = totals.merge({"a": one, "b": [counter(home=6), gauge("extproc_streams_open", 1)]})

    assert values(silent) == {"extproc_picks_total{home}": 10, "extproc_streams_open": 2}
    assert values(again) == {"extproc_picks_total{home}": 11, "extproc_streams_open": 3}


def test_a_histogram_that_begins_again_is_kept_as_a_whole() -> None:
    """Its last bucket has more than before, which alone would not tell."""
    totals = Totals()
    totals.merge({"a": [histogram(5, 5, 5, total=1)]})
    told = totals.merge({"a": [histogram(0, 0, 7, total=9)]})

    assert [value(told, f"extproc_time_bucket{{{bound}}}") for bound in ("0.1", "1.0", "+Inf")] == [5, 5, 12]


def test_a_series_that_nobody_has_any_more_is_forgotten() -> None:
    """Of an endpoint that went: of all workers one after the other. Then it comes back."""
    totals = Totals()
    full, empty = [counter(x=5, y=1)], [counter(y=1)]
    totals.merge({"a": full, "b": full})
    half = totals.merge({"a": empty, "b": full})
    none = totals.merge({"a": empty, "b": empty})
    back = totals.merge({"a": [counter(x=1, y=1)], "b": empty})

    assert [values(told).get("extproc_picks_total{x}") for told in (half, none, back)] == [10, None, 1]
    assert not totals._gone


def test_a_copy_of_an_endpoints_own_counter_is_counted_once() -> None:
    """1. Two have read it. 2. Who is followed dies. 3. The endpoint begins again, and is read again."""

    def read(number: float) -> list[Metric]:
        family = CounterMetricFamily("extproc_measured_tokens", "Tokens.", labels=["endpoint"])
        family.add_metric(["x"], number)
        return [family]

    totals = Totals()
    rounds: list[dict[str, float]] = [
        {"a": 1000, "b": 990},
        {"a": 1010, "b": 1010},
        {"b": 1030},
        {"b": 5, "c": 1030},
        {"b": 20, "c": 20},
    ]
    told = [
        value(
            totals.merge({who: read(one) for who, one in reads.items()}), "extproc_measured_tokens_total{x}"
        )
        for reads in rounds
    ]

    assert told == [1000, 1010, 1030, 1035, 1050]


def test_an_exemplar_stays_with_its_series() -> None:
    def with_exemplar(trace: str) -> list[Metric]:
        family = CounterMetricFamily("extproc_picks", "Picks.")
        family.add_metric([], 1, exemplar=Exemplar({"trace_id": trace}, 1.0))
        return [family]

    for told in ((with_exemplar("a"), with_exemplar("b")), (with_exemplar("b"), with_exemplar("a"))):
        workers = dict(zip("xy", told, strict=True))
        [family] = Totals().merge(workers)

        assert family.samples[0].exemplar == Exemplar({"trace_id": "b"}, 1.0)


REASONS = ("home", "cold", "spill")
PARTS = st.lists(st.dictionaries(st.sampled_from(REASONS), st.integers(0, 1 << 40)), min_size=1, max_size=5)


@given(PARTS)
def test_many_count_as_one_that_has_it_all(parts: list[dict[str, int]]) -> None:
    """In any order."""
    whole = Counter[str]()
    for part in parts:
        whole.update(part)

    expected = {f"extproc_picks_total{{{reason}}}": float(count) for reason, count in whole.items()}
    assert once(*([counter(**part)] for part in parts)) == expected
    assert once(*([counter(**part)] for part in reversed(parts))) == expected


@given(st.lists(st.floats(0, 1e9), min_size=3, max_size=3), st.integers(1, 4))
def test_what_one_tells_is_told_as_it_is(bounds: list[float], rounds: int) -> None:
    metrics = [counter(home=bounds[0]), histogram(*sorted(bounds), total=bounds[1])]
    totals = Totals()
    for _ in range(rounds):
        told = totals.merge({"a": metrics})

    assert told == metrics


@dataclass
class Worker:
    """A process that counts."""

    start_s: float = 1.0
    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(REASONS, 0.0))


NAMES = st.sampled_from("abc")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("count"), NAMES, st.sampled_from(REASONS), st.floats(0, 1e6)),
        st.tuples(st.just("restart"), NAMES),
        st.tuples(st.just("scrape"), st.frozensets(NAMES)),
    ),
    max_size=40,
)


@given(STEPS)
def test_whatever_happens_to_workers_nothing_that_was_told_is_taken_back_or_told_twice(
    steps: Sequence[tuple[str, ...]],
) -> None:
    """What is told is what was seen of every process that ever was: no less, and not more."""
    totals, workers = Totals(), {name: Worker() for name in "abc"}
    seen: dict[tuple[str, float], dict[str, float]] = {}
    before: Mapping[str, float] = {}
    for what, *rest in steps:
        match what, rest:
            case "count", [name, reason, amount]:
                workers[name].counts[reason] += float(amount)
            case "restart", [name]:
                workers[name] = Worker(workers[name].start_s + 1)
            case _, [silent]:
                told = {name: workers[name] for name in "abc" if name not in silent}
                seen |= {(name, one.start_s): dict(one.counts) for name, one in told.items()}
                scrape = {
                    name: [counter(**one.counts), gauge(START, one.start_s)] for name, one in told.items()
                }
                now = values(totals.merge(scrape))
                if not told:
                    continue
                for reason in REASONS:
                    key = f"extproc_picks_total{{{reason}}}"
                    assert now[key] >= before.get(key, 0.0)
                    assert math.isclose(
                        now[key], math.fsum(one[reason] for one in seen.values()), rel_tol=1e-9
                    )
                before = now


@given(st.binary(max_size=200), st.integers(0, 2000), st.integers(0, 300))
def test_an_answer_of_any_bytes_is_read_or_it_is_none(noise: bytes, start: int, length: int) -> None:
    text = WHOLE[:start] + noise + WHOLE[start + length :]
    families = parse(text)

    if families is not None:
        Totals().merge({"a": families, "b": parse(WHOLE) or []})


def _whole() -> bytes:
    registry = CollectorRegistry()
    registry.register(
        _Families([counter(home=1), histogram(1, 2, 3, total=1), gauge("extproc_streams_open", 1)])
    )
    return bytes(openmetrics.generate_latest(registry))  # type: ignore[no-untyped-call]  # the library's


WHOLE = _whole()


def test_what_a_worker_writes_is_read_as_it_was() -> None:
    families = parse(WHOLE)

    assert families is not None
    assert values(families)["extproc_time_bucket{1.0}"] == 2
    assert rule_of("extproc_something_new", "gauge") is Rule.MOST
