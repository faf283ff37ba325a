"""Rows in Mooncake's published form: times, lengths and names of blocks, and no text. Pure."""

# A row has `timestamp` (ms), `input_length` and `output_length` (tokens), and `hash_ids`: a name for each
# `block_size` tokens of the prompt and for its rest. Equal names behind equal names are equal text.
#
# - Published traces have blocks of 512 and no `block_size`. Of chats these say too little: 16 is what vLLM
#   caches by, so what two prompts share here is what an engine finds.
# - A token is four bytes. The tokenizer is not here, and blocks must end at the same bytes in all prompts.
# - A name is a keyed hash of the prompt up to the block's end. The key is drawn for each file and written
#   nowhere: nobody can try texts.
# - A share is one of conversations, not of requests: a turn without those before it has lost its hits.
# - The service reads no answers. An answer is as long as fits into the time that the request took, by
#   what the endpoint says of all its answers, and not longer than the client lets it be.

from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Final, Protocol

from msgspec import Struct
from msgspec.json import encode

from extproc.router.routing.pool import Pick
from extproc.router.routing.prompt.media import Medium
from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.prompt.turns import TOKEN_BYTES, TURN_START, TURN_TEXT
from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.base import Reading

BLOCK_TOKENS: Final = 16
BLOCK_BYTES: Final = BLOCK_TOKENS * TOKEN_BYTES
# Of longer prompts the begin.
_MOST_CHARS: Final = 1 << 20
# Open requests: some megabytes. A request that is never picked is open until others push it out.
_MOST_OPEN: Final = 10_000
# What of a prompt tells conversations apart.
_CONVERSATION_CHARS: Final = 2_048
_LIMITS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")
# Where an endpoint says nothing.
_TOKEN_S: Final = 0.02
# Only names behind equal names are compared; short ones keep rows short.
_NAME_BYTES: Final = 4


class RecordedRow(Struct):
    """One request; the fields are those of the published format, but for the last."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: list[int]
    block_size: int = BLOCK_TOKENS


class RowSink(Protocol):
    """Takes finished rows; neither waits nor fails."""

    def write_row(self, row: bytes) -> None: ...

    def lose_row(self) -> None:
        """Counts one that is written nowhere."""

    def begin(self) -> None:
        """Ends the file, and goes on in a new one."""


def name_blocks(pieces: Iterable[bytes], key: bytes) -> tuple[int, list[int]]:
    """Returns a prompt's bytes, and the name of each of its blocks."""
    hasher, size, names = blake2b(key=key, digest_size=_NAME_BYTES), 0, list[int]()
    for piece in pieces:
        at = 0
        while size + len(piece) - at >= (end := (len(names) + 1) * BLOCK_BYTES):
            hasher.update(piece[at : at + end - size])
            at, size = at + end - size, end
            names.append(int.from_bytes(hasher.digest()))
        hasher.update(piece[at:])
        size += len(piece) - at
    if size > len(names) * BLOCK_BYTES:
        names.append(int.from_bytes(hasher.digest()))
    return size, names


class PoolTrace:
    """Makes rows of a pool's requests, for a `share` of the conversations.

    `signals` are the endpoints' own, as they are now. `limit_bytes` are those of one file; with each a
    new key is drawn. Any thread may call `see`.
    """

    def __init__(
        self,
        sink: RowSink,
        signals: Mapping[str, EndpointSignals],
        clock: Callable[[], float],
        draw_key: Callable[[], bytes],
        *,
        share: float,
        limit_bytes: int,
    ) -> None:
        self._sink, self._clock, self._draw_key = sink, clock, draw_key
        self._signals = signals
        self._share, self._limit_bytes = share, limit_bytes
        self._open: dict[Reading, tuple[float, bytes, RecordedRow]] = {}
        self._begin()

    def see(self, prompt: Prompt, reading: Reading) -> None:
        key = self._key
        if self._share < 1 and not self._is_chosen(prompt, key):
            return
        size, names = name_blocks(_written(prompt.turns(_MOST_CHARS)), key)
        if not size:
            return
        at_s = self._clock()
        row = RecordedRow(
            round(1_000 * (at_s - self._since_s)), -(-size // TOKEN_BYTES), _most(prompt), names
        )
        self._open[reading] = at_s, key, row
        if len(self._open) > _MOST_OPEN:
            self._open.pop(next(iter(self._open)), None)

    def ended(self, pick: Pick) -> None:
        at_s, key, row = self._open.pop(pick.reading, (0.0, b"", None))
        if row is None:
            return
        if key is not self._key:  # it came before this file began
            self._sink.lose_row()
            return
        tokens = _answer_tokens(self._clock() - at_s, self._signals.get(pick.endpoint.name))
        row.output_length = max(1, min(tokens, row.output_length))
        written = encode(row) + b"\n"
        self._bytes += len(written)
        self._sink.write_row(written)
        if self._bytes >= self._limit_bytes:
            self._begin()

    def _begin(self) -> None:
        self._key, self._bytes, self._since_s = self._draw_key(), 0, self._clock()
        self._sink.begin()

    def _is_chosen(self, prompt: Prompt, key: bytes) -> bool:
        said = prompt.conversation(_CONVERSATION_CHARS) or prompt.head(_CONVERSATION_CHARS)
        digest = blake2b(said.encode("utf-8", "replace"), key=key, digest_size=8).digest()
        return int.from_bytes(digest) < self._share * 2**64


def _written(turns: Iterable[tuple[str, str | bytes]]) -> Iterator[bytes]:
    """What a model reads; a medium is as long as its tokens."""
    for role, text in turns:
        if role:
            yield f"{TURN_START}{role}{TURN_TEXT}".encode("utf-8", "replace")
        yield text if isinstance(text, bytes) else text.encode("utf-8", "replace")
        if isinstance(text, Medium):
            yield bytes(TOKEN_BYTES * text.tokens)


def _answer_tokens(seconds: float, signals: EndpointSignals | None) -> int:
    if signals is None or signals.answer_s <= signals.first_token_s or not signals.first_tokens:
        return round(seconds / _TOKEN_S)
    waited_s = signals.first_token_s / signals.first_tokens
    a_second = signals.answer_tokens / (signals.answer_s - signals.first_token_s)
    return round((seconds - waited_s) * a_second)


def _most(prompt: Prompt) -> int:
    """The most tokens that the client lets an answer have."""
    limits = (prompt.field(name) or "" for name in _LIMITS)
    return min(
        (int(one) for one in limits if one.isascii() and one.isdigit() and len(one) < 8),
        default=1 << 20,
    )
