"""The load's texts: conversations, their turns, the prompts they become, and text of a set length.

The estimate of tokens is four UTF-8 bytes per token; synthetic words are three letters and a space,
so that synthetic text has exactly the estimated length. With a tokenizer, that counts (`tokens`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

BYTES_PER_TOKEN = 4


# A tokenizer that makes less than a token of each word would need words for ever.
_MOST_TRIES = 16


class Ruler(Protocol):
    """Counts tokens, and writes text of so many."""

    @property
    def name(self) -> str: ...

    def count(self, text: str) -> int: ...

    def trim(self, text: str, tokens: int) -> str:
        """Returns the text's head of at most that many tokens."""
        ...

    def write(self, tokens: int, rng: np.random.Generator) -> str:
        """Returns synthetic text of that many tokens."""
        ...


class ByteRuler:
    """The estimate, which reports must name: four UTF-8 bytes per token, rounded up."""

    name = f"{BYTES_PER_TOKEN} bytes per token"

    def count(self, text: str) -> int:
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
        return -(-size // BYTES_PER_TOKEN)

    def trim(self, text: str, tokens: int) -> str:
        # Never half a character.
        encoded = text.encode("utf-8", "surrogatepass")
        return encoded[: tokens * BYTES_PER_TOKEN].decode("utf-8", "ignore")

    def write(self, tokens: int, rng: np.random.Generator) -> str:
        """Returns pronounceable words of three letters, each with a space."""
        picks = rng.integers(0, len(_WORDS), tokens)
        return bytes(_WORDS[picks]).decode("ascii")


BYTES = ByteRuler()


def fit_text(text: str, tokens: int, *, context: str = "", ruler: Ruler = BYTES) -> str:
    """Returns the text at that many tokens: its head, or the text and filler.

    The filler depends on `context` (what precedes the text) and the text alone. So two texts keep
    their common prefix, cut to the wanted length: equal texts stay equal, and a text that
    continued another one leaves it where that one ended.
    """
    fitted = ruler.trim(text, tokens)
    key = xxhash.xxh3_64_intdigest(f"{context}\0{text}".encode("utf-8", "surrogatepass"))
    rng = np.random.default_rng(key)
    for _ in range(_MOST_TRIES):
        missing = tokens - ruler.count(fitted)
        if missing <= 0:
            break
        # One more: the first token of the filler may melt into the last of the text.
        fitted = ruler.trim(fitted + ruler.write(missing + 1, rng), tokens)
    return fitted


def _build_words() -> npt.NDArray[np.uint8]:
    consonants, vowels = b"bcdfghjklmnprstvwxyz", b"aeiou"
    words = [(c, v, d, ord(" ")) for c in consonants for v in vowels for d in consonants]
    return np.array(words, dtype=np.uint8)


_WORDS = _build_words()
_WORDS.setflags(write=False)


@dataclass(frozen=True, slots=True)
class TurnMessage:
    """One message of a chat: a role of OpenAI's API and plain text."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """What one request adds to a conversation, and the answer that was recorded for it.

    `output_tokens` is what the request allows the answer to take; `reply` is empty if none is
    known. It is sent `think_s` after the answer before it; `None`: after what the spec's
    `think-time` draws.
    """

    messages: tuple[TurnMessage, ...]
    output_tokens: int
    reply: str = ""
    think_s: float | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns in order. `arrival_s` is set by traces; `body` is a whole request body to send as it is."""

    turns: tuple[ChatTurn, ...]
    arrival_s: float | None = None
    body: Mapping[str, object] | None = None

    @property
    def message_count(self) -> int:
        return sum(len(turn.messages) + bool(turn.reply) for turn in self.turns)

    @property
    def user_contents(self) -> list[str]:
        return [m.content for turn in self.turns for m in turn.messages if m.role == "user"]


def build_prompts(conversation: Conversation) -> Iterator[Conversation]:
    """Yields one single-turn conversation per turn: everything before its reply, as recorded.

    A turn without a recorded reply contributes none to the history of the next.
    """
    history: tuple[TurnMessage, ...] = ()
    for turn in conversation.turns:
        history += turn.messages
        yield replace(conversation, turns=(replace(turn, messages=history),))
        if turn.reply:
            history += (TurnMessage("assistant", turn.reply),)


def count_prompt_tokens(messages: Sequence[TurnMessage], ruler: Ruler = BYTES) -> int:
    """Returns the tokens of a prompt's messages, without what a chat template adds."""
    return sum(ruler.count(message.content) for message in messages)


def join_prompt(messages: Sequence[TurnMessage]) -> str:
    """Renders a prompt for an API without messages; a longer history extends a shorter one's text."""
    return "\n\n".join(message.content for message in messages)
