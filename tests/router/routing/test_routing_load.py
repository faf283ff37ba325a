"""The load book."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.router.routing.load import LoadBook

MOVES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["take", "release", "hear"]), st.sampled_from("abcd"), st.integers(0, 5)),
        st.tuples(st.just("members"), st.text("abcd", max_size=4), st.just(0)),
    ),
    max_size=60,
)


def book_of(**counts: int) -> LoadBook:
    book = LoadBook()
    book.set_members(counts)
    for name, count in counts.items():
        for _ in range(count):
            book.take(name)
    return book


def test_what_was_never_taken_or_by_others_is_not_ours_to_release() -> None:
    book = book_of(a=1, b=0)
    book.hear("b", 3)
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
            book.hear(names, count)
        elif what == "members":
            members = set(names)
            book.set_members(names)
        elif what == "take":
            ours[names] += 1
            book.take(names)
        elif ours[names]:
            ours[names] -= 1
            book.release(names)

        counts = ours + elsewhere
        assert book.total == sum(counts[name] for name in members)
        order = list(book.least_loaded(random.Random(0)))
        assert sorted(order) == sorted(members)
        assert [counts[name] for name in order] == sorted(counts[name] for name in members)
        assert book.counts() == {name: counts[name] for name in {*members, *counts}}
        assert book.ours() == {name: ours[name] for name in {*members, *counts}}
        assert book.elsewhere() == {name: count for name, count in elsewhere.items() if count}
