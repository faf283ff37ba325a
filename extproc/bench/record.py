"""What is known of one benchmarked request. Every figure in a report derives from these records."""

from dataclasses import dataclass, field
from enum import StrEnum


class TokenSource(StrEnum):
    """Who counted a request's tokens."""

    SERVER = "server"
    TOKENIZER = "tokenizer"
    ESTIMATE = "estimate"


@dataclass(slots=True)
class Record:
    """One request, from intention to last byte.

    All times are seconds on the run's clock (0 = start of the run); `None` means it never came.
    `intended_s` is the time the schedule asked for; `admitted_s` when the concurrency cap let the
    request through (`intended_s` if it was never held); `started_s` when the client took it up:
    `started_s - admitted_s` is the client's own lag. `sent_s` is the time the request's bytes were
    written. `chunk_s` holds the arrival of every chunk with non-empty content or reasoning, the first
    token's included; a role-only or usage chunk is not one. `failure` is one of a few fixed words,
    `failure_detail` what the server said.
    """

    index: int
    session: int
    turn: int
    intended_s: float
    admitted_s: float | None = None
    started_s: float | None = None
    sent_s: float | None = None
    first_byte_s: float | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    chunk_s: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    token_source: TokenSource = TokenSource.ESTIMATE
    estimated_input_tokens: int = 0
    estimated_output_tokens: int = 0
    cached_tokens: int | None = None
    endpoint: str | None = None
    status: int | None = None
    failure: str | None = None
    failure_detail: str = ""
    retry_after_s: float | None = None
    text: str = ""

    @property
    def is_ok(self) -> bool:
        return self.failure is None and self.end_s is not None

    @property
    def lag_s(self) -> float | None:
        """How late the client itself was, the cap's wait not counted; `None` if it never started."""
        if self.started_s is None or self.admitted_s is None:
            return None
        return self.started_s - self.admitted_s
