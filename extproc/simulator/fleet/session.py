"""Sessions: what one simulated client sends, turn by turn, and which text it has in common with others.

An engine sees paths of named texts, a router chat bodies with texts of known lengths and of no
meaning.
"""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate
from random import Random
from struct import pack
from typing import Final
from zlib import crc32

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from extproc.simulator.engine.runs import Path

CHARS_PER_TOKEN: Final = 4.0
# A picture has a token for so many pixels squared (Qwen2.5-VL). Identifiers are those of its vocabulary.
_PATCH, _VOCABULARY = 28, 151_643
# A language, or code, is off by so much from its first message to its last.
_ERROR: Final = 0.2
_POOL_BYTES: Final = 1 << 19
_POOL_IDS: Final = 1 << 16
_LETTERS: Final = bytes(b"etaoin shrdlu "[byte % 14] for byte in range(256))


class PlannedMessage(Struct, frozen=True, gc=False):
    """What one speaker says: `tokens` for the engine, `chars` for a router, which sees no tokens.

    `name` is that of its own text; `text` names it and all before it, as a cache sees it. Without a
    `role` it goes on with the message before. A picture has as many `chars` as a text of its tokens.
    """

    role: str
    name: int
    text: int
    tokens: int
    chars: int
    is_picture: bool = False


class PlannedTurn(Struct, frozen=True):
    """One request: the prompt's messages, then the answer as the last one.

    It is sent `think_s` after the answer of the turn before. With `is_ids` the client has made
    tokens of it.
    """

    messages: tuple[PlannedMessage, ...]
    prompt_tokens: int
    output_tokens: int
    think_s: float = 0.0
    is_ids: bool = False

    @property
    def path(self) -> str:
        return "/v1/completions" if self.is_ids else "/v1/chat/completions"

    def text_share(self, tokens: int) -> float:
        """The share of the prompt's characters that its first `tokens` tokens are."""
        said = self.messages[:-1]
        starts = accumulate((message.tokens for message in said), initial=0)
        there = (
            one.chars * min(1, max(0, tokens - at) / one.tokens)
            for one, at in zip(said, starts, strict=False)
        )
        return sum(there) / sum(message.chars for message in said)


# What two prompts have in common, without a word of text.
#
# An engine shares blocks where everything before is equal; a router sees characters and guesses
# tokens. So a message has two names: its own, and one of it *and all before it* (`text`), which is
# what a cache can find again. Texts are named by what they are ("3.question 2"), hashed with the
# run's seed, so that equal names are equal texts, and two runs share none.
#
# A router counts four characters a token, and is wrong by up to a fifth: not per request, but for a
# whole conversation, since a language or a kind of code stays what it is. Drawn per request the error
# would average out and hide what it does to an index. All texts of one owner have the same error,
# which comes from the name up to its first dot.
class Transcript(Struct, frozen=True):
    """The messages of a prompt so far. `seed` makes the texts of two runs differ."""

    seed: int = 0
    messages: tuple[PlannedMessage, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(message.tokens for message in self.messages)

    def then(
        self, role: str, name: str, tokens: float, *, is_picture: bool = False
    ) -> "Transcript":
        """Returns the script with one message more.

        `name` begins with whose text it is, up to a dot: all of it has as many characters per
        token.
        """
        before, count = (
            self.messages[-1].text if self.messages else self.seed,
            max(1, round(tokens)),
        )
        own, text = (xxh3_64_intdigest(name.encode(), seed) for seed in (self.seed, before))
        error = xxh3_64_intdigest(name.partition(".")[0].encode(), self.seed) / 2**63 - 1
        chars = round(count * CHARS_PER_TOKEN * (1 + _ERROR * error))
        message = PlannedMessage(role, own, text, count, chars, is_picture)
        return Transcript(self.seed, (*self.messages, message))

    def ask(self, answer: str, tokens: float, think_s: float = 0.0) -> PlannedTurn:
        """Returns the request with this prompt, whose answer has this name and so many tokens."""
        messages = self.then("assistant", answer, tokens).messages
        return PlannedTurn(messages, self.tokens, messages[-1].tokens, think_s)

    def after(self, turn: PlannedTurn) -> "Transcript":
        """Returns what is said when a turn is answered."""
        return Transcript(self.seed, turn.messages)


class PlannedSession(Struct, frozen=True):
    """Turns of one client, named `owner`; with a `start_s` they begin then, in seconds."""

    owner: int
    turns: tuple[PlannedTurn, ...]
    start_s: float | None = None

    def path(self, turn: int, block_size: int) -> Path:
        """Returns the full blocks of a turn's prompt and output."""
        messages = self.turns[turn].messages
        ends = accumulate(message.tokens for message in messages)
        return Path(
            [(message.text, end // block_size) for message, end in zip(messages, ends, strict=True)]
        )


def write_body(turn: PlannedTurn) -> bytes:
    """Returns the body of a turn's request."""
    said = turn.messages[:-1]
    if turn.is_ids:
        return b'{"prompt":[%b]}' % b",".join(map(_write_ids, said))
    write = _write_parts if any(message.is_picture for message in said) else _write_texts
    return b'{"messages":[%b}]}' % b"".join(write(said))


def _write_texts(said: Iterable[PlannedMessage]) -> Iterator[bytes]:
    end = b""
    for message in said:
        if message.role:
            yield b'%b{"role":"%b","content":"' % (end, message.role.encode())
            end = b'"},'
        yield _write_text(message)
    yield b'"'


def _write_parts(said: Iterable[PlannedMessage]) -> Iterator[bytes]:
    end = b""
    for message in said:
        if message.role:
            yield b'%b{"role":"%b","content":[' % (end, message.role.encode())
        else:
            yield b","
        end = b"]},"
        kind = b"image_url" if message.is_picture else b"text"
        value = b'{"url":"%b"}' % _write_picture(message)
        if not message.is_picture:
            value = b'"%b"' % _write_text(message)
        yield b'{"type":"%b","%b":%b}' % (kind, kind, value)
    yield b"]"


def _write_text(message: PlannedMessage) -> bytes:
    return make_text(b"%x" % message.name, message.chars)


def _write_picture(message: PlannedMessage) -> bytes:
    """The head of a PNG, one patch high and as wide as it has tokens for a router; then its name."""
    width = round(_PATCH * message.chars / CHARS_PER_TOKEN)
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + pack(">IIQ", width, _PATCH, message.name)
    return b"data:image/png;base64," + b64encode(head)


def _write_ids(message: PlannedMessage) -> bytes:
    ids, start = _ids(), message.name % _POOL_IDS
    own = b"%d" % (message.name % _VOCABULARY)
    rest = message.tokens - 1
    while rest > len(ids) - start:
        own, rest = b"%b,%b" % (own, b",".join(ids[start:])), rest - len(ids) + start
        start = 0
    return b",".join([own, *ids[start : start + rest]])


def make_text(name: bytes, chars: int) -> bytes:
    """Returns `chars` characters, which begin with the text's name, so that no two texts are equal."""
    pool = _pool()
    start = crc32(name) % max(1, _POOL_BYTES - chars)
    text = b"%b %b" % (name, pool[start : start + chars])
    while len(text) < chars:
        text += pool
    return text[:chars]


@lru_cache(maxsize=1)
def _pool() -> bytes:
    return Random(0).randbytes(_POOL_BYTES).translate(_LETTERS)  # noqa: S311  # no secret


@lru_cache(maxsize=1)
def _ids() -> list[bytes]:
    rng = Random(0)  # noqa: S311  # no secret
    return [b"%d" % rng.randrange(_VOCABULARY) for _ in range(_POOL_IDS)]
