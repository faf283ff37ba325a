"""The strategies, on rings small enough to follow by eye; the ring with the identity hash as its own."""

import random
import tracemalloc
from collections import Counter

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.errors import SettingsError
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.load import LoadBook
from extproc.router.routing.prompt.parse import parse
from extproc.router.routing.ring import SEPARATOR, Ring
from extproc.router.routing.strategies.balanced import (
    LEAST_LOAD,
    NO_PREFIX,
    LeastLoad,
    RandomChoice,
    RoundRobin,
)
from extproc.router.routing.strategies.base import NOWHERE, Candidates, Choice
from extproc.router.routing.strategies.prefix_hash import (
    HOME,
    SPILL,
    PrefixHash,
    PrefixHashSettings,
)
from extproc.router.routing.strategies.registry import STRATEGIES
from tests.router.outside import fixed_outside
from tests.tables import table

OUTSIDE = fixed_outside()


def letters(data: bytes) -> int:
    """Member `a` stands at 10, `b` at 20, and so on."""
    return 10 * (data.partition(SEPARATOR.encode())[0][0] - 96)


def booked(counts: dict[str, int]) -> LoadBook:
    book = LoadBook()
    book.set_members(counts)
    for name, count in counts.items():
        for _ in range(count):
            book.acquire(name)
    return book


def candidates(
    counts: dict[str, int], eligible: str | None = None, closed: frozenset[str] = frozenset()
) -> Candidates:
    ring, these = (
        Ring(counts, positions=1, hash_=letters),
        None if eligible is None else frozenset(eligible),
    )
    return Candidates(ring, booked(counts), tuple(counts), these, closed)


def kubeai(factor: float = 1.25) -> PrefixHash:
    return PrefixHash(OUTSIDE, load_factor=factor, load_floor=0)


def test_round_robin_takes_turns_and_one_that_nobody_took_comes_again() -> None:
    strategy, some = RoundRobin(OUTSIDE), candidates({"a": 0, "b": 9, "c": 0})
    turns = []
    for _ in range(4):
        turns.append(strategy.choose(some, 2).names)
        assert strategy.choose(some, 2).names == turns[-1]
        strategy.taken(turns[-1][0])

    assert turns == [("a", "b"), ("b", "c"), ("c", "a"), ("a", "b")]


@table(
    ("kind", "counts", "eligible"),
    [(RandomChoice, {"a": 0, "b": 9, "c": 0}, "abc"), (LeastLoad, dict.fromkeys("abcd", 0), "ab")],
)
def test_random_is_even_and_ties_fall_evenly_among_the_eligible(
    kind: type[RandomChoice] | type[LeastLoad], counts: dict[str, int], eligible: str
) -> None:
    strategy, some = kind(fixed_outside(5)), candidates(counts, eligible)
    firsts = Counter(strategy.choose(some, 2).names[0] for _ in range(3_000))

    assert min(firsts[name] for name in eligible) > 0.9 * 3_000 / len(eligible)


def test_least_load_takes_the_least_loaded_and_names_the_next_and_so_does_prefix_hash_without_a_key() -> (
    None
):
    some = candidates({"a": 3, "b": 1, "c": 2})

    assert LeastLoad(OUTSIDE).choose(some, 2) == Choice(("b", "c"), LEAST_LOAD)
    assert PrefixHash(OUTSIDE).read(None, {}, "").choose(some, 2) == Choice(("b", "c"), NO_PREFIX)


def test_only_eligible_endpoints_are_chosen() -> None:
    some = candidates({"a": 0, "b": 8, "c": 3, "d": 0}, eligible="bc")

    assert LeastLoad(OUTSIDE).choose(some, 3).names == ("c", "b")
    assert RoundRobin(OUTSIDE).choose(some, 3).names == ("b", "c")
    assert kubeai().reading(11).choose(some, 3) == Choice(("c", "b"), SPILL)
    assert (len(some), some.total) == (2, 11)


def test_prefix_goes_home_while_home_is_within_its_bound() -> None:
    # Bound: (6 + 1) / 3 * 1.25 = 2.92.
    choice = kubeai().reading(11).choose(candidates({"a": 2, "b": 2, "c": 2}), 3)

    assert choice == Choice(("b", "c", "a"), HOME)


