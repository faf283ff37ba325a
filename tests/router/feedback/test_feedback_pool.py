"""Outcomes arrive at a pool: who is picked afterwards, what is counted, what is logged."""

import logging
import random
from collections import Counter
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from extproc.router.feedback.cooling import Cooling, Rules
from extproc.router.feedback.feedback_metrics import FeedbackCollector
from extproc.router.feedback.outcome import Outcome, Verdict
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.balanced import LeastLoad
from tests.clock import Clock
from tests.router.outside import fixed_outside

ENDPOINTS = [
    Endpoint(f"e{number}", f"10.0.0.{number}:80", adapters=frozenset({"sql"} if number < 3 else ()))
    for number in range(1, 5)
]
BAD = ENDPOINTS[0]


def build_feedback(clock: Clock | None = None) -> PoolFeedback:
    cooling = Cooling(Rules(), clock=clock or Clock(), rng=random.Random(3))
    pool = Pool("llama", LeastLoad(fixed_outside(1)), gate=cooling)
    pool.replace(ENDPOINTS)
    return PoolFeedback(pool, cooling)


def pick_any(pool: Pool, **fields: Any) -> Pick:
    return pool.pick(pool.strategy.read(None, {}, ""), **fields)


def reported_outcomes(
    endpoint: Endpoint, verdict: Verdict, status: int = 200, duration_s: float = 0.1
) -> Outcome:
    return Outcome(endpoint.address, verdict, status, duration_s, 0.05)


def cool(feedback: PoolFeedback, endpoint: Endpoint = BAD) -> None:
    for _ in range(3):
        feedback.observe(reported_outcomes(endpoint, Verdict.FAILED, 500, duration_s=0))


def test_a_request_that_only_cooling_endpoints_could_take_goes_to_one() -> None:
    feedback = build_feedback()
    cool(feedback)
    assert pick_any(feedback.pool, subset=[BAD.address]).endpoint is BAD
    assert pick_any(feedback.pool, adapter="sql").endpoint is ENDPOINTS[1]

    cool(feedback, ENDPOINTS[1])

    assert pick_any(feedback.pool, adapter="sql").endpoint in ENDPOINTS[:2]


def test_the_book_and_the_means_go_on_without_the_cooling() -> None:
    """A limit per endpoint counts those that may be picked."""
    feedback = build_feedback()
    feedback.pool.max_in_flight = 2
    cool(feedback)
    picks = [pick_any(feedback.pool) for _ in range(6)]

    assert Counter(each.endpoint.name for each in picks) == {"e2": 2, "e3": 2, "e4": 2}
    with pytest.raises(Exception, match="limit of 2"):
        pick_any(feedback.pool)


def test_outcomes_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "extproc")
    clock = Clock()
    feedback = build_feedback(clock)
    cool(feedback)
    clock.now_s += 5
    feedback.observe(reported_outcomes(BAD, Verdict.ANSWERED, 404))
    feedback.observe(Outcome(BAD.address, Verdict.FAILED))
    feedback.observe(Outcome("10.9.9.9:80", Verdict.FAILED))
    registry = CollectorRegistry()
    registry.register(FeedbackCollector(lambda: [feedback]))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"extproc_{name}", {"pool": "llama", **labels})

    answers = [
        value("answers_total", endpoint="e1", **{"class": name}) for name in ("5xx", "4xx", "none")
    ]
    assert (answers, value("endpoint_coolings_total", endpoint="e1")) == ([3, 1, 1], 1)
    failed, answered = ({"zone": "", "class": name} for name in ("5xx", "4xx"))
    assert [value("first_byte_seconds_count", **labels) for labels in (failed, answered)] == [3, 1]
    assert [value("first_byte_seconds_bucket", le=le, **failed) for le in ("0.05", "0.025")] == [
        3,
        0,
    ]
    assert value("first_byte_seconds_sum", **failed) == pytest.approx(0.15)
    feedback.observe(reported_outcomes(BAD, Verdict.ANSWERED, 200))
    assert value("endpoint_first_byte_seconds_sum", endpoint="e1") == pytest.approx(0.05)
    assert [value("endpoint_first_byte_seconds_count", endpoint=name) for name in ("e1", "e2")] == [
        1,
        0,
    ]
    assert feedback.describe_answers("e1") == {"first_byte_s": 0.05, "silent_s": 0.0}
    assert feedback.describe_answers("e2")["first_byte_s"] is None
    logged = [(record.levelname, record.getMessage()) for record in caplog.records]
    cooled_s = logged[0][1].split()[-2]
    assert logged == [
        ("WARNING", f"pool llama: e1 fails and is cooled down for {cooled_s} s"),
        ("INFO", "pool llama: e1 answers again"),
    ]
    assert 1.6 <= float(cooled_s) <= 2.4


