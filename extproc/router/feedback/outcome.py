"""What became of one request, and whose doing it was. Pure: values in, values out.

The rules, and where they come from:

- An endpoint **failed** if it answered 5xx, could not be connected to, or was lost before the first
  byte of its answer. That is what Envoy's outlier detection counts (`consecutive_5xx`: "5xx
  responses and locally originated failures"), less what follows.
- It did not fail where the client did: 4xx is the client's, and so is every exchange that a client
  broke off (**aborted**). Whether an endpoint was silent that whole time is for the cooling to say.
  501 and 505 say that the request wants a feature that the server lacks: vLLM answers 501 for such
  options.
- An endpoint owes no answer to a request that did not come whole. Who announces a body and does not
  send it proves nothing of an endpoint, nor does an endpoint that hangs up on them.
- 429, and 503 with `Retry-After`, mean that the endpoint is well and **busy** (RFC 9110 §15.6.4,
  RFC 6585 §4). A 503 of Envoy's own may carry the header, too (the shipped configurations add it),
  so it counts only where the endpoint's first byte was seen.
- An answer that broke off after its first byte is **broken**. It counts as a failure: an endpoint
  that cuts every answer is as bad for clients as one that answers 500.
- The entry of a request with more than one attempt names the last endpoint only. The earlier ones
  are in the list that we gave: where the last one stands at the place that the number of attempts
  leads to, those ahead of it could not be reached (Envoy retries only what no endpoint has begun).
  Anything else is ambiguous, since Envoy skips addresses that it does not have, and then nobody has
  failed.
"""

from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from enum import Enum, StrEnum
from typing import Final

from msgspec import Struct

from extproc.router.stream.events import Served


class Verdict(StrEnum):
    ANSWERED = "answered"  # the endpoint works
    FAILED = "failed"
    BUSY = "busy"  # it works, and has too much to do
    BROKEN = "broken"  # its answer began and was cut, not by the client
    UNKNOWN = "unknown"  # the client left before an answer, or no endpoint was reached


class EndpointFault(Enum):
    """Who ended an exchange early, by Envoy's response flags."""

    NONE = "none"
    CLIENT = "client"
    ENDPOINT = "endpoint"
    CONNECTION = "connection"  # there was none to the endpoint


class Exchange(Struct, frozen=True):
    """One entry of an access log. Durations in seconds since the request's first byte at the proxy.

    `address` is the endpoint of the last attempt, empty without one; `destinations` what we sent
    the proxy, best first, read only where there was more than one attempt. `first_byte_s` is `None`
    where no byte of an answer came, `received_s` where the request did not come whole, `status` 0
    where the client got none. `ticket` is the pick's number, 0 where it has none; then `request_id`
    is the request's `x-request-id`.
    """

    address: str
    status: int
    duration_s: float
    first_byte_s: float | None = None
    fault: EndpointFault = EndpointFault.NONE
    attempts: int = 1
    destinations: Sequence[str] = ()
    retry_after: str | None = None
    ticket: int = 0
    request_id: str = ""
    received_s: float | None = 0.0


class Outcome(Struct, frozen=True):
    """The result of one attempt at one endpoint.

    `status` is the endpoint's own, 0 where it gave none. `duration_s` is how long ago the request
    began, `first_byte_s` how long after that the answer did. `had_s` is for how long the endpoint had
    all of the request, 0: never. `retry_after_s` is for a busy one.
    `is_aborted`: the client left. `is_unreached`: it could not be connected to, as the proxy says.
    """

    address: str
    verdict: Verdict
    status: int = 0
    duration_s: float = 0.0
    first_byte_s: float | None = None
    had_s: float = 0.0
    retry_after_s: float = 0.0
    is_aborted: bool = False
    is_unreached: bool = False


_ITS_FAULT: Final = frozenset({EndpointFault.ENDPOINT, EndpointFault.CONNECTION})

# The request's fault, not the endpoint's.
_NOT_HERE: Final = frozenset({501, 505})

# For a date that is past, or nonsense: the shortest wait that the header can express.
_SHORTEST_S: Final = 1.0


