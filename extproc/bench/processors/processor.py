"""The seam of request processors: what every API has in common."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from extproc.bench.datasets.conversation import TurnMessage

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ChatQuery:
    """One request in no API's words. `body` is a whole recorded request body, if there is one."""

    model: str
    messages: tuple[TurnMessage, ...]
    max_tokens: int
    is_streaming: bool = True
    body: Json | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of the server; `None` where it did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class AnswerPiece:
    """What one event of a stream, or a whole answer, says.

    `text` is content or reasoning; empty for a role-only or usage event. `is_last`: nothing that
    matters follows. `error` is the server's own message.
    """

    text: str = ""
    usage: Usage | None = None
    error: str | None = None
    is_last: bool = False


EMPTY = AnswerPiece()


class Processor(Protocol):
    """One API over HTTP.

    `is_cumulative`: a piece's text holds all text so far. `has_terminator`: a stream that ends
    without a last piece was cut short.
    """

    @property
    def is_cumulative(self) -> bool: ...

    @property
    def has_terminator(self) -> bool: ...

    def path(self, ask: ChatQuery) -> str:
        """Returns the URL's path."""
        ...

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Returns the API's own headers."""
        ...

    def body(self, ask: ChatQuery) -> dict[str, object]:
        """Returns the request body."""
        ...

    def read(self, payload: object) -> AnswerPiece:
        """Reads one decoded event, or the whole answer; foreign fields are ignored."""
        ...


@dataclass(frozen=True, slots=True)
class HttpApi:
    """What most APIs share: a bearer key, server-sent events with a terminator."""

    is_cumulative: bool = field(default=False, init=False)
    has_terminator: bool = field(default=True, init=False)

    def headers(self, api_key: str | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {api_key}"} if api_key else {}
