"""One request being answered: its generations, and the bytes that are due to the client."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from extproc.simulator.http.answers import Script, escape
from extproc.simulator.http.apis.api import Frames
from extproc.simulator.http.driver import Driver, Generation
from extproc.simulator.http.order import Due, FinishedAnswer, Order, Usage
from extproc.simulator.http.scores import Score


@dataclass(slots=True, eq=False)
class Strand:
    """One of the answers that a request gets. `echo` is the prompt's text, if that goes before it.

    `scores` has one member per token of the answer, `prompt_scores` of the prompt, where they are wanted.
    """

    answer: Script
    generation: Generation
    echo: str = ""
    scores: Sequence[Score] | None = None
    prompt_scores: Sequence[Score] | None = None
    sent: int = 0

    def finish(self) -> FinishedAnswer:
        script = self.answer
        text = "" if script.calls else script.text
        return FinishedAnswer(
            text, script.told_reason, script.calls, self.scores, self.prompt_scores, self.echo
        )

    def take(self) -> Due:
        """Returns what has come since the last call; slow clients get several tokens at once."""
        start, end = self.sent, self.generation.emitted
        self.sent = end
        usage = Usage(len(self.generation.job.prompt), end, None)
        scores = None if self.scores is None else self.scores[start:end]
        if self.answer.deltas:
            deltas = [delta for delta in self.answer.deltas[start:end] if delta is not None]
            return Due(b"", usage, deltas, scores)
        text = b"".join(self.answer.texts[start:end])
        if start:
            return Due(text, usage, scores=scores)
        return Due(
            text,
            usage,
            scores=scores,
            prompt_scores=self.prompt_scores,
            echo=escape(self.echo),
            echoed=self.generation.job.prompt if self.echo else None,
        )


class Answering:
    """Waits for a request's generations. Leave it by `close`, however it ends."""

    def __init__(
        self,
        order: Order,
        strands: Sequence[Strand],
        wake: asyncio.Event,
        driver: Driver,
        *,
        shows_cached: bool,
    ) -> None:
        self._order = order
        self._strands = strands
        self._wake = wake
        self._driver = driver
        self._shows_cached = shows_cached

    def close(self) -> None:
        """Aborts what has not finished."""
        for strand in self._strands:
            self._driver.abort(strand.generation)

    @property
    def is_finished(self) -> bool:
        return all(strand.generation.is_finished for strand in self._strands)

    async def collect(self) -> list[FinishedAnswer]:
        """Returns all answers when the last one is complete."""
        while not self.is_finished:
            await self._next()
        return [strand.finish() for strand in self._strands]

    async def stream(self, frames: Frames) -> AsyncIterator[bytes]:
        """Yields what is due after each step that brought this request something."""
        opening = frames.opening()
        while True:
            await self._next()
            due = opening + b"".join(self._frame(frames))
            opening = b""
            if self.is_finished:
                yield due + frames.closing(self.usage)
                return
            if due:
                yield due

    def _frame(self, frames: Frames) -> Iterator[bytes]:
        for index, strand in enumerate(self._strands):
            generation = strand.generation
            if strand.sent == generation.emitted:
                continue
            due = strand.take()
            if generation.is_finished:
                yield frames.last_piece(index, due, strand.answer.told_reason)
            elif due.deltas or not strand.answer.deltas:
                yield frames.piece(index, due)

    async def _next(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    @property
    def usage(self) -> Usage:
        """Tokens so far. Of several prompts vLLM tells the last one's cached tokens."""
        last = self._strands[-1].generation
        block_size = self._driver.engine.profile.block_size
        full_tokens = len(last.job.prompt) // block_size * block_size
        return Usage(
            prompt_tokens=self._order.prompt_tokens,
            completion_tokens=sum(strand.generation.emitted for strand in self._strands),
            cached_tokens=last.cached_tokens if self._shows_cached else None,
            created_tokens=max(0, full_tokens - last.cached_tokens),
        )
