"""A bounded sample of what a pool's prompts begin with, in memory alone and forgotten soon. Pure."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from extproc.router.routing.prompt.parse import Prompt
from extproc.router.routing.prompt.turns import TURN_START, TURN_TEXT

EVERY: Final = 50
MOST_HEADS: Final = 64
HEAD_BYTES: Final = 32 * 1024
# JSON takes more bytes than what it says: quotes, names, escapes.
_WRITTEN: Final = 2
KEEP_S: Final = 570.0  # a timer looks each 30 s: so ten minutes at most


class HeadTurn(Struct, frozen=True, gc=False):
    """One speaker's part of a prompt's head, in UTF-8."""

    role: str
    text: bytes


class PromptHead(Struct, frozen=True, gc=False):
    """The begin of one prompt. Its `repr` says nothing of the text: a log may have it."""

    at_s: float
    salt: str
    turns: tuple[HeadTurn, ...]

    def __repr__(self) -> str:
        return f"<Head of {len(self.turns)} turns>"

    def written(self) -> tuple[bytes, tuple[int, ...]]:
        """All of it in one text, and where the text of each turn begins. A mark ends what stands before a turn."""
        text, starts = bytearray(), list[int]()
        for turn in self.turns:
            text += f"{TURN_START}{turn.role}{TURN_TEXT}".encode("utf-8", "replace")
            starts.append(len(text))
            text += turn.text
        return bytes(text), tuple(starts)


def read_prompt_head(prompt: Prompt, at_s: float = 0.0, most: int = HEAD_BYTES) -> PromptHead:
    """Reads the first bytes of a prompt, as the model reads it."""
    turns = prompt.begin(_WRITTEN * most).turns(most)
    return PromptHead(at_s, prompt.cache_salt, tuple(_cut(turns, most)))


def _cut(turns: Iterable[tuple[str, str | bytes]], most: int) -> list[HeadTurn]:
    found = list[HeadTurn]()
    for role, said in turns:
        text = said if isinstance(said, bytes) else said.encode("utf-8", "replace")
        text = text[: max(0, most)]
        most -= len(text) + len(role)
        if found and not role:  # what goes on behind a picture
            found[-1] = HeadTurn(found[-1].role, found[-1].text + text)
        elif most > 0 or text:
            found.append(HeadTurn(role[:64], text))
    return found


class HeadSample:
    """Every fiftieth prompt's head: 64 of 32 kB at most, each for ten minutes at most.

    `see` may be called in any thread. What it keeps never leaves: others get partings, which have no text.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._seen = clock, -1
        self._heads = deque[PromptHead](maxlen=MOST_HEADS)

    def see(self, prompt: Prompt) -> None:
        self._seen += 1
        if not self._seen % EVERY:
            self._heads.append(read_prompt_head(prompt, self._clock()))

    def heads(self) -> list[PromptHead]:
        """Forgets the old ones and returns the others."""
        least_s = self._clock() - KEEP_S
        fresh = [head for head in [*self._heads] if head.at_s > least_s]
        if len(fresh) < len(self._heads):
            self._heads = deque(fresh, MOST_HEADS)
        return fresh
