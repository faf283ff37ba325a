"""The index: what it says that an endpoint holds, after any calls."""

import math
import tracemalloc
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extproc.router.routing.prompt.chain import Chain
from extproc.router.routing.strategies.prefix_cache.index import (
    ENTRY_BYTES,
    MOST_ENTRIES,
    Holding,
    PrefixIndex,
    Rate,
    Taken,
)
from tests.tables import table

SIZE = 200


def chain(*path: int, size: int = SIZE) -> Chain:
    """Blocks of one size; equal beginnings of `path` are equal heads."""
    hashes = [hash(path[: depth + 1]) for depth in range(len(path))]
    ends = [size * (depth + 1) for depth in range(len(path))]
    return Chain(hashes, ends, ends, size * len(path), hashes[0] if hashes else 0, 0)


def index_of(*names: str, blocks: int = 10) -> PrefixIndex:
    index = PrefixIndex(blocks * SIZE)
    index.follow(dict.fromkeys(names, "10.0.0.1:80"))
    return index


def at(index: PrefixIndex, name: str) -> Holding:
    holding = index.holding(name)
    assert holding is not None
    return holding


def visit(index: PrefixIndex, name: str, *path: int, now: float = 0.0) -> None:
    """A request that comes and goes."""
    asked = chain(*path)
    index.release(at(index, name), asked, index.insert(at(index, name), asked, now), now)


def depth(index: PrefixIndex, name: str, *path: int) -> int:
    hashes = chain(*path).hashes
    return at(index, name).depth(hashes, index.matched(hashes))


def levels(index: PrefixIndex, *path: int) -> list[list[str]]:
    hashes = chain(*path).hashes
    return [
        [holding.name for holding in level]
        for _, level in index.holders(hashes, index.matched(hashes))
    ]


def test_what_was_taken_is_held_at_once() -> None:
    index = index_of("a", "b")

    assert index.insert(at(index, "a"), chain(1, 2, 3), 0.0) == Taken(0, 3)
    assert index.insert(at(index, "a"), chain(1, 2, 4, 5), 0.0) == Taken(2, 4)
    assert depth(index, "a", 1, 2, 3, 9) == 3
    assert depth(index, "b", 1, 2, 3) == 0
    assert index.matched(chain(1, 2, 4, 5, 6).hashes) == 4


def test_holders_come_with_those_first_who_hold_most() -> None:
    index = index_of("a", "b", "c", "d")
    visit(index, "a", 1, 2, 3, 4)
    visit(index, "b", 1, 2)
    visit(index, "c", 1, 2)
    visit(index, "d", 1)

    assert levels(index, 1, 2, 3, 4, 5) == [["a"], ["a", "b", "c"], ["a", "b", "c", "d"]]
    assert levels(index, 1, 2) == [["a", "b", "c"], ["a", "b", "c", "d"]]
    assert levels(index, 2) == []


def test_the_least_recently_used_goes_first_and_of_one_prompt_its_tail() -> None:
    index = index_of("a", blocks=6)
    visit(index, "a", 1, 2, 3)
    visit(index, "a", 5, 6, 7)
    visit(index, "a", 1, 2)
    visit(index, "a", 8)

    # Of nothing used since, the tail of the oldest.
    assert depth(index, "a", 1, 2, 3) == 2
    assert depth(index, "a", 5, 6, 7) == 3

    visit(index, "a", 9, 10)

    assert depth(index, "a", 5, 6, 7) == 1
    assert depth(index, "a", 1, 2) == 2


def test_blocks_of_open_requests_stay_and_leave_a_tenth_to_the_others() -> None:
    index = index_of("a", blocks=20)
    visit(index, "a", 99, 98, 97)
    index.insert(at(index, "a"), chain(*range(25)), 0.0)

    assert depth(index, "a", *range(25)) == 25
    assert depth(index, "a", 99, 98, 97) == 2


def test_tails_of_open_requests_beyond_the_bound_are_left_out() -> None:
    index = index_of("a", blocks=8)
    most = 8 * SIZE // ENTRY_BYTES
    asked = chain(*range(20))
    taken = index.insert(at(index, "a"), asked, 0.0)
    assert taken == Taken(0, most)
    assert index.insert(at(index, "a"), chain(50), 0.0) == Taken(0, 0)

    index.release(at(index, "a"), asked, taken, 0.0)

    assert len(at(index, "a")) == 8


