"""The block cache against cases worked by hand, and its sums under any order of operations."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.simulator.engine.blocks import BlockCache, hash_blocks
from extproc.simulator.engine.records import BlockRemoved, KvEvent


def fill(cache: BlockCache, *hashes: int) -> None:
    """Uses and frees one block after another: the first is the least recently used."""
    for block in hashes:
        cache.take(1)
        cache.seal((block,), 0, 1)
        cache.release((block,), 1, 0)


def test_hashes_name_full_blocks_and_chain_their_parent_and_their_key() -> None:
    first = hash_blocks([1, 1, 2, 2], 2)
    second = hash_blocks([3, 3, 2, 2], 2)

    assert len(hash_blocks(range(35), 16)) == 2
    assert first[1] != second[1]
    assert first == hash_blocks([1, 1, 2, 2, 9], 2)
    assert hash_blocks([1, 2], 2, "lora") != hash_blocks([1, 2], 2)


def test_match_counts_leading_blocks_and_the_idle_ones_among_them() -> None:
    cache = BlockCache(8)
    fill(cache, 1, 2, 3)
    cache.share((1,), 1)

    assert cache.match((1, 2, 9, 3), 4) == (2, 1)


def test_blank_blocks_are_taken_first_then_the_least_recently_used_one() -> None:
    events: list[KvEvent] = []
    cache = BlockCache(4, events.append)
    fill(cache, 1, 2, 3)
    cache.share((1,), 1)
    cache.release((1,), 1, 0)

    cache.take(1)
    assert events == []
    cache.take(1)
    assert events == [BlockRemoved((2,))]


def test_tail_is_evicted_before_the_head() -> None:
    cache = BlockCache(3)
    cache.take(3)
    cache.seal((1, 2, 3), 0, 3)
    cache.release((1, 2, 3), 3, 0)

    cache.take(1)

    assert cache.match((1, 2, 3), 3) == (2, 2)


def test_clear_forgets_everything_unless_a_block_is_in_use() -> None:
    cache = BlockCache(2)
    fill(cache, 1, 2)
    cache.share((1,), 1)
    assert not cache.clear()
    assert cache.match((1, 2), 2) == (2, 1)

    cache.release((1,), 1, 0)
    assert cache.clear()
    assert cache.match((1, 2), 2) == (0, 0)


class CacheMachine(RuleBasedStateMachine):
    """Requests that come, grow and go in any order, over six possible texts of eight blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.removed: list[KvEvent] = []
        self.cache = BlockCache(20, self.removed.append)
        self.held: list[tuple[list[int], int]] = []

    @rule(text=st.integers(0, 5), blocks=st.integers(1, 8))
    def begin(self, text: int, blocks: int) -> None:
        hashes = list(range(text * 8, text * 8 + blocks))
        hits, idle = self.cache.match(hashes, blocks)
        if blocks - hits + idle > self.cache.free:
            return
        self.cache.share(hashes, hits)
        self.cache.take(blocks - hits)
        self.held.append((hashes[:hits], blocks - hits))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.held) - 1))
        shared, private = self.held[place]
        if private and shared:
            self.cache.seal((shared[-1] + 1,), 0, 1)
            self.held[place] = ([*shared, shared[-1] + 1], private - 1)
        elif private:
            text = data.draw(st.integers(0, 5))
            self.cache.seal((text * 8,), 0, 1)
            self.held[place] = ([text * 8], private - 1)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        shared, private = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.cache.release(shared, len(shared), private)

    @invariant()
    def counts_add_up(self) -> None:
        used = {block for shared, _ in self.held for block in shared}
        private = sum(private for _, private in self.held)

        assert self.cache.free + len(used) + private == self.cache.size

    @invariant()
    def no_block_is_both_free_and_in_use(self) -> None:
        used = {block for shared, _ in self.held for block in shared}

        assert not used & self.cache._idle.keys()
        assert used == self.cache._users.keys()


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(stateful_step_count=30)
