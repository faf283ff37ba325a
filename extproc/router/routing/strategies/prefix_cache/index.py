"""Which endpoint holds which blocks: an estimate of each KV cache from the prompts that were sent there.

Nothing here decides. Time comes in as an argument.
"""

# The rules, and whose they are:
#
# - vLLM keeps blocks of running requests, and evicts the others least recently used first, the tail
#   of a sequence before its head. So does a `Holding`: with a block it has all that lead to it.
#   That is what makes a match found by bisection a match of everything before it.
# - It is written in the same step as the pick, not when the answer comes: of a burst of one new
#   prefix every request finds the first one's blocks.
# - The engine's own index is never read. Where it forgets earlier than we think, a request pays for
#   a prefill that was not predicted. Where we forget earlier than it does, prompts leave warm
#   endpoints for cold ones, and that costs more (measured: a quarter too small, 24 % more time to
#   the first token; half, five times). So blocks of open requests never take all the room: a tenth
#   of it is always the others'.

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from math import exp, inf
from typing import Final

from msgspec import Struct

from extproc.router.routing.prompt.chain import Blocks, Chain

# An endpoint's index costs at most: one entry for so many bytes of its capacity, about 350 bytes of
# memory each. What a chat's cuts need is less: its blocks have 170 bytes and more on average.
ENTRY_BYTES: Final = 128
# A third of a millisecond.
_FORGOTTEN_AT_ONCE: Final = 256
# Longer is forever: who asks will have changed by then. With a minute, agents that all begin on empty
# caches crowd on the first endpoints (75 ms to the first token for 62); with a quarter of an hour
# documents of 50,000 tokens are copied for nothing (86 ms for 35; simulated).
_FOREVER_S: Final = 300.0
# Of a cache; the next block may not fit.
_FULL: Final = 0.95


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

    @property
    def fill(self) -> float:
        return (self.idle_bytes + self.pinned_bytes) / max(1, self.capacity)

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

    def evicts(self, size: int, now: float, fades_s: float) -> float:
        """Bytes that `size` more would push out, weighed by how soon they are missed: `exp(-age / fades_s)`.

        0 where there is room for all of them.
        """
        if self.idle_bytes + self.pinned_bytes + size <= self.capacity:
            return 0.0
        age_s = now - self.idle[next(iter(self.idle))] if self.idle else 0.0
        return size * exp(-age_s / fades_s)

    def life_s(self, now: float) -> float:
        """For how long what is evicted next was not used; infinite where there is room."""
        idle = self.idle
        return now - idle[next(iter(idle))] if idle and self.fill > _FULL else inf

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


# Most entries of all endpoints together, whatever their capacities: 1 GB.
MOST_ENTRIES: Final = 2_700_000

# Rates are averaged over so many seconds: a few requests of a prefix worth caching.
_RATE_S: Final = 60.0


