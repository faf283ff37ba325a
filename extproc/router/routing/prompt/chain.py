"""A prompt as a chain of blocks, to find how much of it an endpoint has. Pure: text in, hashes out.

vLLM names a block of tokens by a hash of its parent's name and its own content, so equal names mean
equal prefixes. Here the same is done with text: tokens would need the model's tokenizer, and cost
far more.
"""

# How a prompt is cut, and why:
#
# - By bytes of UTF-8, not by characters: the bytes of a token vary less from script to script.
# - Every `BLOCK_BYTES`, so that two prompts share the blocks of what they have in common. Shorter
#   blocks find more of it and cost memory and time by as much.
# - Where the user first speaks: what stands before is the operator's, and many chats begin with it.
# - Where the model began to speak. There an earlier request of the same conversation ended, so its
#   whole chain is the head of this one's, to the byte; without these cuts, up to a block of each
#   would be lost.
# - Where the prompt ends, for the same reason, unless it is bare text, which may go on anywhere.
# - Behind a picture, and any other medium: its few bytes of digest are hundreds of tokens to an engine.
#   So its block is longer by as many tokens of four bytes as it is estimated to have.
#
# All else counts in bytes, and the endpoints' metrics say how many a token has. A token id is four bytes,
# and a medium's token is, so these draw that figure towards the 4 that is near the truth for text:
# where half of a pool's tokens are ids, and a token of the rest has 3.3 bytes (code), both are off by a
# tenth. In decimals an id has about seven.

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct
from xxhash import xxh3_64_intdigest

from extproc.router.routing.prompt.media import Medium
from extproc.router.routing.prompt.turns import TOKEN_BYTES, TURN_START, TURN_TEXT

BLOCK_BYTES: Final = 1_024

# A shorter rest makes its last block longer instead: tiny blocks cost as much memory as any.
_REST_BYTES: Final = 256

# A shorter text before the user's first is no root: it is the same for many tenants.
ROOT_BYTES: Final = 256

# Roles and kinds of what a model wrote: answers, and what the Responses API lists beside them.
_SPOKEN: Final = frozenset({"assistant", "function_call", "reasoning"})


class Blocks(Protocol):
    """The part of a chain that is sent to other gateways, and all that an index needs of it."""

    @property
    def hashes(self) -> Sequence[int]:
        """First to last."""

    def bytes_between(self, start: int, stop: int) -> int:
        """Bytes of the blocks from `start` to `stop`."""


# Many thousands stay, and no cycle goes through them. So the garbage collector follows neither them
# nor, as tuples of numbers, what they hold.
class Chain(Struct, frozen=True, gc=False):
    """A prompt's blocks, first to last: their hashes, and where each ends, in bytes of the prompt.

    `cached_ends` has, for each block, how much of the prompt an endpoint has that served a request
    up to there: the block's end, or the end of the answer that it gave then. `size` counts the
    whole prompt. `home` is the same for all turns of a conversation; `answered_bytes` is the end of
    its last answer so far, 0 in the first turn. `root` names what stands before the user first
    speaks, and `root_bytes` is its end, 0 where that is too short to count. `question` names what
    the user says first, whatever stands before it, and `answers` counts the model's answers so far.
    """

    hashes: Sequence[int]
    ends: Sequence[int]
    cached_ends: Sequence[int]
    size: int
    home: int
    answered_bytes: int
    root: int = 0
    root_bytes: int = 0
    question: int = 0
    answers: int = 0

    def __len__(self) -> int:
        return len(self.hashes)

    def cached_bytes(self, blocks: int) -> int:
        """Bytes of the prompt that an endpoint has which holds the first `blocks` of it."""
        return self.cached_ends[blocks - 1] if blocks else 0

    def bytes_between(self, start: int, stop: int) -> int:
        return (self.ends[stop - 1] if stop else 0) - (self.ends[start - 1] if start else 0)


_NOTHING: Final = Chain((), (), (), 0, 0, 0)


