"""What an exchange says of the endpoints it reached: whose doing was it?"""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from extproc.router.feedback.outcome import (
    EndpointFault,
    Exchange,
    Outcome,
    Verdict,
    class_of,
    judge_response,
    outcomes,
    parse_retry_after,
)
from extproc.router.stream.events import ResponseHeaders, Served
from tests.tables import table

# 21 October 2026, 07:27:40 GMT.
NOW_S = 1_792_567_660.0

A, B, C = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"


def answer_outcome(
    status: int,
    fault: EndpointFault = EndpointFault.NONE,
    retry_after: str | None = None,
    first_byte_s: float | None = 0.1,
) -> Exchange:
    return Exchange(A, status, 0.5, first_byte_s, fault, retry_after=retry_after)


silent = partial(answer_outcome, first_byte_s=None)


def cut_short(fault: EndpointFault) -> Exchange:
    return replace(silent(503, fault), received_s=None)


@table(
    ("exchange", "verdict", "class_"),
    [
        (answer_outcome(200), Verdict.ANSWERED, "2xx"),
        (answer_outcome(302), Verdict.ANSWERED, "3xx"),
        *((answer_outcome(status), Verdict.ANSWERED, "4xx") for status in (400, 404, 499)),
        *((answer_outcome(status), Verdict.FAILED, "5xx") for status in (500, 502, 503, 599)),
        *((answer_outcome(status), Verdict.ANSWERED, "5xx") for status in (501, 505)),
        (answer_outcome(429), Verdict.BUSY, "4xx"),
        (answer_outcome(429, retry_after="7"), Verdict.BUSY, "4xx"),
        (answer_outcome(503, retry_after="7"), Verdict.BUSY, "5xx"),
        (answer_outcome(200, EndpointFault.CLIENT), Verdict.ANSWERED, "aborted"),
        (answer_outcome(500, EndpointFault.CLIENT), Verdict.FAILED, "5xx"),
        (answer_outcome(200, EndpointFault.ENDPOINT), Verdict.BROKEN, "broken"),
        (answer_outcome(700), Verdict.FAILED, "unknown"),
        # The status is Envoy's own here, and so is its header.
        *(
            (silent(status, EndpointFault.ENDPOINT), Verdict.FAILED, "none")
            for status in (503, 504)
        ),
        (silent(503, EndpointFault.ENDPOINT, retry_after="1"), Verdict.FAILED, "none"),
        (silent(0, EndpointFault.CLIENT), Verdict.UNKNOWN, "aborted"),
        *((silent(status), Verdict.UNKNOWN, "unknown") for status in (413, 503)),
        # Nobody owes an answer to a request that did not come whole.
        (cut_short(EndpointFault.ENDPOINT), Verdict.UNKNOWN, "unknown"),
        (cut_short(EndpointFault.CLIENT), Verdict.UNKNOWN, "aborted"),
        (cut_short(EndpointFault.CONNECTION), Verdict.FAILED, "none"),
    ],
)
def test_an_exchange_is_judged(exchange: Exchange, verdict: Verdict, class_: str) -> None:
    (outcome,) = outcomes(exchange, NOW_S)

    assert (outcome.verdict, class_of(outcome)) == (verdict, class_)
    assert (outcome.address, outcome.duration_s) == (A, 0.5)


@table(
    ("text", "seconds"),
    [
        (None, 0),
        ("0", 0),
        (" 12 ", 12),
        ("9" * 400, 999_999_999),
        *(
            (odd, 1) for odd in ("-1", "1.5", "soon", "", "١٢")
        ),  # the last are digits, but not HTTP's
        ("Wed, 21 Oct 2026 07:28:00 GMT", 20),
        ("Wednesday, 21-Oct-26 07:28:00 GMT", 20),
        ("Wed Oct 21 07:28:00 2026", 20),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 1),
        ("Wed, 99 Oct 2026 07:27:00 GMT", 1),
        ("Wed, 21 Oct 999999999 07:27:00 GMT", 1),
    ],
)
def test_retry_after_is_read(text: str | None, seconds: float) -> None:
    assert parse_retry_after(text, NOW_S) == seconds


@table(
    ("address", "attempts", "destinations", "blamed"),
    [
        (A, 1, [A, B, C], []),
        (B, 2, [A, B, C], [A]),
        (C, 3, [A, B, C], [A, B]),
        # The proxy lacks an address, so which one was passed by and which one failed nobody knows.
        (C, 2, [A, B, C], []),
        (B, 3, [A, B, C], []),
        (A, 2, [A], []),
        # It came to its own fallback policy: the whole list was tried.
        ("10.0.0.9:80", 4, [A, B, C], [A, B, C]),
        (A, 4, [A, B, C], [B, C]),
        (B, 2, [], []),
        (B, 0, [A, B], []),
    ],
)
def test_who_failed_before_the_last_try_is_blamed_where_it_is_certain(
    address: str, attempts: int, destinations: list[str], blamed: list[str]
) -> None:
    found = list(
        outcomes(
            Exchange(address, 200, 0.5, 0.1, attempts=attempts, destinations=destinations), NOW_S
        )
    )

    assert [outcome.address for outcome in found if outcome.verdict is Verdict.FAILED] == blamed
    assert (found[-1].address, found[-1].verdict) == (address, Verdict.ANSWERED)


def test_nobody_is_judged_where_no_endpoint_was_reached() -> None:
    assert list(outcomes(Exchange("", 503, 0.1), NOW_S)) == []


@given(
    st.builds(
        Exchange,
        st.sampled_from([A, B, C, ""]),
        st.integers(0, 999),
        st.floats(0, 100),
        st.none() | st.floats(0, 100),
        st.sampled_from(EndpointFault),
        st.integers(0, 6),
        st.lists(st.sampled_from([A, B, C]), unique=True),
        st.none() | st.text(max_size=5),
    )
)
def test_a_clients_doing_never_blames_the_endpoint_it_was_sent_to(exchange: Exchange) -> None:
    last = [
        outcome for outcome in outcomes(exchange, NOW_S) if outcome.address == exchange.address
    ][-1:]
    blamed: list[Outcome] = [outcome for outcome in last if outcome.verdict is Verdict.FAILED]
    is_answer = exchange.first_byte_s is not None

    if exchange.status < 500 and is_answer:
        assert blamed == []
    if exchange.fault is EndpointFault.CLIENT and not is_answer:
        assert blamed == []


def response_outcome(
    status: int, retry_after: str | None = None, *, is_upstreams: bool = False
) -> Outcome:
    response = ResponseHeaders(status=status, retry_after=retry_after, is_upstreams=is_upstreams)
    return judge_response(Served("llama", A, response), 0.3, 0.0)


@table(
    ("outcome", "verdict"),
    [
        *((response_outcome(status), Verdict.ANSWERED) for status in (200, 404, 501)),
        *((response_outcome(status), Verdict.FAILED) for status in (500, 503, 504)),
        (response_outcome(429, "3"), Verdict.BUSY),
        (response_outcome(503, "3", is_upstreams=True), Verdict.BUSY),
        (response_outcome(503, "3"), Verdict.UNKNOWN),  # it may be the proxy's own
    ],
)
def test_response_headers_are_judged(outcome: Outcome, verdict: Verdict) -> None:
    assert outcome.verdict is verdict
    assert (outcome.address, outcome.duration_s, outcome.first_byte_s) == (A, 0.3, 0.3)
    assert outcome.retry_after_s == (3 if verdict is Verdict.BUSY else 0)