def test_walk_skips_overloaded_endpoint() -> None:
    # Bound: (6 + 1) / 3 * 1.25 = 2.92. The one passed over is still the last fallback.
    choice = kubeai().reading(1).choose(candidates({"a": 4, "b": 1, "c": 1}), 3)

    assert choice == Choice(("b", "c", "a"), SPILL)


def test_bound_counts_the_request_itself_but_not_on_the_candidate() -> None:
    # (1 + 1) / 2 * 1.25 = 1.25: one is not too many, as half of 1.25 would say.
    assert kubeai().reading(1).choose(candidates({"a": 1, "b": 0}), 1).reason is HOME
    # (7 + 1) / 4 * 1.25 = 2.5: three are too many, two are not, though two would become three.
    assert (
        kubeai().reading(1).choose(candidates({"a": 2, "b": 2, "c": 2, "d": 1}), 1).reason is HOME
    )
    assert (
        kubeai().reading(1).choose(candidates({"a": 3, "b": 2, "c": 2, "d": 0}), 1).reason is SPILL
    )


@table(("in_flight", "is_home"), [(0, True), (3, True), (4, False)])
def test_floor_accepts_fewer_than_itself(in_flight: int, is_home: bool) -> None:
    quiet = {"a": in_flight, **dict.fromkeys("bcdefghijklmnopqrst", 0)}

    assert (PrefixHash(OUTSIDE).reading(1).choose(candidates(quiet), 1).reason is HOME) is is_home


def test_first_fallback_is_where_the_key_goes_when_its_home_leaves() -> None:
    counts = {"a": 0, "b": 9, "c": 0, "d": 0}
    _, second, *_ = kubeai().reading(1).choose(candidates(counts), 3).names
    del counts["a"]

    assert kubeai().reading(1).choose(candidates(counts), 3).names[0] == second


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=200),
    st.integers(1, 9),
    st.floats(1, 3),
    st.integers(0, 5),
)
def test_no_endpoint_is_taken_over_its_bound(
    keys: list[int], count: int, factor: float, floor: int
) -> None:
    names = [f"pod-{index}" for index in range(count)]
    book = LoadBook()
    book.set_members(names)
    some = Candidates(Ring(names, positions=8), book, tuple(names), None)
    strategy = PrefixHash(OUTSIDE, load_factor=factor, load_floor=floor)
    for total, key in enumerate(keys):
        name = strategy.reading(key).choose(some, 1).names[0]
        assert book.in_flight(name) <= max((total + 1) / count * factor, floor - 1)
        book.acquire(name)


def test_a_ring_grows_out_of_its_like_and_replaces_any_other() -> None:
    ready = {name: Endpoint(name, "10.0.0.1:80") for name in "abcdefgh"}
    strategy = PrefixHash(OUTSIDE, positions=8)

    assert strategy.place(ready, NOWHERE) == Ring("abcdefgh", positions=8)
    assert strategy.place(ready, Ring("abcdefg", positions=8)) == Ring("abcdefgh", positions=8)
    assert strategy.place(ready, Ring("abcdefgh", positions=4)) == Ring("abcdefgh", positions=8)


def test_an_explanation_shows_the_walk_and_who_is_within_the_bound() -> None:
    # Bound: (6 + 1) / 3 * 1.25 = 2.92.
    explained = kubeai().reading(1).explain(candidates({"a": 4, "b": 1, "c": 1}))

    assert explained == {
        "bound": 2.917,
        "walk": [
            {"endpoint": "a", "in_flight": 4, "is_within": False},
            {"endpoint": "b", "in_flight": 1, "is_within": True},
            {"endpoint": "c", "in_flight": 1, "is_within": True},
        ],
    }
    assert LeastLoad(OUTSIDE).explain(candidates({"a": 0})) == {}


S = {"x-session-affinity": "s"}


