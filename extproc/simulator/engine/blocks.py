"""The KV cache of an engine, by the block: which blocks are in use, cached, or blank."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence, Sized
from typing import Protocol, TypeVar

from xxhash import xxh3_64_intdigest

from extproc.simulator.engine.records import BlockRemoved, EventSink

Names_contra = TypeVar("Names_contra", bound=Sized, contravariant=True)


def hash_blocks(token_ids: Sequence[int], block_size: int, extra_key: str = "") -> tuple[int, ...]:
    """Returns one 64-bit hash per full block of `token_ids`.

    Each chains its parent's hash, so equal hashes mean equal prefixes. `extra_key` (adapter and
    cache salt) separates what must not be shared.
    """
    tokens = array("Q", token_ids).tobytes()
    width = 8 * block_size
    hashes, parent = [], xxh3_64_intdigest(extra_key.encode())
    for start in range(0, len(tokens) - width + 1, width):
        parent = xxh3_64_intdigest(tokens[start : start + width], seed=parent)
        hashes.append(parent)
    return tuple(hashes)


class KvCache(Protocol[Names_contra]):
    """What an engine needs of its KV cache; `Names` say which blocks a prompt and its output have."""

    size: int

    @property
    def free(self) -> int: ...

    def match(self, names: Names_contra, limit: int) -> tuple[int, int]: ...

    def share(self, names: Names_contra, stop: int) -> None: ...

    def reserve(self, count: int) -> None: ...

    def seal(self, names: Names_contra, start: int, stop: int) -> None: ...

    def release(self, names: Names_contra, shared: int, private: int) -> None: ...

    def forget(self) -> None: ...

    def clear(self) -> bool: ...


# Which block goes when one is needed. The rules are vLLM's (0.32):
#
# - A block's identity chains its parent's, its tokens and extra keys (adapter, salt). So a hit is a
#   prefix, contiguous from the start, of whole blocks.
# - Blocks of running requests cannot be evicted. When the last user of a block leaves, it becomes
#   idle: free, but its content can still be found.
# - Blocks without content are taken first, then the idle one that was used longest ago.
# - Of a request that leaves, the tail is put into that order before the head. A prefix without its
#   tail is still worth something, a tail without its prefix nothing.
#
# `OrderedDict` is the LRU order: leaving appends, eviction pops the front, a hit removes. What must
# hold: blank + idle + in use = `size`, and a block is in `_idle` or in `_users`, never in both.
# `runs.py` keeps the same rules by whole texts instead of by blocks, for fleets; a test runs both
# beside each other.
class BlockCache:
    """Counts `size` blocks; remembers the contents of those that have an identity, a chained hash.

    A block is blank (free, no content), idle (free, its content reusable), shared (in use,
    reusable, by so many requests), or private (in use, no identity yet). Blank blocks are taken
    first, then idle ones are evicted, least recently used first, as vLLM 0.32 does. All operations
    cost O(1) per block.

    Of two blocks with the same content vLLM keeps both until they are freed. Here the second joins
    the first and its own becomes blank: the hits are the same, the use at most a block per request
    lower.
    """

    __slots__ = ("_blank", "_idle", "_sink", "_users", "size")

    def __init__(self, size: int, sink: EventSink | None = None) -> None:
        self.size = size
        self._blank = size
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._users: dict[int, int] = {}
        self._sink = sink

    def __repr__(self) -> str:
        return f"<BlockCache of {self.size}: {self.free} free, {len(self._idle)} of them cached>"

    @property
    def free(self) -> int:
        """How many blocks can be taken: blank and idle ones."""
        return self._blank + len(self._idle)

    def match(self, names: Sequence[int], limit: int) -> tuple[int, int]:
        """Returns how many of a prompt's first `limit` blocks are cached, and how many of these are idle."""
        hits = idle = 0
        for block in names[:limit]:
            if block in self._idle:
                idle += 1
            elif block not in self._users:
                break
            hits += 1
        return hits, idle

    def share(self, names: Sequence[int], stop: int) -> None:
        """Uses the first `stop` blocks for one more request; `KeyError` if one is not cached."""
        for block in names[:stop]:
            users = self._users.get(block, 0)
            if not users:
                del self._idle[block]
            self._users[block] = users + 1

    def reserve(self, count: int) -> None:
        """Takes free blocks as private ones; the caller makes sure that there are enough."""
        blank = min(count, self._blank)
        self._blank -= blank
        for _ in range(count - blank):
            evicted, _none = self._idle.popitem(last=False)
            if self._sink:
                self._sink(BlockRemoved((evicted,)))

    def seal(self, names: Sequence[int], start: int, stop: int) -> None:
        """Gives private blocks their identity: they are shared from now on, by their owner first."""
        for block in names[start:stop]:
            if block in self._users or block in self._idle:
                self.share((block,), 1)
                self._blank += 1
            else:
                self._users[block] = 1

    def release(self, names: Sequence[int], shared: int, private: int) -> None:
        """Ends one request's use of its blocks; the tail is evicted before the head."""
        self._blank += private
        for block in reversed(names[:shared]):
            users = self._users[block] - 1
            if users:
                self._users[block] = users
            else:
                del self._users[block]
                self._idle[block] = None

    def forget(self) -> None:
        """Drops the contents of all idle blocks."""
        self._blank += len(self._idle)
        self._idle.clear()

    def clear(self) -> bool:
        """Forgets all contents; returns whether it could: vLLM refuses while a block is in use."""
        if self.free < self.size:
            return False
        self.forget()
        return True