class Rate:
    """How much comes per second, the last minute counting most."""

    __slots__ = ("_at", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._at = 0.0

    def add(self, amount: float, now: float) -> None:
        self._sum = self._sum * exp((self._at - now) / _RATE_S) + amount
        self._at = now

    def per_s(self, now: float) -> float:
        return self._sum * exp((self._at - now) / _RATE_S) / _RATE_S


_SEVERAL: Final = -1  # no block's hash


# Not followed by the garbage collector: there are millions, and no cycle goes through them.
class _Entry(Struct, gc=False):
    holders: tuple[Holding, ...]
    length: int
    since: float
    heir: int = 0  # the block that came after it, or that several did


class PrefixIndex:
    """All endpoints' holdings, and the blocks by what they are.

    `capacity` is how many bytes of prompts an endpoint's cache holds, where `resize` has set no
    other. Memory is bounded by `capacity / ENTRY_BYTES` entries an endpoint, and by `MOST_ENTRIES`
    over all; the tails of open requests beyond that are left out.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._default = capacity
        self._life_s, self._looked_s = _FOREVER_S, -inf
        self._room = 0
        self._holdings: dict[str, Holding] = {}
        self._blocks: dict[int, _Entry] = {}
        # Blocks after which prompts went different ways while others had them open, and how often.
        self._forks: dict[int, Rate] = {}
        self._new_bytes = Rate()

    def __len__(self) -> int:
        return len(self._blocks)

    def holding(self, name: str) -> Holding | None:
        return self._holdings.get(name)

    def follow(self, addresses: dict[str, str]) -> None:
        """Keeps what these endpoints, by name, hold at these addresses, and forgets everything else."""
        for name, holding in [*self._holdings.items()]:
            if addresses.get(name) != holding.address:
                self._forget(holding)
        for name, address in addresses.items():
            if name not in self._holdings:
                self._holdings[name] = Holding(name, address, self._default)
        self._measure()

    def lose(self, name: str) -> None:
        """Forgets what an endpoint holds: it did, too."""
        holding = self._holdings.get(name)
        if holding is not None and len(holding):
            self._forget(holding)
            self._holdings[name] = Holding(name, holding.address, holding.capacity)
            self._measure()

    def lose_idle(self, name: str) -> Iterator[None]:
        """The same but for what open requests take, a little in each step."""
        holding = self._holdings.get(name)
        blocks = () if holding is None else (*holding.idle,)
        for at in range(0, len(blocks), _FORGOTTEN_AT_ONCE):
            # It may have gone meanwhile.
            if holding is not None and self._holdings.get(name) is holding:
                self.evict(holding, blocks[at : at + _FORGOTTEN_AT_ONCE])
            yield

    def evict(self, holding: Holding, blocks: Iterable[int]) -> None:
        """Forgets those of the blocks that an endpoint holds, but for what open requests take."""
        for block in [*filter(holding.idle.__contains__, blocks)]:
            self._evict(holding, block)

    def resize(self, name: str, capacity: int) -> None:
        """Takes the size of one endpoint's cache, in bytes of prompts."""
        holding = self._holdings.get(name)
        if holding is not None and holding.capacity != capacity:
            holding.capacity = capacity
            self._measure()
            self._make_room(holding)

    def matched(self, hashes: Sequence[int]) -> int:
        """How many blocks of a chain any endpoint holds. O(log n)."""
        blocks = self._blocks
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high) // 2
            if hashes[middle] in blocks:
                low = middle + 1
            else:
                high = middle
        return low

    def holders(
        self, hashes: Sequence[int], matched: int
    ) -> Iterator[tuple[int, Sequence[Holding]]]:
        """Yields the most blocks that any endpoint holds, and its holdings; then fewer, with theirs.

        A longer head of a chain has fewer holders, so each step is found by bisection.
        """
        blocks = self._blocks
        while matched:
            holders = blocks[hashes[matched - 1]].holders
            yield matched, holders
            low, high = 0, matched - 1
            while low < high:
                middle = (low + high) // 2
                found = blocks.get(
                    hashes[middle]
                )  # `None`: a faulty peer sent only what comes after it
                if found is not None and len(found.holders) > len(holders):
                    low = middle + 1
                else:
                    high = middle
            matched = low

    def forks(self, hashes: Sequence[int], matched: int) -> list[int]:
        """How many blocks lead to each fork on a chain's way: what stands before is shared with others."""
        forks = self._forks
        if forks.keys().isdisjoint(hashes):
            return []
        return [block + 1 for block in range(matched) if hashes[block] in forks]

    def copies(self, block: int) -> int:
        found = self._blocks.get(block)
        return len(found.holders) if found else 0

    def since(self, block: int) -> float:
        """When a block was first added; infinite if it is not there."""
        found = self._blocks.get(block)
        return found.since if found else inf

    def uses(self, block: int, now: float) -> float:
        """Requests per second that part from all before them at a fork, while one of those is open."""
        rate = self._forks.get(block)
        return rate.per_s(now) if rate else 0.0

    def life_s(self, now: float) -> float:
        """How long a block stays that nobody uses, looked at once a second.

        As long as what fits takes to come (Little's law), or less: in the cache that evicts
        soonest.
        """
        if now >= self._looked_s + 1:
            self._looked_s = now
            lives = [holding.life_s(now) for holding in self._holdings.values()]
            self._life_s = min(_FOREVER_S, self._room / (self._new_bytes.per_s(now) or 1), *lives)
        return self._life_s

    def is_full(self, now: float) -> bool:
        """Whether blocks are evicted within the time that rates are averaged over."""
        return self.life_s(now) < _RATE_S

    def insert(
        self, holding: Holding, chain: Chain, now: float, matched: int | None = None
    ) -> Taken:
        """Writes a chain down as one open request's, as far as there is room; `matched` of it is anywhere."""
        hashes = chain.hashes
        had = holding.pin(chain, holding.depth(hashes, len(hashes) if matched is None else matched))
        stop = min(len(hashes), had + max(0, holding.most_entries - len(holding.pinned)))
        if stop > had:
            self.evict(
                holding, hashes[had:stop]
            )  # a faulty peer sent them without what leads to them
            holding.pinned.update(dict.fromkeys(hashes[had:stop], 1))
            holding.pinned_bytes += self._add_blocks(holding, chain, had, stop, now, opener=holding)
            self._make_room(holding)
        return Taken(had, stop)

    def apply_peer_pick(self, holding: Holding, chain: Blocks, now: float) -> None:
        """Writes a chain down that another gateway sent there, without pinning it.

        No pin, because the peer's letter about its end may be lost.
        """
        hashes, idle = chain.hashes, holding.idle
        had = holding.depth(hashes, len(hashes))
        stop = min(len(hashes), had + max(0, holding.most_entries - len(holding.pinned)))
        if stop > had:
            # The tail first: it is evicted before the head.
            fresh = dict.fromkeys(reversed(hashes[had:stop]), now)
            has_some = any(map(idle.__contains__, fresh)) or any(
                map(holding.pinned.__contains__, fresh)
            )
            if has_some or len(fresh) < stop - had:
                return  # not a chain's blocks, but made up by a faulty peer
            idle.update(fresh)
            holding.idle_bytes += self._add_blocks(holding, chain, had, stop, now)
        holding.touch(hashes, had, now)
        if stop > had:
            self._make_room(holding)

    def release(self, holding: Holding, chain: Chain, taken: Taken, now: float) -> None:
        """Ends one request's use of what it took; the holding may be gone."""
        if not holding.is_gone:
            holding.unpin(chain, taken.blocks, now)
            self._make_room(holding)

    def withdraw(self, holding: Holding, chain: Chain, taken: Taken) -> None:
        """Removes the blocks of a request that the engine never read, unless others used them since."""
        if holding.is_gone:
            return
        for number in range(taken.blocks - 1, taken.had - 1, -1):
            block = chain.hashes[number]
            found = self._blocks.get(block)
            if block not in holding.idle or found is None or found.heir:
                return
            self._evict(holding, block)
            parent = self._blocks.get(chain.hashes[number - 1]) if number else None
            if parent is not None and parent.heir == block and block not in self._blocks:
                parent.heir = 0

    def _add_blocks(
        self,
        holding: Holding,
        chain: Blocks,
        start: int,
        stop: int,
        now: float,
        *,
        opener: Holding | None = None,
    ) -> int:
        """Adds the holding to the blocks from `start` to `stop`; returns their bytes."""
        hashes, blocks, alone = chain.hashes, self._blocks, holding.alone
        for number in range(start, stop):
            block = hashes[number]
            found = blocks.get(block)
            if found is None:
                blocks[block] = _Entry(alone, chain.bytes_between(number, number + 1), now)
                if number:
                    self._inherit(hashes[number - 1], block, opener, now)
            else:
                found.holders += alone
                # A faulty peer may send another length; eviction will subtract the first one.
                holding.idle_bytes += found.length - chain.bytes_between(number, number + 1)
        new_bytes = chain.bytes_between(start, stop)
        self._new_bytes.add(new_bytes, now)
        return new_bytes

    def _inherit(self, parent: int, block: int, opener: Holding | None, now: float) -> None:
        """Notes that a new block comes after another one: one more way from there, if others have that open.

        The request that brings it has it open at `opener`.
        """
        found = self._blocks[parent]
        if not found.heir:
            found.heir = block
        elif found.heir != block:
            found.heir = _SEVERAL
            if any(one.pinned.get(parent, 0) > (one is opener) for one in found.holders):
                self._forks.setdefault(parent, Rate()).add(1, now)

    def _make_room(self, holding: Holding) -> None:
        """Evicts idle blocks until the bound holds."""
        idle, room = holding.idle, holding.capacity - holding.pinned_bytes
        if room < holding.idle_bytes or len(idle) + len(holding.pinned) > holding.most_entries:
            room = max(room, holding.capacity // 10)
            while idle and (holding.idle_bytes > room or len(holding) > holding.most_entries):
                self._evict(holding, next(iter(idle)))

    def _evict(self, holding: Holding, block: int) -> None:
        del holding.idle[block]
        holding.idle_bytes -= self._blocks[block].length
        self._drop(holding, block)

    def _measure(self) -> None:
        """Updates what depends on the holdings and their capacities."""
        holdings = self._holdings.values()
        share = MOST_ENTRIES // max(1, len(holdings))
        for holding in holdings:
            holding.most_entries = max(1, min(holding.capacity // ENTRY_BYTES, share))
        self._room = sum(holding.capacity for holding in holdings)
        self.capacity = max((holding.capacity for holding in holdings), default=self._default)

    def _forget(self, holding: Holding) -> None:
        holding.is_gone = True
        del self._holdings[holding.name]
        for block in (*holding.idle, *holding.pinned):
            self._drop(holding, block)

    def _drop(self, holding: Holding, block: int) -> None:
        found = self._blocks[block]
        rest = [other for other in found.holders if other is not holding]
        if not rest:
            del self._blocks[block]
            self._forks.pop(block, None)
        else:
            found.holders = rest[0].alone if len(rest) == 1 else tuple(rest)
