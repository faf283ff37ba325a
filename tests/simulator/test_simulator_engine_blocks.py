"""The caches, by blocks and by runs of texts: cases worked by hand, and any order of operations on both."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extproc.simulator.engine.blocks import BlockCache, hash_blocks
from extproc.simulator.engine.records import BlockRemoved, KvEvent
from extproc.simulator.engine.runs import Path, RunCache


def fill_cache(cache: BlockCache, *hashes: int) -> None:
    """Uses and frees one block after another: the first is the least recently used."""
    for block in hashes:
        cache.reserve(1)
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
    fill_cache(cache, 1, 2, 3)
    cache.share((1,), 1)

    assert cache.match((1, 2, 9, 3), 4) == (2, 1)


def test_blank_blocks_are_taken_first_then_the_least_recently_used_one() -> None:
    events: list[KvEvent] = []
    cache = BlockCache(4, events.append)
    fill_cache(cache, 1, 2, 3)
    cache.share((1,), 1)
    cache.release((1,), 1, 0)

    cache.reserve(1)
    assert events == []
    cache.reserve(1)
    assert events == [BlockRemoved((2,))]


def test_tail_is_evicted_before_the_head() -> None:
    cache = BlockCache(3)
    cache.reserve(3)
    cache.seal((1, 2, 3), 0, 3)
    cache.release((1, 2, 3), 3, 0)

    cache.reserve(1)

    assert cache.match((1, 2, 3), 3) == (2, 2)


def hashes_from(family: int, head: int, owner: int, blocks: int) -> Path:
    """The first `head` blocks of a family's text, then the owner's own."""
    return Path(((family, head), (10 + owner, blocks)))


def blocks_of(names: Path) -> list[int]:
    """The same path, block by block."""
    found: list[int] = []
    for text, stop in names.runs:
        found += range(1000 * text + len(found), 1000 * text + stop)
    return found


def fill_runs(cache: RunCache, names: Path) -> None:
    cache.reserve(len(names))
    cache.seal(names, 0, len(names))
    cache.release(names, len(names), 0)


def test_path_is_cut_into_its_texts() -> None:
    assert [*hashes_from(1, 3, 2, 8).cut(5)] == [(1, 3), (12, 2)]
    assert [*hashes_from(1, 3, 2, 8).cut(3)] == [(1, 3)]
    assert [*hashes_from(1, 0, 2, 8).cut(2)] == [(12, 2)]
    assert len(Path(())) == 0


def test_forgetting_spares_what_is_in_use() -> None:
    cache = RunCache(8)
    fill_runs(cache, hashes_from(1, 2, 1, 6))
    cache.share(hashes_from(1, 2, 1, 6), 3)
    assert not cache.clear()
    cache.forget()

    assert cache.match(hashes_from(1, 2, 1, 6), 6) == (3, 0)
    cache.release(hashes_from(1, 2, 1, 6), 3, 0)
    assert cache.clear()
    assert cache.match(hashes_from(1, 2, 1, 6), 6) == (0, 0)
    assert cache.free == 8


PATHS = [hashes_from(owner % 2, 3 if owner < 2 else 0, owner, 12) for owner in range(4)]


class BothCaches(RuleBasedStateMachine):
    """Requests that come, grow and go in any order, in both caches at once."""

    def __init__(self) -> None:
        super().__init__()
        self.runs, self.blocks = RunCache(24), BlockCache(24)
        self.held: list[tuple[Path, int, int]] = []

    @rule(owner=st.integers(0, 3), more=st.integers(0, 8))
    def begin(self, owner: int, more: int) -> None:
        # An owner has one family, or its text would begin in two places.
        names = hashes_from(owner % 2, 3 if owner < 2 else 0, owner, (3 if owner < 2 else 0) + more)
        stop = len(names)
        hits, idle = self.runs.match(names, stop)
        assert (hits, idle) == self.blocks.match(blocks_of(names), stop)
        if stop - hits + idle > self.runs.free:
            return
        self.runs.share(names, hits)
        self.blocks.share(blocks_of(names), hits)
        self.runs.reserve(stop - hits)
        self.blocks.reserve(stop - hits)
        self.held.append((names, hits, stop - hits))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def seal(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.held) - 1))
        names, shared, private = self.held[place]
        more = data.draw(st.integers(0, private))
        if more:
            self.runs.seal(names, shared, shared + more)
            self.blocks.seal(blocks_of(names), shared, shared + more)
            self.held[place] = (names, shared + more, private - more)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        names, shared, private = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.runs.release(names, shared, private)
        self.blocks.release(blocks_of(names), shared, private)

    @rule(count=st.integers(1, 24))
    def evict(self, count: int) -> None:
        """Takes blocks for a moment, which evicts what has been idle longest."""
        count = min(count, self.runs.free)
        for cache in (self.runs, self.blocks):
            cache.reserve(count)
        self.runs.release(Path(()), 0, count)
        self.blocks.release((), 0, count)

    @rule(is_clear=st.booleans())
    def forget(self, is_clear: bool) -> None:
        is_unused = self.blocks.free == self.blocks.size
        for cache in (self.runs, self.blocks):
            assert (cache.clear() if is_clear else cache.forget()) == (
                is_unused if is_clear else None
            )
        if is_unused or not is_clear:
            assert not any(self.blocks.match(blocks_of(names), 12)[1] for names in PATHS)

    @invariant()
    def both_have_the_same(self) -> None:
        assert self.runs.free == self.blocks.free
        for names in PATHS:
            assert self.runs.match(names, 12) == self.blocks.match(blocks_of(names), 12)

    @invariant()
    def blocks_add_up_and_none_is_both_free_and_in_use(self) -> None:
        used = {block for names, shared, _ in self.held for block in blocks_of(names)[:shared]}
        private = sum(private for *_, private in self.held)

        assert self.blocks.free + len(used) + private == self.blocks.size
        blocks = {block for names in PATHS for block in blocks_of(names)}
        assert used == {block for block in blocks if self.blocks.match((block,), 1) == (1, 0)}


TestBothCaches = BothCaches.TestCase
TestBothCaches.settings = settings(stateful_step_count=40)
