"""A prompt as a chain of blocks: what tells how much of it one endpoint has seen. Pure: text in, hashes out.

vLLM names a block of tokens by a hash of its parent's name and its own content, so equal names mean equal
prefixes. Here the same is done with text: tokens would need the model's tokenizer, and cost far more.
"""

# How a prompt is cut, and why:
#
# - By bytes of UTF-8, not by characters: the bytes of a token vary less from script to script.
# - Every `BLOCK_BYTES`, so that two prompts share the blocks of what they have in common. Shorter blocks find
#   more of it and cost memory and time by as much.
# - Where the user first speaks: what stands before is the operator's, and many chats begin with it.
# - Where the model began to speak. There an earlier request of the same conversation ended, so its whole
#   chain is the head of this one's, to the byte; without these cuts, up to a block of each would be lost.
# - Where the prompt ends, for the same reason, unless it is bare text, which may go on anywhere.

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from extproc.router.routing.prompt.turns import TURN_START, TURN_TEXT

BLOCK_BYTES: Final = 1_024

# A shorter rest makes its last block longer instead: tiny blocks cost as much memory as any.
_REST_BYTES: Final = 256

# A shorter text before the user's first is no root: it tells no tenant from another.
ROOT_BYTES: Final = 256

# What a model says of its own: answers, and what the Responses API lists beside them.
_SPOKEN: Final = frozenset({"assistant", "function_call", "reasoning"})


class Blocks(Protocol):
    """What of a chain other gateways are told, and all that an index needs of it."""

    @property
    def hashes(self) -> Sequence[int]:
        """First to last."""

    def bytes_between(self, start: int, stop: int) -> int:
        """Bytes of the blocks from `start` to `stop`."""


class Chain(Struct, frozen=True):
    """A prompt's blocks, first to last: their hashes, and where each ends, in bytes of the prompt.

    `reaches` tells, for each block, how much of the prompt an endpoint has that served a request up to
    there: the block's end, or the end of the answer that it gave then. `size` counts the whole prompt.
    `home` is the same for all turns of a conversation; `answered` is the end of its last answer so far, 0
    in the first turn. `root` names what stands before the user first speaks, and `rooted` is its end, 0
    where that is too short to count. `question` names what the user says first, whatever stands before it,
    and `answers` counts the model's answers so far.
    """

    hashes: Sequence[int]
    ends: Sequence[int]
    reaches: Sequence[int]
    size: int
    home: int
    answered: int
    root: int = 0
    rooted: int = 0
    question: int = 0
    answers: int = 0

    def __len__(self) -> int:
        return len(self.hashes)

    def reach(self, blocks: int) -> int:
        """Bytes of the prompt that an endpoint has which holds the first `blocks` of it."""
        return self.reaches[blocks - 1] if blocks else 0

    def bytes_between(self, start: int, stop: int) -> int:
        return self._end(stop) - self._end(start)

    def _end(self, blocks: int) -> int:
        return self.ends[blocks - 1] if blocks else 0


def chain_of(turns: Iterable[tuple[str, str]], seed: int) -> Chain:
    """Cuts and hashes a prompt: the role and the text of each turn, in order; bare text has no role.

    `seed` keeps apart what shares no cache.
    """
    cutter, reaches = _Cutter(seed), list[int]()
    root = rooted = home = size = answered = answers = 0
    question, uncut = list[bytes](), list[bytes]()
    is_chat = was_spoken = is_asked = False
    for role, text in turns:
        is_spoken = role in _SPOKEN
        if is_spoken and not was_spoken:
            cutter.cut(b"".join(uncut))
            uncut.clear()
            answers += 1
        elif was_spoken and not is_spoken:
            home, answered = _answer(cutter, reaches, home, size), size
        elif role == "user" and not is_asked and not answers:
            is_asked = True
            question.clear()
            if size >= ROOT_BYTES:
                cutter.cut(b"".join(uncut))
                uncut.clear()
                root, rooted = cutter.hashes[-1], size
        data = (f"{TURN_START}{role}{TURN_TEXT}{text}" if role else text).encode(errors="surrogatepass")
        uncut.append(data)
        if not answers:
            question.append(data)
        is_chat = is_chat or (bool(role) and not size)
        size += len(data)
        was_spoken = is_spoken
    if was_spoken:
        home, answered = _answer(cutter, reaches, home, size), size
    hashes = cutter.hashes
    cutter.cut(b"".join(uncut), is_open=not is_chat)
    reaches += cutter.ends[len(reaches) :]
    if hashes:
        home = home or hashes[-1 if is_chat else 0]
    named = xxh3_64_intdigest(b"".join(question), seed)
    return Chain(hashes, cutter.ends, reaches, size, home or seed, answered, root, rooted, named, answers)


def _answer(cutter: "_Cutter", reaches: list[int], home: int, end: int) -> int:
    """An answer ends at `end`: who has what stands before it has it, too. Returns the conversation's home."""
    reaches += cutter.ends[len(reaches) :]
    if not reaches:
        return home
    reaches[-1] = end
    return home or cutter.hashes[-1]


class _Cutter:
    """Cuts a prompt's bytes from the front, and hashes what it cuts."""

    __slots__ = ("_parent", "_start", "ends", "hashes")

    def __init__(self, seed: int) -> None:
        self.hashes: list[int] = []
        self.ends: list[int] = []
        self._parent = seed
        self._start = 0

    def cut(self, data: bytes, *, is_open: bool = False) -> None:
        """Goes on with `data`; an open end that fills no block is left out."""
        parent, start, hashes, size = self._parent, self._start, self.hashes, len(data)
        last = max(0, size - (0 if is_open else _REST_BYTES)) // BLOCK_BYTES * BLOCK_BYTES
        for begin in range(0, last, BLOCK_BYTES):
            parent = xxh3_64_intdigest(data[begin : begin + BLOCK_BYTES], parent)
            hashes.append(parent)
        self.ends += range(start + BLOCK_BYTES, start + last + 1, BLOCK_BYTES)
        if last < size and not is_open:
            parent = xxh3_64_intdigest(data[last:], parent)
            hashes.append(parent)
            self.ends.append(start + size)
        self._parent, self._start = parent, start + size