def outcomes(exchange: Exchange, now_s: float) -> Iterator[Outcome]:
    """Judges every endpoint of an exchange; none if it reached none.

    `now_s` is the time of day, in seconds since 1970: `Retry-After` may be a date.
    """
    for address in _unreached(exchange):
        yield Outcome(address, Verdict.FAILED, 0, exchange.duration_s, is_unreached=True)
    if exchange.address:
        began = exchange.first_byte_s is not None
        verdict = judge_answer(exchange) if began else _judge_silence(exchange)
        yield _outcome(exchange, verdict, exchange.status if began else 0, now_s)


def _outcome(exchange: Exchange, verdict: Verdict, status: int, now_s: float) -> Outcome:
    retry_after_s = (
        parse_retry_after(exchange.retry_after, now_s) if verdict is Verdict.BUSY else 0.0
    )
    received_s = exchange.received_s
    return Outcome(
        exchange.address,
        verdict,
        status,
        exchange.duration_s,
        exchange.first_byte_s,
        0.0 if received_s is None else exchange.duration_s - received_s,
        retry_after_s,
        exchange.fault is EndpointFault.CLIENT,
        exchange.fault is EndpointFault.CONNECTION and exchange.first_byte_s is None,
    )


def judge_answer(exchange: Exchange) -> Verdict:
    status = exchange.status
    if status == 429 or (status == 503 and exchange.retry_after is not None):
        return Verdict.BUSY
    if status >= 500 and status not in _NOT_HERE:
        return Verdict.FAILED
    return Verdict.BROKEN if exchange.fault in _ITS_FAULT else Verdict.ANSWERED


def _judge_silence(exchange: Exchange) -> Verdict:
    is_whole = exchange.received_s is not None
    has_failed = exchange.fault is EndpointFault.CONNECTION or (
        exchange.fault is EndpointFault.ENDPOINT and is_whole
    )
    return Verdict.FAILED if has_failed else Verdict.UNKNOWN


def parse_retry_after(text: str | None, now_s: float) -> float:
    """Seconds to wait, from a number or a date (RFC 9110 §10.2.3); 0 without the header."""
    if text is None:
        return 0.0
    said = text.strip()
    if said.isascii() and said.isdigit():
        return float(said[:9])
    try:
        return max(_SHORTEST_S, parsedate_to_datetime(said).timestamp() - now_s)
    except (ValueError, OverflowError):
        return _SHORTEST_S


def _unreached(exchange: Exchange) -> Sequence[str]:
    """The addresses that were tried before the last one, where that is certain."""
    before, destinations = exchange.attempts - 1, exchange.destinations
    if before <= 0:
        return ()
    if before >= len(destinations):
        return [address for address in destinations if address != exchange.address]
    return destinations[:before] if destinations[before] == exchange.address else ()


_UNFAILED: Final = frozenset({Verdict.ANSWERED, Verdict.UNKNOWN})
CLASSES: Final[Mapping[int, str]] = {hundred: f"{hundred}xx" for hundred in range(1, 6)}


def class_of(outcome: Outcome) -> str:
    """A label for a metric: `2xx` and so on, else `none` (no answer), `broken`, `aborted`, or `unknown`."""
    if outcome.verdict is Verdict.BROKEN:
        return "broken"
    if outcome.is_aborted and outcome.verdict in _UNFAILED:
        return "aborted"
    if outcome.status == 0:
        return "none" if outcome.verdict is Verdict.FAILED else "unknown"
    return CLASSES.get(outcome.status // 100, "unknown")


def judge_response(served: Served, elapsed_s: float, now_s: float) -> Outcome:
    """Judges a response by its headers; `elapsed_s` after its request was sent on, `now_s` the time of day.

    Headers come at once, an access log when the answer has ended. But they do not say whether a 503
    is the endpoint's or the proxy's own, unless the proxy marked it. So without that mark
    `Retry-After` proves nothing: the shipped configurations add it to replies of Envoy's own.
    """
    head = served.response
    exchange = Exchange(
        served.address, head.status, elapsed_s, elapsed_s, retry_after=head.retry_after
    )
    verdict = judge_answer(exchange)
    if verdict is Verdict.BUSY and head.status == 503 and not head.is_upstreams:
        verdict = Verdict.UNKNOWN
    return _outcome(exchange, verdict, head.status, now_s)
