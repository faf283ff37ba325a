"""Chats that were read before: of the next turn only what is new is read, cut and hashed. Pure."""

# A next turn sends everything again: the messages of the turn before, byte by byte, then the answer
# and what the user says to it. So a chat's chain is kept by a hash of its messages as they were
# written, and looked for by all of them, then by those before the last answer. What is found is
# what reading them would give.
#
# The seed, tools and what else the model reads before the messages are hashed, too. Not kept are
# large bodies, of which only parts are read, and chats that end with an answer: it may go on.

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from msgspec import Struct
from msgspec.json import Decoder
from xxhash import xxh3_64_intdigest

from extproc.router.routing.prompt.chain import Chain, chain_of
from extproc.router.routing.prompt.json_reader import LIMITS, MAX_ELEMENTS
from extproc.router.routing.prompt.parse import Prompt

# Each of two generations has so many blocks, of about 100 bytes; a chat counts as six more.
_GENERATION: Final = 100_000


class KnownChats:
    """The chains of the chats that were read last, 20 MB at most."""

    __slots__ = ("_blocks", "_old", "_young")

    def __init__(self) -> None:
        self._young: dict[int, Chain] = {}
        self._old: dict[int, Chain] = {}
        self._blocks = 0

    def read(self, prompt: Prompt, seed: int, chars: int) -> Chain:
        """The chain of the first `chars` characters; see `chain_of`."""
        *heads, messages = prompt.written(chars)
        end = messages.rfind(b"}") + 1
        if messages[end:].strip() != b"]":
            return chain_of(prompt.turns(chars), seed)
        seed_of_messages, has_heads = seed, any(heads)
        if has_heads:
            for head in heads:
                seed_of_messages = xxh3_64_intdigest(head, seed_of_messages)
        view = memoryview(messages)
        name = xxh3_64_intdigest(view[:end], seed_of_messages)
        known = self._find(name)
        if known is not None:
            return known
        start, stop = _last_answer(messages)
        before = self._find(xxh3_64_intdigest(view[:stop], seed_of_messages)) if start else None
        if before is not None:
            later = b"[" + messages[start:]
            chain = chain_of(
                _read_plain(prompt, later) or prompt.later_turns(later, chars), seed, before
            )
        else:
            plain = None if has_heads else _read_plain(prompt, messages)
            chain = chain_of(plain or prompt.turns(chars), seed)
        if chain.ends and chain.ends[-1] == chain.size > chain.answered_bytes:
            self._keep(name, chain)
        return chain

    def _find(self, name: int) -> Chain | None:
        young = self._young.get(name)
        return self._old.get(name) if young is None else young

    def _keep(self, name: int, chain: Chain) -> None:
        self._young[name] = chain
        self._blocks += 6 + len(chain)
        if self._blocks >= _GENERATION:
            self._young, self._old, self._blocks = {}, self._young, 0


# Most chats are roles and texts alone: typed, they are read without a dictionary for each message.
class _Message(Struct, forbid_unknown_fields=True, gc=False):
    role: str
    content: str


_MESSAGES: Final = Decoder(list[_Message])
_TURN: Final = attrgetter("role", "content")


def _read_plain(prompt: Prompt, messages: bytes) -> Iterable[tuple[str, str]] | None:
    """The turns of messages that are not long, each of a role and a text and nothing else; else `None`."""
    if len(messages) > LIMITS.small_bytes or prompt.leaves_out_of(messages):
        return None
    try:
        return map(_TURN, _MESSAGES.decode(messages)[:MAX_ELEMENTS])
    except ValueError:
        return None


def _last_answer(messages: bytes) -> tuple[int, int]:
    """Where the last of many messages by the model starts, and where the one before it ends; else 0, 0."""
    role = messages.rfind(b'"assistant"')
    start = messages.rfind(b"{", 0, max(role, 0))
    end = messages.rfind(b"}", 0, max(start, 0)) + 1
    is_role = messages[start + 1 : role].translate(None, b" \t\r\n") == b'"role":'
    return (start, end) if end and is_role and messages[end:start].strip() == b"," else (0, 0)
