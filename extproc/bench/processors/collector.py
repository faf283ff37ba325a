"""From stamped bytes to what a record says: a processor cuts events out of the stream, then reads them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from extproc.bench.datasets.conversation import BYTES
from extproc.bench.processors.processor import (
    DONE,
    AnswerPiece,
    NotJson,
    Processor,
    Read,
    Usage,
    parse_json,
)
from extproc.bench.record import Record, TokenSource
from extproc.documents import printable

_MAX_DETAIL = 300


@dataclass(slots=True)
class _Answer:
    """What the pieces of an answer add up to."""

    text: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    chunk_s: list[float] = field(default_factory=list)
    usage: Usage = field(default_factory=Usage)
    error: str | None = None
    is_complete: bool = False

    def add(self, at_s: float, piece: AnswerPiece) -> None:
        if piece.text or piece.other:
            self.text.append(piece.text)
            self.other.append(piece.other)
            self.chunk_s.append(at_s)
        if piece.usage:
            self.usage = _merge(self.usage, piece.usage)
        self.error = self.error or piece.error
        self.is_complete = self.is_complete or piece.is_last


def collect_stream(record: Record, reads: Sequence[Read], processor: Processor) -> None:
    """Reads a streamed answer into the record; a first failure, such as a disconnect, stays."""
    answer = _Answer(is_complete=not processor.has_terminator)
    try:
        for at_s, payload in processor.cut(reads):
            if payload == DONE:
                answer.is_complete = True
            else:
                answer.add(at_s, processor.read(parse_json(payload)))
    except NotJson as error:
        fail(record, "bad answer", str(error))
    record.chunk_s = answer.chunk_s
    record.first_token_s = answer.chunk_s[0] if answer.chunk_s else None
    _fill(record, answer)


def collect_whole(record: Record, reads: Sequence[Read], processor: Processor) -> None:
    """Reads an answer that came as one body: there is no first token to speak of."""
    answer = _Answer(is_complete=True)
    try:
        piece = processor.read(parse_json(b"".join(data for _, data in reads)))
        answer.add(0.0, piece)
    except NotJson as error:
        fail(record, "bad answer", str(error))
    _fill(record, answer)


def fail(record: Record, failure: str, detail: str = "") -> None:
    """Notes the first failure of a request; later ones follow from it."""
    if record.failure is None:
        # A server's words reach terminals and pages.
        record.failure, record.failure_detail = failure, printable(detail[:_MAX_DETAIL])


def _fill(record: Record, answer: _Answer) -> None:
    if answer.error is not None:
        fail(record, "server error", answer.error)
    elif not answer.is_complete:
        fail(record, "cut short")
    # Two halves of a character may come in two events; one alone is none, as in a browser.
    halves = "".join(answer.text).encode("utf-16", "surrogatepass")
    record.text = halves.decode("utf-16", "replace")
    # No chunk has less than a token.
    written = BYTES.count(record.text + "".join(answer.other))
    record.estimated_output_tokens = max(written, len(record.chunk_s))
    record.cached_tokens = answer.usage.cached_tokens
    apply_usage(record, answer.usage)
    if record.cached_tokens is not None:
        record.cached_tokens = min(record.cached_tokens, record.input_tokens)


def apply_usage(record: Record, usage: Usage) -> None:
    """Takes the server's counts; without them the estimates, and says so."""
    is_counted = usage.input_tokens is not None and usage.output_tokens is not None
    record.token_source = TokenSource.SERVER if is_counted else TokenSource.ESTIMATE
    record.input_tokens = _either(usage.input_tokens, record.estimated_input_tokens)
    record.output_tokens = _either(usage.output_tokens, record.estimated_output_tokens)


def _merge(old: Usage, new: Usage) -> Usage:
    return Usage(
        input_tokens=_latest(old.input_tokens, new.input_tokens),
        output_tokens=_latest(old.output_tokens, new.output_tokens),
        cached_tokens=_latest(old.cached_tokens, new.cached_tokens),
    )


def _latest(old: int | None, new: int | None) -> int | None:
    return old if new is None else new


def _either(count: int | None, otherwise: int) -> int:
    return otherwise if count is None else count
