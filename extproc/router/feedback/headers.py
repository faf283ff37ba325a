"""What a response's headers say, where a gateway sends them over ext_proc. Pure.

They come at once, an access log when the answer has ended; but they do not tell whether a 503 is the
endpoint's or the proxy's own, unless the proxy marked it. So without that mark `Retry-After` proves nothing:
the shipped configurations add it to replies of Envoy's own.
"""

from extproc.router.feedback.outcome import Exchange, Outcome, Verdict, judge_answer, parse_retry_after
from extproc.router.stream.events import Served


def judge_response(served: Served, elapsed_s: float, now_s: float) -> Outcome:
    """Judges who answered; `elapsed_s` is how long ago its request was sent on, `now_s` the time of day."""
    response = served.response
    exchange = Exchange(
        served.pool, served.address, response.status, elapsed_s, elapsed_s, retry_after=response.retry_after
    )
    verdict = judge_answer(exchange)
    if verdict is Verdict.BUSY and response.status == 503 and not response.is_upstreams:
        verdict = Verdict.UNKNOWN
    return Outcome(
        served.pool,
        served.address,
        verdict,
        response.status,
        elapsed_s,
        elapsed_s,
        parse_retry_after(response.retry_after, now_s) if verdict is Verdict.BUSY else 0.0,
    )