@table("event", ["goes", "moves", "is lost"])
def test_an_endpoint_that_went_holds_nothing_whenever_its_requests_end(event: str) -> None:
    index = index_of("a", "b")
    visit(index, "b", 1, 2)
    asked, old = chain(1, 2, 3), at(index, "a")
    taken = index.insert(old, asked, 0.0)
    if event == "is lost":
        index.lose("a")
    else:
        index.follow(({"a": "10.0.0.9:80"} if event == "moves" else {}) | {"b": "10.0.0.1:80"})
    index.follow(dict.fromkeys("ab", "10.0.0.1:80"))
    assert depth(index, "a", 1, 2, 3) == 0
    assert levels(index, 1, 2, 3) == [["b"]]
    assert (len(index), len(at(index, "a"))) == (2, 0)

    visit(index, "a", 1, 2)
    index.release(old, asked, taken, 0.0)
    index.withdraw(old, asked, taken)

    assert depth(index, "a", 1, 2, 3) == 2


def test_prompts_fork_where_they_go_on_differently_while_others_are_open() -> None:
    index = index_of("a", "b")
    visit(index, "a", 1, 2, 3, 4)
    visit(index, "a", 1, 2, 3, 4, 5)
    visit(index, "b", 1, 2, 7)  # one after the other
    assert index.forks(chain(1, 2, 3, 4).hashes, 4) == []

    index.insert(at(index, "a"), chain(1, 2, 3, 4), 0.0)
    visit(index, "b", 1, 2, 8)
    visit(index, "b", 1, 2, 3, 9)

    assert index.forks(chain(1, 2, 3, 4).hashes, 4) == [2, 3]
    assert index.forks(chain(1, 2, 8).hashes, 3) == [2]
    assert index.copies(chain(1, 2).hashes[-1]) == 2
    assert index.copies(chain(11).hashes[-1]) == 0


def test_a_fork_counts_ways_that_begin_there_and_not_who_goes_on() -> None:
    index = index_of("a", blocks=1_000)
    index.insert(at(index, "a"), chain(1, 2), 0.0)
    for number in range(600):
        visit(index, "a", 1, 1_000 + number, now=number / 2)
        visit(index, "a", 1, 1_000 + number, 3, now=number / 2)
    fork = chain(1).hashes[0]

    assert index.uses(fork, 300.0) == pytest.approx(2, rel=0.05)
    assert index.uses(chain(1_003).hashes[0], 300.0) == 0


def test_a_block_lives_as_long_as_in_the_cache_that_evicts_soonest() -> None:
    index = index_of("a", "b", blocks=100)
    assert index.life_s(0.0) == 300

    for number in range(600):
        visit(index, "a", number, now=number / 10)
        visit(index, "b", number, now=number / 10 if number < 90 else 9.0)
    idle_s = 60.0 - (600 - 100) / 10

    assert index.life_s(60.0) == pytest.approx(idle_s, abs=0.5)
    assert index.life_s(60.9) == index.life_s(60.0)  # looked at once a second
    assert index.life_s(61.0) == pytest.approx(idle_s + 1, abs=0.5)
    assert index.life_s(1e6) == 300


def test_a_rate_is_forgotten_in_time() -> None:
    rate = Rate()
    rate.add(60, 0.0)

    assert rate.per_s(0.0) == 1
    assert rate.per_s(60.0) == pytest.approx(0.368, abs=0.001)


def test_what_was_never_read_is_taken_back() -> None:
    index = index_of("a")
    visit(index, "a", 1, 2)
    holding, asked = at(index, "a"), chain(1, 2, 3, 4)
    taken = index.insert(holding, asked, 0.0)
    index.withdraw(holding, asked, taken)
    assert depth(index, "a", 1, 2, 3, 4) == 4  # its request is open yet

    index.release(holding, asked, taken, 0.0)
    index.withdraw(holding, asked, taken)
    assert depth(index, "a", 1, 2, 3, 4) == 2
    assert len(index) == 2
    assert holding.idle_bytes == 2 * SIZE

    visit(index, "a", 1, 2, 7)

    assert index.forks(chain(1, 2).hashes, 2) == []


def test_what_others_asked_for_since_is_not_taken_back() -> None:
    index = index_of("a")
    holding, asked = at(index, "a"), chain(1, 2, 3)
    taken = index.insert(holding, asked, 0.0)
    index.release(holding, asked, taken, 0.0)
    visit(index, "a", 1, 2, 9)
    index.withdraw(holding, asked, taken)

    assert depth(index, "a", 1, 2, 9) == 3
    assert depth(index, "a", 1, 2, 3) == 2


