"""What every API has in common: queries, answers, clients, streams of events, JSON that is not trusted."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import msgspec

from extproc.bench.datasets.conversation import TurnMessage
from extproc.bench.record import Clock, Record
from extproc.bench.spec.tree import Target
from extproc.errors import ExtprocError

_NOTHING: Mapping[str, object] = MappingProxyType({})


def get_object(parent: object, field: str) -> Mapping[str, object]:
    value = parent.get(field) if isinstance(parent, Mapping) else None
    return value if isinstance(value, Mapping) else _NOTHING


def get_list(parent: object, field: str) -> list[object]:
    value = parent.get(field) if isinstance(parent, Mapping) else None
    return value if isinstance(value, list) else []


def get_text(parent: object, field: str) -> str:
    value = parent.get(field) if isinstance(parent, Mapping) else None
    return value if isinstance(value, str) else ""


# More tokens than any answer has: a server's number is not to be trusted.
_MOST_TOKENS = 2**40


def get_count(parent: object, field: str) -> int | None:
    """A whole number from 0 on; `None` for anything else that a server may say."""
    value = parent.get(field) if isinstance(parent, Mapping) else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if 0 <= value <= _MOST_TOKENS else None


# What names a part of an output, and is none of it.
_LABELS = frozenset({"id", "type", "index", "role", "format", "call_id", "item_id", "signature"})


def gather_text(value: object, depth: int = 8) -> str:
    """All texts in a piece of output, as the arguments of a tool call; labels such as `id` are left out."""
    if isinstance(value, str):
        return value
    inner: Iterable[object] = ()
    if depth and isinstance(value, list):
        inner = value
    elif depth and isinstance(value, Mapping):
        inner = (each for name, each in value.items() if name not in _LABELS)
    return "".join(gather_text(each, depth - 1) for each in inner)


def get_error(payload: object) -> str | None:
    """Returns the message of `{"error": {"message"}}`, `{"error": "…"}` or vLLM's `{"object": "error"}`."""
    if not isinstance(payload, Mapping):
        return None
    if payload.get("object") == "error" or isinstance(payload.get("error"), str):
        return get_text(payload, "message") or get_text(payload, "error") or "error"
    if payload.get("error"):
        return get_text(get_object(payload, "error"), "message") or "error"
    return None


class NotJson(ExtprocError):
    """Bytes of a server that are no JSON, or nested too deep to be read."""


def parse_json(data: bytes) -> object:
    """Reads what a server sent; raises `NotJson`.

    OpenAI's Python client reads it with the standard library, and so takes NaN and half a character. Our
    reader is faster and strict, so what it refuses is read again.
    """
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError) as error:
        with suppress(ValueError, RecursionError):
            return json.loads(data)
        raise NotJson(str(error)) from None


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

    `text` is content or reasoning; empty for a role-only or usage event. `other` is what the model
    wrote besides: tool calls, a refusal, audio, a summary; it counts as output, and is no part of
    the reply. `is_last`: nothing that matters follows. `error` is the server's own message.
    """

    text: str = ""
    other: str = ""
    usage: Usage | None = None
    error: str | None = None
    is_last: bool = False


EMPTY = AnswerPiece()


Read = tuple[float, bytes]
"""Bytes of a response and the time they arrived."""

DONE = b"[DONE]"


_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"


def cut_sse(reads: Iterable[Read]) -> Iterator[Read]:
    """Yields the data of each server-sent event; comments and other fields are dropped.

    Lines end in LF, CRLF or CR. An event that the response ends within is not one (WHATWG HTML
    §9.2.6), but for the terminator, with which nothing is missing.
    """
    rest, at_s, is_after_cr = b"", 0.0, False
    data: list[bytes] = []
    for at_s, read in reads:
        # The LF of a CRLF that was cut in two ends no line of its own.
        chunk = read.removeprefix(b"\n") if is_after_cr else read
        is_after_cr = chunk.endswith(b"\r")
        *lines, rest = _LINE_END.split(rest + chunk)
        for raw in lines:
            line = raw.removeprefix(_BOM)
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield at_s, b"\n".join(data)
                data = []
    if [*data, *([rest[5:].strip()] if rest else [])] == [DONE]:
        yield at_s, DONE


class Processor(Protocol):
    """One API over HTTP.

    `has_terminator`: a stream that ends without a last piece was cut short.
    """

    @property
    def has_terminator(self) -> bool: ...

    def path(self, query: ChatQuery) -> str:
        """Returns the URL's path."""
        ...

    def headers(self, api_key: str | None) -> dict[str, str]:
        """Returns the API's own headers."""
        ...

    def body(self, query: ChatQuery) -> dict[str, object]:
        """Returns the request body."""
        ...

    def cut(self, reads: Iterable[Read]) -> Iterator[Read]:
        """Cuts the JSON of each event out of a stream; `DONE` is a terminator."""
        ...

    def read(self, payload: object) -> AnswerPiece:
        """Reads one decoded event, or the whole answer; foreign fields are ignored."""
        ...


@dataclass(frozen=True, slots=True)
class HttpApi:
    """What most APIs share: a bearer key, server-sent events with a terminator."""

    has_terminator: bool = field(default=True, init=False)

    def headers(self, api_key: str | None) -> dict[str, str]:
        return {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def cut(self, reads: Iterable[Read]) -> Iterator[Read]:
        return cut_sse(reads)


class Client(Protocol):
    """Sends one request at a time, many at once. Lives and dies in a running event loop."""

    async def send(self, query: ChatQuery, record: Record) -> None:
        """Fills the record from `started_s` to `end_s`; failures are recorded, never raised."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Wiring:
    """What a client is made of."""

    base_url: str
    target: Target
    api_key: str | None
    clock: Clock


ClientFactory = Callable[[Wiring], Client]
