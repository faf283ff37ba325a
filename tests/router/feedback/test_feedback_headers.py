"""What response headers say of an endpoint, with and without an access log beside them."""

import random

from extproc.router.feedback.cooling import Cooling, Rules, Why
from extproc.router.feedback.outcome import Outcome, Verdict, judge_response
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.balanced import RoundRobin
from extproc.router.routing.strategies.base import Outside
from extproc.router.stream.events import ResponseHeaders, Served
from tests.clock import Clock
from tests.tables import table

A, B = Endpoint("a", "10.0.0.1:80"), Endpoint("b", "10.0.0.2:80")


def told(status: int, retry_after: str | None = None, *, is_upstreams: bool = False) -> Outcome:
    response = ResponseHeaders(status=status, retry_after=retry_after, is_upstreams=is_upstreams)
    return judge_response(Served("llama", A.address, response), 0.3, 0.0)


@table(
    ("outcome", "verdict"),
    [
        (told(200), Verdict.ANSWERED),
        (told(404), Verdict.ANSWERED),
        (told(501), Verdict.ANSWERED),
        (told(500), Verdict.FAILED),
        (told(503), Verdict.FAILED),
        (told(504), Verdict.FAILED),
        (told(429, "3"), Verdict.BUSY),
        (told(503, "3", is_upstreams=True), Verdict.BUSY),
        (told(503, "3"), Verdict.UNKNOWN),  # it may be the proxy's own
    ],
)
def test_headers_are_judged(outcome: Outcome, verdict: Verdict) -> None:
    assert outcome.verdict is verdict
    assert (outcome.address, outcome.duration_s, outcome.first_byte_s) == (A.address, 0.3, 0.3)
    assert outcome.retry_after_s == (3 if verdict is Verdict.BUSY else 0)


def build() -> tuple[PoolFeedback, Clock]:
    clock = Clock()
    cooling = Cooling(Rules(jitter=0.0), clock=clock, rng=random.Random(1))
    pool = Pool("llama", RoundRobin(Outside(random.Random(1), clock)), gate=cooling)
    pool.replace([A, B])
    return PoolFeedback(pool, cooling), clock


def test_a_failure_that_is_told_twice_counts_once() -> None:
    desk, _ = build()
    logged = Outcome(A.address, Verdict.FAILED, 500)
    for _ in range(2):
        desk.observe(logged)
        desk.observe_response(told(500))

    assert (desk.cooling.shut(), desk.counters.answers) == ({}, {("a", "5xx"): 2})

    desk.observe(logged)
    assert desk.cooling.shut() == {"a": Why.COOLING}
