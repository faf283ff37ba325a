"""The ring, with the identity hash where owners should be readable off the page."""

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from extproc.router.routing.ring import SEPARATOR, Ring
from tests.tables import table

NAMES = st.sets(
    st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=4), max_size=8
)


def at(marks: dict[str, list[int]]) -> Ring:
    """A ring whose members stand where `marks` says."""

    def identity(data: bytes) -> int:
        name, _, index = data.decode().partition(SEPARATOR)
        return marks[name][int(index)]

    return Ring(marks, positions=len(next(iter(marks.values()))), hash_=identity)


@table(
    ("key", "owners"),
    [(0, "abc"), (10, "abc"), (11, "bca"), (20, "bca"), (25, "cab"), (40, "abc"), (55, "cab"), (61, "abc")],
)
def test_walk_starts_at_the_first_position_at_or_after_the_key(key: int, owners: str) -> None:
    ring = at({"a": [10, 40], "b": [20, 50], "c": [30, 60]})

    assert owners == "".join(ring.walk(key))


def test_colliding_positions_stand_in_the_order_of_names_whoever_came_first() -> None:
    marks = {"a": [10], "b": [10], "c": [10], "x": [90], "y": [91], "z": [92]}
    ring = at(marks)
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
