"""The figures that one request yields, in seconds. Definitions only; summaries are in `metrics`.

Latencies exist twice: from the intended start, which includes all waiting that a slow server causes
("coordinated omission"), and from the moment the request was written, as most other tools report.
A figure that a request does not have is `None`, never 0.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from extproc.bench.record import Record

Measure = Callable[[Record], float | None]


def _gap(end_s: float | None, start_s: float | None) -> float | None:
    return None if end_s is None or start_s is None else end_s - start_s


def ttft(record: Record) -> float | None:
    """Time to the first chunk with content, from the intended start."""
    return _gap(record.first_token_s, record.intended_s)


def ttft_sent(record: Record) -> float | None:
    return _gap(record.first_token_s, record.sent_s)


def e2e(record: Record) -> float | None:
    """Time to the last byte, from the intended start."""
    return _gap(record.end_s, record.intended_s)


def e2e_sent(record: Record) -> float | None:
    return _gap(record.end_s, record.sent_s)


def tpot(record: Record) -> float | None:
    """Time per output token after the first: (last chunk - first chunk) / (output tokens - 1).

    Undefined where tokens cannot be told apart in time: fewer than two tokens, or all in one chunk.
    """
    if record.output_tokens < 2 or len(record.chunk_s) < 2:
        return None
    return (record.chunk_s[-1] - record.chunk_s[0]) / (record.output_tokens - 1)


def ntpot(record: Record) -> float | None:
    """Normalised time per output token: end to end from the intended start / output tokens."""
    whole_s = e2e(record)
    return None if whole_s is None or record.output_tokens < 1 else whole_s / record.output_tokens


def time_per_token(record: Record) -> float | None:
    """KubeAI's k6 script's figure: the request's duration from its sending / completion tokens."""
    whole_s = e2e_sent(record)
    return None if whole_s is None or record.output_tokens < 1 else whole_s / record.output_tokens


def lag(record: Record) -> float | None:
    """How late the client itself was; the wait at the concurrency cap is not its fault."""
    return record.lag_s


def held(record: Record) -> float | None:
    """The wait at the concurrency cap."""
    return _gap(record.admitted_s, record.intended_s)


MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "ttft": ttft,
        "ttft_sent": ttft_sent,
        "e2e": e2e,
        "e2e_sent": e2e_sent,
        "tpot": tpot,
        "ntpot": ntpot,
        "time_per_token": time_per_token,
        "lag": lag,
        "held": held,
    }
)
