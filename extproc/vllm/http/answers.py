"""Pseudo-text: the same answer to the same prompt, every time, in words that tokenise as themselves."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from statistics import NormalDist

import orjson
import xxhash

from extproc.vllm.http.order import Order
from extproc.vllm.http.tokens import Tokenizer

# An answer's length when neither the client nor the operator says anything.
USUAL_TOKENS = 256
# The spread of reply lengths in chats: sigma of a lognormal distribution.
LENGTH_SIGMA = 0.8
# How much of a prompt's end decides the answer.
DECISIVE_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Script:
    """A whole answer before it is given: tokens, each one's text escaped for JSON, and why it ends."""

    tokens: Sequence[int]
    texts: Sequence[bytes]
    reason: str

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
        self._words = tokenizer.words
        self._texts = {word: escape(tokenizer.decode([word])) for word in self._words}
        self._mean_tokens = mean_tokens

    def write(self, order: Order, prompt: Sequence[int], room: int, variant: int) -> Script:
        """Returns answer number `variant` to one of the order's prompts; `room` is all that fits."""
        tail = array("Q", prompt[-DECISIVE_TOKENS:]).tobytes()
        number = xxhash.xxh3_64_intdigest(tail, (order.seed * 31 + variant) & 0xFFFF_FFFF_FFFF_FFFF)
        limit = room if order.max_tokens is None else min(order.max_tokens, room)
        length = max(self._natural_length(order, number), order.min_tokens)
        tokens = self._compose(number, min(length, limit))
        texts = [self._texts[token] for token in tokens]
        return Script(tokens, texts, "stop" if length <= limit else "length")

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


def escape(text: str) -> bytes:
    """Returns a text as it stands between the quotes of a JSON string."""
    return orjson.dumps(text)[1:-1]