@table(
    ("headers", "field", "others", "other_field", "is_same"),
    [
        (S, "", S, "", True),
        (S, "", {"x-session-affinity": "t"}, "", False),
        *[
            ({name: "s"}, "", {name: "s"}, "", True)
            for name in ("x-claude-code-session-id", "session-id")
        ],
        ({}, "s", {}, "s", True),
        ({}, "s", {}, "t", False),
        (S, "s", S | {"session-id": "t", "x-claude-code-session-id": "t"}, "t", True),
        ({"session-id": "s"}, "s", {"session-id": "s"}, "t", True),
        ({}, "", {}, "", False),
    ],
)
def test_prefix_hash_without_a_key_follows_an_agents_session_then_the_first_user_message(
    headers: dict[str, str], field: str, others: dict[str, str], other_field: str, is_same: bool
) -> None:
    """Two requests of one session with another text: a sub-agent, or a prompt that was written anew."""

    def key_of(headers: dict[str, str], field: str, text: str) -> int | None:
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": text}],
            "prompt_cache_key": field,
        }
        prompt = parse("/v1/chat/completions", "application/json", orjson.dumps(body))
        return strategy.read(prompt, headers, "").key

    strategy = STRATEGIES.build(
        "prefix_hash", PrefixHashSettings(name="prefix_hash").options(), OUTSIDE
    )

    assert {"x-session-affinity", "x-claude-code-session-id", "session-id"} == set(strategy.headers)
    assert (key_of(headers, field, "a") == key_of(others, other_field, "b")) is is_same
    assert key_of(headers, field, "a") == key_of(headers, field, "a")


def test_the_factory_names_what_there_is_not() -> None:
    assert STRATEGIES.build("prefix_hash", {"positions": 3}, OUTSIDE).name == "prefix_hash"
    with pytest.raises(SettingsError, match="choose from prefix_cache, prefix_hash"):
        STRATEGIES.build("best", {}, OUTSIDE)
    with pytest.raises(SettingsError, match=r"prefix_hash: .*'warmth'"):
        STRATEGIES.build("prefix_hash", {"warmth": 1}, OUTSIDE)
    with pytest.raises(
        SettingsError, match="prefix_cache: 'tpu' is no engine: choose from l4-llama8b"
    ):
        STRATEGIES.build("prefix_cache", {"engine": "tpu"}, OUTSIDE)


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 3), min_size=2), st.data())
def test_a_pool_without_its_closed_ones_is_the_pool_of_the_others(
    counts: dict[str, int], data: st.DataObject
) -> None:
    names = sorted(counts)
    closed = frozenset(data.draw(st.lists(st.sampled_from(names), max_size=len(names) // 2)))
    others = candidates(counts, "".join(name for name in names if name not in closed))
    without = candidates(counts, closed=closed)
    rng = random.Random(1)
    first, second = (list(some.least_loaded(rng)) for some in (without, others))

    assert (len(without), without.total, without.names) == (len(others), others.total, others.names)
    assert list(without.walk(15)) == list(others.walk(15))
    assert (sorted(first), [*map(counts.get, first)]) == (
        sorted(second),
        [*map(counts.get, second)],
    )


@table("closed", ["", "b", "bc", "bcdefghijk"])
def test_ties_beside_closed_ones_are_even(closed: str) -> None:
    book, rng = LoadBook(), random.Random(5)
    book.set_members("abcdefghijklm")
    firsts = Counter(next(book.least_loaded(rng, frozenset(closed))) for _ in range(5_000))
    share = 5_000 / (13 - len(closed))

    assert firsts.keys() == set("abcdefghijklm") - set(closed)
    assert all(0.8 * share < count < 1.2 * share for count in firsts.values())


def test_a_peer_that_claims_a_million_in_flight_costs_little_memory_and_is_last() -> None:
    book = booked({"a": 0, "b": 5_000, "c": 4})
    tracemalloc.start()
    book.set_peer_count("a", 1_000_000)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    order = [*book.least_loaded(random.Random(1))]
    book.set_peer_count("a", 0)

    assert peak_bytes < 1_000_000
    assert (order[0], {*order[1:]}) == ("c", {"a", "b"})
    assert [*book.least_loaded(random.Random(1))] == ["a", "c", "b"]


MOVES = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["take", "release", "hear"]), st.sampled_from("abcd"), st.integers(0, 5)
        ),
        st.tuples(st.just("members"), st.text("abcd", max_size=4), st.just(0)),
    ),
    max_size=60,
)


def test_what_was_never_taken_or_by_others_is_not_ours_to_release() -> None:
    book = booked({"a": 1, "b": 0})
    book.set_peer_count("b", 3)
    book.release("a")

    for name in "ab":
        with pytest.raises(KeyError):
            book.release(name)


