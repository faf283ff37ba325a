"""Sessions: what one simulated client asks, turn by turn, and which text it has in common with others."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from extproc.simulator.engine.runs import Path

CHARS_PER_TOKEN: Final = 4.0


class _Text(IntEnum):
    """Whose text a block holds; keeps the identities of the three apart."""

    OWN = 0
    SHARED = 1
    DISCARDED = 2


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One request: `prompt_tokens` counts the whole history; it is sent `think_s` after the last answer."""

    prompt_tokens: int
    output_tokens: int
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CommonText:
    """A text that many sessions begin with, named `text`. It always stands behind the same texts."""

    text: int
    tokens: int
    chars_per_token: float = CHARS_PER_TOKEN


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """Turns of one growing text, named `owner`, behind its `heads`.

    `head_role` is whose message the heads are in: `user` puts them in front of the first question.
    `history` has the tokens of question, reply, question … that the first prompt consists of behind the
    heads; empty: of one question. Where `is_replayed`, the history holds recorded replies and not what
    the model generates. A router sees characters, `chars_per_token` of them, and knows no such number.
    """

    owner: int
    turns: tuple[PlannedTurn, ...]
    heads: tuple[CommonText, ...] = ()
    head_role: str = "system"
    history: tuple[int, ...] = ()
    is_replayed: bool = False
    chars_per_token: float = CHARS_PER_TOKEN

    @property
    def head_tokens(self) -> int:
        return sum(head.tokens for head in self.heads)

    def path(self, turn: int, block_size: int, number: int) -> Path:
        """Returns the full blocks of a turn's prompt and output.

        `number` tells the outputs of replayed prompts apart, which no later prompt contains.
        """
        asked = self.turns[turn]
        blocks = (asked.prompt_tokens + asked.output_tokens) // block_size
        kept = asked.prompt_tokens // block_size if self.is_replayed else blocks
        return Path((*self._shared(block_size, kept), *self._own(kept, blocks, number)))

    def _shared(self, block_size: int, kept: int) -> Iterator[tuple[int, int]]:
        tokens = 0
        for head in self.heads:
            tokens += head.tokens
            yield _name(_Text.SHARED, head.text), min(tokens // block_size, kept)

    def _own(self, kept: int, blocks: int, number: int) -> Iterator[tuple[int, int]]:
        yield _name(_Text.OWN, self.owner), kept
        if kept < blocks:
            yield _name(_Text.DISCARDED, number), blocks


def _name(text: _Text, name: int) -> int:
    return name * len(_Text) + text
