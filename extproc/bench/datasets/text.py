"""Text of a known length: synthetic words, the estimate of tokens, trimming and padding.

The estimate is four UTF-8 bytes per token; synthetic words are three letters and a space, so that
synthetic text has exactly the estimated length. With a tokenizer, that counts (`tokens`).
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt
import xxhash

BYTES_PER_TOKEN = 4


def estimate_tokens(text: str) -> int:
    """Returns the UTF-8 length over four, rounded up: an approximation that reports must name."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def write_text(tokens: int, rng: np.random.Generator) -> str:
    """Returns `tokens` pronounceable words of three letters, each with a space."""
    picks = rng.integers(0, len(_WORDS), tokens)
    return bytes(_WORDS[picks]).decode("ascii")


def trim_text(text: str, tokens: int) -> str:
    """Returns the text's head of at most `tokens` estimated tokens, never half a character."""
    encoded = text.encode("utf-8", "surrogatepass")
    return encoded[: tokens * BYTES_PER_TOKEN].decode("utf-8", "ignore")


# A tokenizer that makes less than a token of each word would be asked for ever.
_MOST_TRIES = 16


class Ruler(Protocol):
    """By what tokens are counted where text of a length is asked for."""

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
    """The estimate: four UTF-8 bytes per token."""

    name = f"{BYTES_PER_TOKEN} bytes per token"

    def count(self, text: str) -> int:
        return estimate_tokens(text)

    def trim(self, text: str, tokens: int) -> str:
        return trim_text(text, tokens)

    def write(self, tokens: int, rng: np.random.Generator) -> str:
        return write_text(tokens, rng)


BYTES = ByteRuler()


def fit_text(text: str, tokens: int, *, context: str = "", ruler: Ruler = BYTES) -> str:
    """Returns the text at that many tokens: its head, or the text and filler.

    The filler depends on `context` (what precedes the text) and the text alone. So two texts keep
    their common prefix, cut to the length asked for: equal texts stay equal, and a text that
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
