"""Pseudo-text: the same answer to the same prompt, every time, in words that tokenise as themselves."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp
from random import Random
from statistics import NormalDist

import orjson
import xxhash

from extproc.simulator.http.forms import Call, CallDelta, DraftPiece, Form, Role, name_call
from extproc.simulator.http.order import Order
from extproc.simulator.http.tokens import Tokenizer

# An answer's length when neither the client nor the operator says anything.
USUAL_TOKENS = 256
# The spread of reply lengths in chats: sigma of a lognormal distribution.
LENGTH_SIGMA = 0.8
# How much of a prompt's end decides the answer.
DECISIVE_TOKENS = 256
# Answers of a form that differ; of more than this many to one prompt, later ones repeat earlier ones.
DRAFTS = 8
ENDING = DraftPiece("", Role.ENDING)


@dataclass(frozen=True, slots=True)
class Script:
    """A whole answer before it is given: tokens, each one's text escaped for JSON, and why it ends.

    Of an answer that calls tools, `deltas` has what each token tells of a call, or None, and `calls` the
    calls that are whole. `ending` is the reason that a client is told.
    """

    tokens: Sequence[int]
    texts: Sequence[bytes]
    reason: str
    ending: str = ""
    deltas: Sequence[CallDelta | None] = ()
    calls: Sequence[Call] = ()

    @property
    def told_reason(self) -> str:
        return self.ending or self.reason

    @property
    def text(self) -> str:
        text: str = orjson.loads(b'"%b"' % b"".join(self.texts))
        return text


class Author:
    """Writes answers. `mean_tokens` is the mean of their natural lengths; 0: they have none.

    An answer without a natural length goes on to the client's `max_tokens`, as random weights do, or
    to 256 tokens. One with a natural length stops there, unless the client sets `ignore_eos`.
    """

    def __init__(self, tokenizer: Tokenizer, mean_tokens: int = 0) -> None:
        self._tokenizer = tokenizer
        self._words = tokenizer.words
        self._texts = {word: escape(tokenizer.decode([word])) for word in self._words}
        self._mean_tokens = mean_tokens

    def write(self, order: Order, prompt: Sequence[int], room: int, variant: int) -> Script:
        """Returns answer number `variant` to one of the order's prompts; `room` is all that fits."""
        tail = array("Q", prompt[-DECISIVE_TOKENS:]).tobytes()
        variant = variant if order.form is None else variant % DRAFTS
        number = xxhash.xxh3_64_intdigest(tail, (order.seed * 31 + variant) & 0xFFFF_FFFF_FFFF_FFFF)
        limit = room if order.max_tokens is None else min(order.max_tokens, room)
        if order.form is not None:
            return self._fill(order.form, number, limit)
        length = max(self._natural_length(order, number), order.min_tokens)
        tokens = self._compose(number, min(length, limit))
        texts = [self._texts[token] for token in tokens]
        return Script(tokens, texts, "stop" if length <= limit else "length")

    def _fill(self, form: Form, number: int, limit: int) -> Script:
        # The last piece is the token that ends an answer: it counts, and tells nothing.
        pieces = [*form.draft(Random(number)), ENDING]  # noqa: S311, answers need no secrets
        cut = [self._cut(piece.text) for piece in pieces]
        tokens = [token for found, _ in cut for token in found][:limit]
        texts = [escape(text) for _, found in cut for text in found][:limit]
        is_whole = sum(len(found) for found, _ in cut) <= limit
        deltas = [
            delta
            for piece, (_, found) in zip(pieces, cut, strict=True)
            for delta in _tell(piece, found, name_call(number, piece.call))
        ]
        is_text = all(delta is None for delta in deltas)
        return Script(
            tokens,
            texts,
            "stop" if is_whole else "length",
            form.ending if is_whole else "length",
            [] if is_text else deltas[:limit],
            [] if is_text else _list_calls(pieces, cut, number, limit),
        )

    def _cut(self, text: str) -> tuple[Sequence[int], Sequence[str]]:
        """Returns a text's tokens, and as many slices of the text."""
        if not text:
            return self._words[:1], [""]
        tokens = self._tokenizer.encode([text])
        texts = [self._tokenizer.decode([token]) for token in tokens]
        if "".join(texts) != text:
            # Tokens may end within a character; what counts is that the text comes whole.
            ends = [len(text) * place // len(tokens) for place in range(len(tokens) + 1)]
            texts = [text[start:end] for start, end in pairwise(ends)]
        return tokens, texts

    def _natural_length(self, order: Order, number: int) -> int:
        if order.max_tokens is not None and (order.ignore_eos or not self._mean_tokens):
            return order.max_tokens + 1
        if not self._mean_tokens:
            return USUAL_TOKENS
        share = (number % 65_521 + 0.5) / 65_521
        spread = exp(LENGTH_SIGMA * NormalDist().inv_cdf(share) - LENGTH_SIGMA**2 / 2)
        return max(1, round(self._mean_tokens * spread))

    def _compose(self, number: int, count: int) -> list[int]:
        # A stride through the words needs no generator and sets neighbouring prompts far apart.
        words, size = self._words, len(self._words)
        stride = 1 + (number >> 32) % max(1, size - 1)
        return [words[(number + stride * index) % size] for index in range(count)]


def _tell(piece: DraftPiece, texts: Sequence[str], call_id: str) -> list[CallDelta | None]:
    """Returns what each token of a piece tells of a call."""
    if piece.role is Role.ARGUMENTS:
        return [CallDelta(piece.call, "", "", text) for text in texts]
    silent: list[CallDelta | None] = [None] * len(texts)
    if piece.role is Role.HEAD:
        silent[-1] = CallDelta(piece.call, call_id, piece.name, "")
    return silent


def _list_calls(
    pieces: Sequence[DraftPiece],
    cut: Sequence[tuple[Sequence[int], Sequence[str]]],
    number: int,
    limit: int,
) -> list[Call]:
    """Returns the calls that end within the limit."""
    calls: list[Call] = []
    used = 0
    name = arguments = ""
    for piece, (tokens, _) in zip(pieces, cut, strict=True):
        used += len(tokens)
        name = piece.name or name
        arguments = piece.text if piece.role is Role.ARGUMENTS else arguments
        if piece.role is Role.END and used <= limit:
            calls.append(Call(name_call(number, piece.call), name, arguments))
    return calls


def escape(text: str) -> bytes:
    """Returns a text as it stands between the quotes of a JSON string."""
    return orjson.dumps(text)[1:-1]
