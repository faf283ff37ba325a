"""What a router sees of a session: chat bodies with texts of known lengths and of no meaning."""

from functools import lru_cache
from random import Random
from typing import Final
from zlib import crc32

from extproc.simulator.fleet.session import CommonText, PlannedSession

_POOL_BYTES: Final = 1 << 19
_LETTERS: Final = bytes(b"etaoin shrdlu "[byte % 14] for byte in range(256))


class Dialogue:
    """A session's messages so far, as JSON. `ask` the turns in their order."""

    __slots__ = ("_asked", "_said", "_session")

    def __init__(self, session: PlannedSession) -> None:
        self._session = session
        self._said = bytearray(b'{"messages":[')
        self._asked = 0

    def ask(self, turn: int) -> bytes:
        """Returns the body of a turn: the history, the answers in it, and the turn's question."""
        if turn:
            self._say_answer(turn - 1)
            self._say_question(turn)
        else:
            self._begin()
        return bytes(self._said) + b"]}"

    def _begin(self) -> None:
        session = self._session
        heads = b"".join(map(_head_text, session.heads))
        if session.heads and session.head_role == "system":
            self._say(b"system", heads)
            heads = b""
        tokens = session.history or (session.turns[0].prompt_tokens - session.head_tokens,)
        for place, length in enumerate(tokens):
            text = self._write(place, length)
            self._say(b"assistant" if place % 2 else b"user", heads + text if not place else text)
        self._asked = len(tokens)

    def _say_answer(self, turn: int) -> None:
        self._say(b"assistant", self._write(self._asked, self._session.turns[turn].output_tokens))
        self._asked += 1

    def _say_question(self, turn: int) -> None:
        before, asked = self._session.turns[turn - 1 : turn + 1]
        tokens = asked.prompt_tokens - before.prompt_tokens - before.output_tokens
        self._say(b"user", self._write(self._asked, tokens))
        self._asked += 1

    def _write(self, place: int, tokens: int) -> bytes:
        chars = round(tokens * self._session.chars_per_token)
        return make_text(b"%d.%d" % (self._session.owner, place), chars)

    def _say(self, role: bytes, text: bytes) -> None:
        comma = b"" if self._said.endswith(b"[") else b","
        self._said += b'%b{"role":"%b","content":"%b"}' % (comma, role, text)


@lru_cache(maxsize=4096)
def _head_text(head: CommonText) -> bytes:
    return make_text(b"all.%d" % head.text, round(head.tokens * head.chars_per_token))


def make_text(name: bytes, chars: int) -> bytes:
    """Returns so many characters, which begin with the name that tells this text from others."""
    pool = _pool()
    start = crc32(name) % max(1, _POOL_BYTES - chars)
    text = b"%b %b" % (name, pool[start : start + chars])
    while len(text) < chars:
        text += pool
    return text[:chars]


@lru_cache(maxsize=1)
def _pool() -> bytes:
    return Random(0).randbytes(_POOL_BYTES).translate(_LETTERS)  # noqa: S311  # no secret