def test_what_a_next_turn_goes_on_from_is_not_taken_back() -> None:
    index = index_of("a")
    holding, asked = at(index, "a"), chain(1, 2, 3)
    taken = index.insert(holding, asked, 0.0)
    index.release(holding, asked, taken, 0.0)
    visit(index, "a", 1, 2, 3, 4)
    index.withdraw(holding, asked, taken)

    assert depth(index, "a", 1, 2, 3, 4) == 4
    assert len(index) == 4


@pytest.mark.parametrize("endpoints", [8, pytest.param(32, marks=pytest.mark.slow)])
def test_memory_stays_below_what_is_promised(endpoints: int) -> None:
    """A thousand endpoints of 84k tokens take 1 GB at most, eight 20 MB: 380 bytes an entry."""
    rng, capacity = Random(1), 336_000
    tracemalloc.start()
    index = PrefixIndex(capacity)
    index.follow({f"default/vllm-{number}": "10.0.0.1:80" for number in range(endpoints)})
    for number in range(endpoints):
        holding = at(index, f"default/vllm-{number}")
        for _ in range(capacity // ENTRY_BYTES // 100 * 2):
            hashes = [rng.getrandbits(64) for _ in range(100)]
            asked = Chain(hashes, range(64, 6_401, 64), range(64, 6_401, 64), 6_400, hashes[0], 0)
            index.release(holding, asked, index.insert(holding, asked, 0.0), 0.0)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(index) == endpoints * (capacity // ENTRY_BYTES)
    assert used / len(index) < 380
    assert 1_000 * (capacity // ENTRY_BYTES) * 380 < 1e9


def test_each_endpoint_has_the_size_that_it_tells() -> None:
    index = index_of("a", "b", blocks=10)
    index.resize("a", 4 * SIZE)
    index.resize("strange", 4 * SIZE)
    for name in "ab":
        visit(index, name, *range(20))
    assert [at(index, name).idle_bytes // SIZE for name in "ab"] == [4, 10]
    assert index.capacity == 10 * SIZE

    index.resize("b", 2 * SIZE)
    assert at(index, "b").idle_bytes == 2 * SIZE
    assert index.capacity == 4 * SIZE

    visit(index, "a", 7)
    index.lose("a")

    assert at(index, "a").capacity == 4 * SIZE


def test_a_thousand_endpoints_share_what_memory_there_is_whatever_they_tell() -> None:
    index = index_of(*(f"e{number}" for number in range(1_000)))
    for number in range(1_000):
        index.resize(f"e{number}", 10**9)

    assert sum(at(index, f"e{number}").most_entries for number in range(1_000)) <= MOST_ENTRIES


def test_what_another_gateway_sent_is_held_and_goes_like_what_nobody_uses() -> None:
    index = index_of("a", blocks=4)
    index.insert(at(index, "a"), chain(1, 2), 0.0)
    index.apply_peer_pick(at(index, "a"), chain(1, 2, 3), 0.0)
    index.apply_peer_pick(at(index, "a"), chain(7), 0.0)
    index.apply_peer_pick(at(index, "a"), chain(1, 2, 3), 0.0)
    index.apply_peer_pick(at(index, "a"), chain(8), 0.0)

    assert [depth(index, "a", *path) for path in ((1, 2, 3), (7,), (8,))] == [3, 0, 1]
    assert (len(at(index, "a").pinned), len(at(index, "a").idle)) == (2, 2)


def test_a_fork_counts_ways_of_other_gateways_while_a_request_of_ours_is_open() -> None:
    index = index_of("a", "b")
    index.apply_peer_pick(at(index, "a"), chain(1, 2), 0.0)
    index.apply_peer_pick(at(index, "a"), chain(1, 3), 0.0)
    assert index.forks(chain(1).hashes, 1) == []

    index.insert(at(index, "b"), chain(1), 0.0)
    for _ in range(2):  # its pick, and its end
        index.apply_peer_pick(at(index, "a"), chain(1, 4), 0.0)

    assert index.uses(chain(1).hashes[0], 0.0) == pytest.approx(1 / 60)


def test_a_block_is_as_old_as_the_first_request_for_it() -> None:
    index = index_of(*"ab")
    index.insert(at(index, "a"), chain(1), 5.0)
    index.insert(at(index, "b"), chain(1, 2), 7.0)

    assert [index.since(block) for block in (*chain(1, 2).hashes, 99)] == [5.0, 7.0, math.inf]


def filled(idle_bytes: int, used_s: float) -> Holding:
    """A holding of 1,000 bytes, so full of one block that was used then."""
    holding = Holding("a", "10.0.0.1:80", 1_000)
    holding.idle[7] = used_s
    holding.idle_bytes = idle_bytes
    return holding


@table(
    ("idle_bytes", "size", "age_s", "expected"),
    [
        (400, 600, 0, 0),  # there is room
        (401, 600, 0, 600),  # there is not, and what goes was just used
        (1_000, 600, 10, 600 / math.e),
        (1_000, 600, 1_000, 0),  # nobody will ask for it again
    ],
)
def test_a_prefill_costs_what_it_evicts(
    idle_bytes: int, size: int, age_s: float, expected: float
) -> None:
    holding = filled(idle_bytes, used_s=0.0)

    assert holding.evicts(size, age_s, 10.0) == pytest.approx(expected, abs=0.01)


def test_where_open_requests_fill_a_cache_all_that_comes_is_counted() -> None:
    holding = Holding("a", "10.0.0.1:80", 1_000)
    holding.pinned_bytes = 1_000

    assert holding.evicts(300, 5.0, 10.0) == 300


PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=9)
NAMES = st.sampled_from("abc")


class IndexMachine(RuleBasedStateMachine):
    """Whatever comes and goes in whatever order: the promises of the index hold after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.index = index_of(*"abc", blocks=8)
        self.now = 0.0
        self.open: list[tuple[Holding, Chain, Taken]] = []
        self.paths: set[tuple[int, ...]] = set()

    @rule(name=NAMES, path=PATHS)
    def take(self, name: str, path: list[int]) -> None:
        holding = self.index.holding(name)
        if holding is None:
            return
        self.now += 1
        self.paths.add(tuple(path))
        asked = chain(*path)
        taken = self.index.insert(holding, asked, self.now)

        assert holding.depth(asked.hashes, len(asked)) >= taken.blocks
        self.open.append((holding, asked, taken))

    @rule(name=NAMES, path=PATHS)
    def hear(self, name: str, path: list[int]) -> None:
        holding = self.index.holding(name)
        if holding is not None:
            self.now += 1
            self.paths.add(tuple(path))
            self.index.apply_peer_pick(holding, chain(*path), self.now)

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        if self.open:
            ended = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
            self.index.release(*ended, 0.0)
            if data.draw(st.booleans()):
                self.index.withdraw(*ended)

    @rule(names=st.sets(NAMES))
    def follow(self, names: set[str]) -> None:
        self.index.follow(dict.fromkeys(names, "10.0.0.1:80"))

        assert {name for name in "abc" if self.index.holding(name) is not None} == names

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        self.index.lose(name)
        holding = self.index.holding(name)

        assert holding is None or len(holding) == 0

    @rule(name=NAMES, blocks=st.integers(1, 12))
    def resize(self, name: str, blocks: int) -> None:
        self.index.resize(name, blocks * SIZE)

    @invariant()
    def open_requests_hold_all_that_they_took_and_nobody_else_does(self) -> None:
        for holding in self.holdings():
            ours = [
                asked.hashes[: taken.blocks]
                for other, asked, taken in self.open
                if other is holding
            ]
            assert holding.pinned.keys() == set().union(*ours)

    @invariant()
    def the_bound_holds(self) -> None:
        for holding in self.holdings():
            room = max(holding.capacity - holding.pinned_bytes, holding.capacity // 10)

            assert holding.idle_bytes <= room
            assert len(holding) <= max(holding.most_entries, len(holding.pinned))
            assert holding.idle_bytes == SIZE * len(holding.idle)
            assert holding.pinned_bytes == SIZE * len(holding.pinned)

    @invariant()
    def whoever_holds_a_block_holds_all_that_lead_to_it(self) -> None:
        for holding in self.holdings():
            for path in self.paths:
                held = [block in holding for block in chain(*path).hashes]

                assert held == sorted(held, reverse=True)

    @invariant()
    def blocks_know_their_holders(self) -> None:
        held = {block for holding in self.holdings() for block in (*holding.idle, *holding.pinned)}

        assert len(self.index) == len(held)

    def holdings(self) -> list[Holding]:
        return [holding for name in "abc" if (holding := self.index.holding(name)) is not None]


TestIndexMachine = IndexMachine.TestCase