@given(MOVES)
def test_the_book_agrees_with_plain_counting(moves: list[tuple[str, str, int]]) -> None:
    book, ours, elsewhere, members = LoadBook(), Counter[str](), Counter[str](), set[str]()
    for what, names, count in moves:
        if what == "hear":
            elsewhere[names] = count
            book.set_peer_count(names, count)
        elif what == "members":
            members = set(names)
            book.set_members(names)
        elif what == "take":
            ours[names] += 1
            book.acquire(names)
        elif ours[names]:
            ours[names] -= 1
            book.release(names)

        counts = ours + elsewhere
        assert book.total == sum(counts[name] for name in members)
        rng, twin = random.Random(0), random.Random(0)
        order = list(book.least_loaded(rng))
        drawn = [
            twin.random() for _ in {counts[name] for name in members}
        ]  # none for levels left empty
        assert rng.random() == twin.random(), drawn
        assert sorted(order) == sorted(members)
        assert [counts[name] for name in order] == sorted(counts[name] for name in members)
        assert book.counts() == {name: counts[name] for name in {*members, *counts}}
        assert book.ours() == {name: ours[name] for name in {*members, *counts}}
        assert book.elsewhere() == {name: count for name, count in elsewhere.items() if count}


NAMES = st.sets(
    st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=4),
    max_size=8,
)


def ring_at(marks: dict[str, list[int]]) -> Ring:
    """A ring whose members stand where `marks` says."""

    def identity(data: bytes) -> int:
        name, _, index = data.decode().partition(SEPARATOR)
        return marks[name][int(index)]

    return Ring(marks, positions=len(next(iter(marks.values()))), hash_=identity)


@table(
    ("key", "owners"),
    [
        (0, "abc"),
        (10, "abc"),
        (11, "bca"),
        (20, "bca"),
        (25, "cab"),
        (40, "abc"),
        (55, "cab"),
        (61, "abc"),
    ],
)
def test_walk_starts_at_the_first_position_at_or_after_the_key(key: int, owners: str) -> None:
    ring = ring_at({"a": [10, 40], "b": [20, 50], "c": [30, 60]})

    assert owners == "".join(ring.walk(key))


def test_colliding_positions_stand_in_the_order_of_names_whoever_came_first() -> None:
    marks = {"a": [10], "b": [10], "c": [10], "x": [90], "y": [91], "z": [92]}
    ring = ring_at(marks)
    rejoined = ring.replace("bcxyz").replace("abcxyz").replace("abxyz").replace("abcxyz")

    assert [*"abcxyz"] == list(ring.walk(0)) == list(rejoined.walk(0))


def test_name_and_index_cannot_run_together() -> None:
    hashed: list[bytes] = []

    def spy(data: bytes) -> int:
        hashed.append(data)
        return len(hashed)

    Ring(["vllm-1", "vllm-11"], positions=20, hash_=spy)

    assert len(set(hashed)) == 40


def test_256_positions_spread_keys_evenly() -> None:
    rng = random.Random(1)
    ring = Ring(f"ns/vllm-{index}" for index in range(16))
    shares = Counter(next(ring.walk(rng.getrandbits(64))) for _ in range(32_000))

    assert max(shares.values()) < 1.25 * 2_000
    assert min(shares.values()) > 0.75 * 2_000


@given(NAMES, st.lists(st.tuples(st.booleans(), st.sampled_from("abcdefghijklmnop")), max_size=12))
def test_any_history_gives_the_ring_of_its_last_members(
    start: set[str], moves: list[tuple[bool, str]]
) -> None:
    members = {*start, *"qrstuvwxyz"}
    ring = Ring(members, positions=5)
    for is_arrival, name in moves:
        members = members | {name} if is_arrival else members - {name}
        ring = ring.replace(members)

    assert ring == Ring(members, positions=5)
    assert ring.replace(members) is ring


@given(NAMES, st.integers(0, 2**64 - 1))
def test_walk_meets_every_member_once(names: set[str], key: int) -> None:
    assert sorted(names) == sorted(Ring(names, positions=3).walk(key))


@given(NAMES.filter(lambda names: len(names) > 1), st.lists(st.integers(0, 2**64 - 1), max_size=20))
def test_removing_a_member_moves_only_its_keys(names: set[str], keys: list[int]) -> None:
    ring = Ring(names, positions=16)
    gone = min(names)
    without = ring.replace(names - {gone})

    for key in keys:
        assert [name for name in ring.walk(key) if name != gone] == list(without.walk(key))