def chain_of(
    turns: Iterable[tuple[str, str | bytes]], seed: int, before: Chain = _NOTHING
) -> Chain:
    """Cuts and hashes a prompt: the role and the text of each turn, in order.

    Without a role, a text is bare, or goes on with the turn before. `seed` keeps apart what shares
    no cache. `before` is the chain of the turns before these, of which the first is an answer.
    """
    pieces, cuts, extras = list[bytes](), dict[int, int](), dict[int, int]()
    size, root_bytes = before.size, before.root_bytes
    answers, answered_bytes = before.answers, before.answered_bytes
    start = first = beyond = 0
    question_at = answer_at = -1
    is_chat, was_spoken = size > 0, False
    for role, text in turns:
        is_spoken = role in _SPOKEN
        if is_spoken is not was_spoken and role:
            was_spoken = is_spoken
            if is_spoken:
                answers, start, first = answers + 1, size, first or size
                answer_at = size - beyond if answer_at < 0 else answer_at
            else:
                answered_bytes = size
            cuts[start] = size
        elif question_at < 0 and not answers and role == "user":
            question_at = size - beyond
            if size >= ROOT_BYTES:
                root_bytes = cuts[size] = size
        is_chat = is_chat or (bool(role) and not size)
        head = f"{TURN_START}{role}{TURN_TEXT}" if role else ""
        data = (
            head.encode("utf-8", "surrogatepass") + text
            if isinstance(text, bytes)
            else (head + text).encode("utf-8", "surrogatepass")
        )
        pieces.append(data)
        size += len(data)
        if isinstance(text, Medium):
            extra = TOKEN_BYTES * text.tokens
            beyond += extra
            size += extra
            cuts[size], extras[size] = size, extra
    if was_spoken:
        answered_bytes = cuts[start] = size
    written = b"".join(pieces)
    hashes, ends, cached_ends = _cut(written, cuts, extras, seed, before, is_open=not is_chat)
    question, home = before.question, before.home
    if not home:
        said = written[max(question_at, 0) : len(written) if answer_at < 0 else answer_at]
        question = xxh3_64_intdigest(said, seed)
        home = hashes[ends.index(first) if first else -is_chat] if hashes else 0
    root = hashes[ends.index(root_bytes)] if root_bytes else 0
    return Chain(
        hashes,
        ends,
        cached_ends,
        size,
        home or seed,
        answered_bytes,
        root,
        root_bytes,
        question,
        answers,
    )


def _cut(
    written: bytes,
    cuts: Mapping[int, int],
    extras: Mapping[int, int],
    seed: int,
    before: Chain,
    *,
    is_open: bool,
) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
    """Hashes a prompt block by block; returns the hashes, where each block ends, and the `cached_ends`.

    `cuts` are where blocks end whatever their length, and where the answers to these end; `extras`
    are bytes before a cut that were not written. An open end that fills no block is left out.
    """
    hashes, ends, cached_ends = [*before.hashes], [*before.ends], [*before.cached_ends]
    parent, start = hashes[-1] if hashes else seed, before.size
    offset, size = start, start + len(written) + sum(extras.values())
    for cut, answer_end in (*cuts.items(), (size, size)):
        stop_at = cut - (extras.get(cut, 0) if cut > start else 0)
        least = BLOCK_BYTES if is_open and cut == size else BLOCK_BYTES + _REST_BYTES
        while stop_at - start >= least:
            stop = start + BLOCK_BYTES
            hashes.append(
                parent := xxh3_64_intdigest(written[start - offset : stop - offset], parent)
            )
            ends.append(stop)
            start = stop
        if start < cut and least > BLOCK_BYTES:
            hashes.append(
                parent := xxh3_64_intdigest(written[start - offset : stop_at - offset], parent)
            )
            ends.append(cut)
            start = cut
        offset += cut - stop_at
        cached_ends += ends[len(cached_ends) :]
        if answer_end > cut and cached_ends:
            cached_ends[-1] = answer_end
    return tuple(hashes), tuple(ends), tuple(cached_ends)
