"""Text to tokens and back: by a stated approximation, or by a model's own `tokenizer.json`."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any, Protocol

from extproc.errors import MissingExtra, SettingsError
from extproc.simulator.http.refusals import VllmRefusal

BYTES_PER_TOKEN = 4
MOST_WORDS = 4096


class Tokenizer(Protocol):
    """What the simulator needs of a tokenizer.

    `words` are the tokens that pseudo-text is made of: each reads as a word, and reads back as
    itself when a client sends an answer as part of its next prompt. Tokens are less than `size`.
    """

    size: int

    @property
    def words(self) -> Sequence[int]: ...

    def encode(self, pieces: Sequence[str]) -> list[int]:
        """Returns the tokens of a prompt given in pieces (a message's head, its text, its end).

        Raises `VllmRefusal` for a text with lone surrogates, as vLLM's tokenizers do.
        """
        ...

    def decode(self, tokens: Iterable[int]) -> str: ...


class FourByteTokenizer:
    """Cuts a token from every four UTF-8 bytes of each piece, the last one padded.

    Four bytes per token is the usual ratio for English. A token's number is its bytes, read as a
    little-endian integer, so equal heads of two texts give equal tokens and no table is needed.
    Pieces are cut one by one: an answer, made of four-byte words, gives the same tokens when it
    comes back within a conversation.
    """

    size = 1 << 32

    def __init__(self) -> None:
        consonants, vowels = "bcdfghjklmnprstvwz", "aeiou"
        syllables = map("".join, product(consonants, vowels, consonants))
        self.words = self.encode([f" {syllable}" for syllable in syllables])

    def encode(self, pieces: Sequence[str]) -> list[int]:
        tokens: list[int] = []
        for piece in pieces:
            data = _encode_text(piece)
            data += b"\0" * (-len(data) % BYTES_PER_TOKEN)
            tokens += memoryview(data).cast("I")
        return tokens

    def decode(self, tokens: Iterable[int]) -> str:
        data = array("I", (token & 0xFFFF_FFFF for token in tokens)).tobytes()
        return data.replace(b"\0", b"").decode("utf-8", "replace")


class FileTokenizer:
    """A model's own tokenizer, read from its `tokenizer.json` (extra `tokenizers`)."""

    def __init__(self, path: Path) -> None:
        self._tokenizer = _load(path)
        self.size: int = self._tokenizer.get_vocab_size()
        self.words = list(islice(self._find_words(), MOST_WORDS))
        if not self.words:
            raise SettingsError(f"{path}: no token reads as an English word after a space")

    def encode(self, pieces: Sequence[str]) -> list[int]:
        text = _encode_text("".join(pieces)).decode()
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: Iterable[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def _find_words(self) -> Iterator[int]:
        # Low numbers first: in most vocabularies these are the commonest words.
        for token in sorted(self._tokenizer.get_vocab(with_added_tokens=False).values()):
            text = self.decode([token])
            if (
                text.isascii()
                and text.startswith(" ")
                and text[1:].isalpha()
                and self.encode([text]) == [token]
            ):
                yield token


def _encode_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        message = (
            "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
        )
        raise VllmRefusal(message) from None


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer as Fast  # noqa: PLC0415, an optional extra
    except ImportError:
        raise MissingExtra("a tokenizer.json", "tokenizers") from None
    try:
        return Fast.from_file(str(path))
    except Exception as fault:  # noqa: BLE001, tokenizers raises bare Exceptions
        raise SettingsError(f"{path}: {fault}") from None
