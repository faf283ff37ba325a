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

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from extproc.router.routing.prompt.turns import TURN_START, TURN_TEXT

BLOCK_BYTES: Final = 256

# A shorter rest makes its last block longer instead: tiny blocks cost as much memory as any.
_REST_BYTES: Final = 64

_TURN: Final = TURN_START.encode()
_ASKED: Final = f"{TURN_START}user{TURN_TEXT}".encode()
# What a model says of its own: answers, and what the Responses API lists beside them.
_SPOKEN: Final = tuple(
    f"{TURN_START}{role}{TURN_TEXT}".encode() for role in ("assistant", "function_call", "reasoning")
)


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


def chain_of(text: str, seed: int) -> Chain:
    """Cuts and hashes a prompt as `Prompt.head` renders it; `seed` keeps apart what shares no cache."""
    data = text.encode(errors="surrogatepass")
    cutter = _Cutter(data, seed)
    root, rooted = _cut_root(data, cutter)
    reaches: list[int] = []
    answered, home, answers, asked = 0, 0, 0, len(data)
    for stop, answered in _answers(data):
        answers += 1
        asked = min(asked, stop)
        cutter.cut(stop)
        reaches += cutter.ends[len(reaches) :]
        if reaches:
            reaches[-1] = answered
            home = home or cutter.hashes[-1]
    hashes, is_chat = cutter.hashes, data.startswith(_TURN)
    cutter.cut(len(data), is_open=not is_chat)
    reaches += cutter.ends[len(reaches) :]
    if hashes:
        home = home or hashes[-1 if is_chat else 0]
    question = xxh3_64_intdigest(data[max(0, data.find(_ASKED)) : asked], seed)
    return Chain(
        hashes, cutter.ends, reaches, len(data), home or seed, answered, root, rooted, question, answers
    )


def _cut_root(data: bytes, cutter: "_Cutter") -> tuple[int, int]:
    stop = data.find(_ASKED)
    if stop < BLOCK_BYTES:
        return 0, 0
    cutter.cut(stop)
    return cutter.hashes[-1], stop


class _Cutter:
    """Cuts a prompt's bytes from the front, and hashes what it cuts."""

    def __init__(self, data: bytes, seed: int) -> None:
        self.hashes: list[int] = []
        self.ends: list[int] = []
        self._data = data
        self._parent = seed
        self._start = 0

    def cut(self, stop: int, *, is_open: bool = False) -> None:
        """Goes on to `stop`; an open end that fills no block is left out."""
        data, parent, start, hashes = self._data, self._parent, self._start, self.hashes
        last = start + max(0, stop - start - (0 if is_open else _REST_BYTES)) // BLOCK_BYTES * BLOCK_BYTES
        for begin in range(start, last, BLOCK_BYTES):
            parent = xxh3_64_intdigest(data[begin : begin + BLOCK_BYTES], parent)
            hashes.append(parent)
        self.ends += range(start + BLOCK_BYTES, last + 1, BLOCK_BYTES)
        if last < stop and not is_open:
            parent = xxh3_64_intdigest(data[last:stop], parent)
            hashes.append(parent)
            self.ends.append(stop)
        self._parent, self._start = parent, stop


def _answers(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the model began to speak and where it ended, each time."""
    at = data.find(_TURN)
    begun = -1
    while at >= 0:
        is_spoken = data.startswith(_SPOKEN, at)
        if is_spoken and begun < 0:
            begun = at
        elif not is_spoken and begun >= 0:
            yield begun, at
            begun = -1
        at = data.find(_TURN, at + 1)
    if begun >= 0:
        yield begun, len(data)
