"""Which worker gets the next connection, and which one lets one go."""

from hypothesis import given
from hypothesis import strategies as st

from extproc.router.workers.spread import Held, Seat, choose, crowded


def seat(
    carrying: int = 0, others: int = 0, *, unknown: int = 0, handed: int = 0, ready: bool = True
) -> Seat:
    """`handed` are connections that the worker has not told of yet."""
    received = carrying + others + unknown
    return Seat(ready, received + handed, Held(received, carrying, unknown, others))


def test_the_next_connection_goes_to_who_has_the_fewest_that_bring_requests() -> None:
    assert choose({0: seat(2), 1: seat(1, others=5)}) == 1


def test_a_connection_counts_before_anybody_knows_what_it_brings() -> None:
    assert choose({0: seat(handed=1), 1: seat()}) == 1
    assert choose({0: seat(unknown=1), 1: seat()}) == 1


def test_others_decide_where_all_else_is_equal() -> None:
    assert choose({0: seat(1, others=1), 1: seat(1)}) == 1


def test_who_cannot_route_yet_gets_one_only_if_nobody_can() -> None:
    assert choose({0: seat(ready=False), 1: seat(9)}) == 1
    assert choose({0: seat(ready=False)}) == 0
    assert choose({}) is None


def test_who_has_two_more_than_another_lets_one_go() -> None:
    assert crowded({0: seat(2), 1: seat(0)}) == 0
    assert crowded({0: seat(2), 1: seat(1)}) is None
    assert crowded({}) is None


def test_nobody_lets_one_go_while_it_is_not_known_what_all_bring() -> None:
    assert crowded({0: seat(2), 1: seat(0, handed=1)}) is None
    assert crowded({0: seat(2), 1: seat(0, unknown=1)}) is None


def test_nobody_lets_one_go_for_who_cannot_route() -> None:
    assert crowded({0: seat(2), 1: seat(ready=False)}) is None


@given(st.lists(st.integers(0, 12), min_size=1, max_size=8), st.integers(0, 40))
def test_connections_end_up_even_whatever_was_before(before: list[int], more: int) -> None:
    """Each that is let go comes back, as a proxy's does."""
    seats = {lane: seat(count) for lane, count in enumerate(before)}

    def take() -> None:
        lane = choose(seats)
        assert lane is not None
        seats[lane] = seat(seats[lane].held.carrying + 1)

    for _ in range(more):
        take()
    for _ in range(sum(before)):
        lane = crowded(seats)
        if lane is None:
            break
        seats[lane] = seat(seats[lane].held.carrying - 1)
        take()

    counts = [one.held.carrying for one in seats.values()]
    assert sum(counts) == sum(before) + more
    assert max(counts) - min(counts) <= 1
