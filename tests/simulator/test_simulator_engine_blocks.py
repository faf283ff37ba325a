"""The block cache against cases worked by hand; any order of operations is beside the cache by runs."""

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