def test_the_time_to_the_first_byte_is_counted_by_zone_and_class() -> None:
    feedback = build_feedback()
    feedback.pool.replace(
        [Endpoint(at, ENDPOINTS[n].address, zone=at) for n, at in enumerate("ab")]
    )
    for _ in range(3):
        feedback.observe(reported_outcomes(BAD, Verdict.ANSWERED))
    registry = CollectorRegistry()
    registry.register(FeedbackCollector(lambda: [feedback]))
    labels = [{"pool": "llama", "zone": zone, "class": "2xx"} for zone in "ab"]

    # A zone without an answer yet is shown, so that `increase()` sees the first one.
    counts = [
        registry.get_sample_value("extproc_first_byte_seconds_count", each) for each in labels
    ]
    assert counts == [3, 0]


def test_a_head_does_not_excuse_an_endpoint_that_cuts_its_answers() -> None:
    """The gateway sends response headers, too: each comes before the log says how its answer ended."""
    clock = Clock()
    feedback = build_feedback(clock)
    for _ in range(3):
        feedback.observe_response(reported_outcomes(BAD, Verdict.ANSWERED))
        feedback.observe(reported_outcomes(BAD, Verdict.BROKEN))
    clock.now_s += 3
    feedback.observe_response(reported_outcomes(BAD, Verdict.ANSWERED))

    assert feedback.cooling.shut() == {BAD.name: "cooling"}
    assert feedback.counters.answers[BAD.name, "broken"] == 3


def test_a_draining_endpoint_is_counted_and_one_that_is_gone_is_forgotten() -> None:
    feedback = build_feedback()
    draining = Endpoint(BAD.name, BAD.address, is_ready=False)
    feedback.pool.replace([draining, *ENDPOINTS[1:]])
    feedback.observe(reported_outcomes(BAD, Verdict.ANSWERED))
    assert feedback.counters.answers == {("e1", "2xx"): 1}

    feedback.counters.keep({"e2"})

    assert feedback.counters.answers == {}


def test_how_long_requests_take_is_learnt_from_the_engines_and_from_a_log_where_there_is_one() -> (
    None
):
    feedback = build_feedback()
    endpoint = ENDPOINTS[0]
    feedback.apply_signals(endpoint, EndpointSignals(answers=10, answer_s=20, started_s=1))
    assert feedback.pool.duration_s == 2
    feedback.apply_signals(endpoint, EndpointSignals(answers=10, answer_s=20, started_s=1))
    assert feedback.pool.duration_s == 2
    feedback.apply_signals(endpoint, EndpointSignals(answers=12, answer_s=60, started_s=1))
    assert feedback.pool.duration_s == 2 + (20 - 2) / 16

    for _ in range(200):
        feedback.observe(reported_outcomes(endpoint, Verdict.ANSWERED, duration_s=0.5))
    feedback.observe(reported_outcomes(endpoint, Verdict.FAILED, 500, duration_s=100))
    feedback.apply_signals(endpoint, EndpointSignals(answers=14, answer_s=100, started_s=1))
    assert feedback.pool.duration_s == pytest.approx(0.5, abs=0.01)


def test_a_failure_that_is_reported_twice_counts_once() -> None:
    feedback = build_feedback()
    logged = Outcome(BAD.address, Verdict.FAILED, 500)
    for _ in range(2):
        feedback.observe(logged)
        feedback.observe_response(Outcome(BAD.address, Verdict.FAILED, 500, 0.3, 0.3))
    assert (feedback.cooling.shut(), feedback.counters.answers) == ({}, {(BAD.name, "5xx"): 2})

    feedback.observe(logged)
    assert feedback.cooling.shut() == {BAD.name: "cooling"}
