"""Answers: pseudo-text that repeats for the same prompt, and the bytes of it that are ready to send."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from math import exp
from statistics import NormalDist

import msgspec
import xxhash

from extproc.simulator.http.api_request import ApiRequest, FinishedAnswer, NewText, TokenUsage
from extproc.simulator.http.apis.api import Frames
from extproc.simulator.http.driver import Driver, Generation
from extproc.simulator.http.tokens import Tokenizer

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
        text: str = msgspec.json.decode(b'"%b"' % b"".join(self.texts))
        return text


class Author:
    """Writes answers in words that tokenise as themselves: the same answer to the same prompt, every time.

    `mean_tokens` is the mean of their natural lengths; 0: they have none. An answer without a
    natural length goes on to the client's `max_tokens`, as random weights do, or to 256 tokens. One
    with a natural length stops there, unless the client sets `ignore_eos`.
    """

    def __init__(self, tokenizer: Tokenizer, mean_tokens: int = 0) -> None:
        self._words = tokenizer.words
        self._texts = {word: escape_json(tokenizer.decode([word])) for word in self._words}
        self._mean_tokens = mean_tokens

    def write(self, request: ApiRequest, prompt: Sequence[int], room: int, variant: int) -> Script:
        """Returns answer number `variant` to one of the request's prompts; `room` is all that fits."""
        tail = array("Q", prompt[-DECISIVE_TOKENS:]).tobytes()
        number = xxhash.xxh3_64_intdigest(
            tail, (request.seed * 31 + variant) & 0xFFFF_FFFF_FFFF_FFFF
        )
        limit = room if request.max_tokens is None else min(request.max_tokens, room)
        length = max(self._natural_length(request, number), request.min_tokens)
        tokens = self._compose(number, min(length, limit))
        texts = [self._texts[token] for token in tokens]
        return Script(tokens, texts, "stop" if length <= limit else "length")

    def _natural_length(self, request: ApiRequest, number: int) -> int:
        if request.max_tokens is not None and (request.ignore_eos or not self._mean_tokens):
            return request.max_tokens + 1
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


@dataclass(slots=True, eq=False)
class Strand:
    """One of the answers that a request gets. `echo` is the prompt's text, if that goes before it."""

    script: Script
    generation: Generation
    echo: str = ""
    sent: int = 0

    def pop(self) -> NewText:
        """Returns what has come since the last call; slow clients get several tokens at once."""
        start, end = self.sent, self.generation.emitted
        self.sent = end
        usage = TokenUsage(len(self.generation.job.prompt), end, None)
        text = b"".join(self.script.texts[start:end])
        if start or not self.echo:
            return NewText(text, usage)
        return NewText(text, usage, escape_json(self.echo), self.generation.job.prompt)


@dataclass(frozen=True, slots=True, eq=False)
class Answering:
    """Waits for a request's generations. Leave it by `close`, however it ends."""

    request: ApiRequest
    strands: Sequence[Strand]
    wake: asyncio.Event
    driver: Driver
    shows_cached: bool

    def close(self) -> None:
        """Aborts what has not finished."""
        for strand in self.strands:
            self.driver.abort(strand.generation)

    @property
    def is_finished(self) -> bool:
        return all(strand.generation.is_finished for strand in self.strands)

    async def collect(self) -> list[FinishedAnswer]:
        """Returns all answers when the last one is complete."""
        while not self.is_finished:
            await self._next()
        return [
            FinishedAnswer(one.script.text, one.script.reason, one.echo) for one in self.strands
        ]

    async def stream(self, frames: Frames) -> AsyncIterator[bytes]:
        """Yields what is ready to send after each step that brought this request something."""
        opening = frames.opening()
        while True:
            await self._next()
            ready = opening + b"".join(self._frame(frames))
            opening = b""
            if self.is_finished:
                yield ready + frames.closing(self.usage)
                return
            if ready:
                yield ready

    def _frame(self, frames: Frames) -> Iterator[bytes]:
        for index, strand in enumerate(self.strands):
            generation = strand.generation
            if strand.sent == generation.emitted:
                continue
            new = strand.pop()
            if generation.is_finished:
                yield frames.last_piece(index, new, strand.script.reason)
            else:
                yield frames.piece(index, new)

    async def _next(self) -> None:
        await self.wake.wait()
        self.wake.clear()

    @property
    def usage(self) -> TokenUsage:
        """Tokens so far. Of several prompts vLLM reports the last one's cached tokens."""
        last = self.strands[-1].generation
        block_size = self.driver.engine.profile.block_size
        full_tokens = len(last.job.prompt) // block_size * block_size
        return TokenUsage(
            prompt_tokens=self.request.prompt_tokens,
            completion_tokens=sum(strand.generation.emitted for strand in self.strands),
            cached_tokens=last.cached_tokens if self.shows_cached else None,
            created_tokens=max(0, full_tokens - last.cached_tokens),
        )


def escape_json(text: str) -> bytes:
    """Returns a text as it stands between the quotes of a JSON string."""
    return msgspec.json.encode(text)[1:-1]
