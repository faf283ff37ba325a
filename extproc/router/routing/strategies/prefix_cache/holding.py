"""The blocks that one endpoint holds, most likely, in the order of eviction; see `prefix_index`. Pure."""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence
from math import exp
from typing import Final

from msgspec import Struct

from extproc.router.routing.prompt.chain import Chain

# An endpoint's index costs at most: one entry for so many bytes of its capacity, about 350 bytes of
# memory each. What a chat's cuts need is less: its blocks have 170 bytes and more on average.
ENTRY_BYTES: Final = 128

# Of blocks that were used this long ago, a third will be needed again soon.
_EVICT_S: Final = 10.0


class Holding:
    """The blocks that one endpoint holds: those of open requests, and idle ones in order of eviction."""

    __slots__ = (
        *("address", "alone", "capacity", "idle", "idle_bytes"),
        *("is_gone", "most_entries", "name", "pinned", "pinned_bytes"),
    )

    def __init__(self, name: str, address: str, capacity: int) -> None:
        self.name = name
        self.address = address
        self.capacity = capacity
        self.most_entries = max(1, capacity // ENTRY_BYTES)
        self.is_gone = False
        self.alone = (self,)
        self.idle: OrderedDict[int, float] = OrderedDict()  # by when each was last used
        self.pinned: dict[int, int] = {}  # by how many requests
        self.idle_bytes = self.pinned_bytes = 0

    def __len__(self) -> int:
        return len(self.idle) + len(self.pinned)

    def __contains__(self, block: int) -> bool:
        return block in self.pinned or block in self.idle

    def depth(self, hashes: Sequence[int], matched: int) -> int:
        """How many blocks of a chain it holds, of the first `matched` ones. O(log matched)."""
        idle, pinned = self.idle, self.pinned
        if matched and (hashes[matched - 1] in idle or hashes[matched - 1] in pinned):
            return matched
        low, high = 0, matched - 1
        while low < high:
            middle = (low + high) // 2
            if hashes[middle] in pinned or hashes[middle] in idle:
                low = middle + 1
            else:
                high = middle
        return low

    def pin(self, chain: Chain, blocks: int) -> int:
        """Counts one more request on the first `blocks` of a chain; returns how many of them it held.

        That is all of them, unless a faulty peer sent blocks without those that lead to them.
        """
        hashes, idle, pinned = chain.hashes, self.idle, self.pinned
        first = block = 0
        # A request pins a block and all that lead to it, so the pinned ones come first.
        for block in hashes[:blocks]:
            if block not in pinned:
                break
            pinned[block] += 1
            first += 1
        try:
            for block in hashes[first:blocks]:
                del idle[block]
                pinned[block] = 1
        except KeyError:
            blocks = hashes.index(block)
        moved = chain.bytes_between(first, blocks)
        self.idle_bytes -= moved
        self.pinned_bytes += moved
        return blocks

    def evicts(self, size: int, now: float) -> float:
        """Bytes that `size` more would push out, weighed by how soon they are missed: `exp(-age / 10 s)`.

        0 where there is room for all of them.
        """
        if self.idle_bytes + self.pinned_bytes + size <= self.capacity:
            return 0.0
        age_s = now - self.idle[next(iter(self.idle))] if self.idle else 0.0
        return size * exp(-age_s / _EVICT_S)

    def unpin(self, chain: Chain, blocks: int, now: float) -> None:
        hashes, idle, pinned = chain.hashes, self.idle, self.pinned
        first = blocks
        # The tail first: it is evicted before the head. Those that no other request pins stand
        # last.
        for block in reversed(hashes[:blocks]):
            if pinned[block] > 1:
                pinned[block] -= 1
            else:
                del pinned[block]
                idle[block] = now
                first -= 1
        moved = chain.bytes_between(first, blocks)
        self.pinned_bytes -= moved
        self.idle_bytes += moved

    def touch(self, hashes: Sequence[int], blocks: int, now: float) -> None:
        """Makes the first `blocks` of a chain, all of which it holds, young again."""
        idle, first = self.idle, 0
        if self.pinned:
            # Likewise: the pinned ones stand first, and are not evicted.
            first = bisect_left(range(blocks), True, key=lambda number: hashes[number] in idle)
        # The tail first. Without a loop of our own: each request of all gateways comes here twice.
        touched = hashes[first:blocks]
        try:
            deque(map(idle.move_to_end, reversed(touched)), maxlen=0)
        except KeyError:
            return  # not a chain's blocks, but made up by a faulty peer
        idle.update(dict.fromkeys(touched, now))


class Taken(Struct, frozen=True):
    """What a request has in an index: `blocks` of its chain, of which `had` were there before."""

    had: int
    blocks: int
