"""Text of a known length: synthetic words, the estimate of tokens, trimming and padding.

The estimate is four UTF-8 bytes per token; synthetic words are three letters and a space, so that
synthetic text has exactly the estimated length.
"""

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


def fit_text(text: str, tokens: int, *, context: str = "") -> str:
    """Returns the text at `tokens` estimated tokens: its head, or the text and filler.

    The filler depends on `context` (what precedes the text) and the text alone. So two texts keep
    their common prefix, cut to the length asked for: equal texts stay equal, and a text that
    continued another one leaves it where that one ended.
    """
    trimmed = trim_text(text, tokens)
    missing = tokens * BYTES_PER_TOKEN - len(trimmed.encode())
    key = xxhash.xxh3_64_intdigest(f"{context}\0{text}".encode("utf-8", "surrogatepass"))
    filler = write_text(-(-missing // BYTES_PER_TOKEN), np.random.default_rng(key)) if missing > 0 else ""
    return trimmed + filler[:missing]


def _build_words() -> npt.NDArray[np.uint8]:
    consonants, vowels = b"bcdfghjklmnprstvwxyz", b"aeiou"
    words = [(c, v, d, ord(" ")) for c in consonants for v in vowels for d in consonants]
    return np.array(words, dtype=np.uint8)


_WORDS = _build_words()
_WORDS.setflags(write=False)
