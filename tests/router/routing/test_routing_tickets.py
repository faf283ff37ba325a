"""Which pick a number belongs to, and for how long."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from extproc.router.routing.pool import Pick
from extproc.router.routing.tickets import Tickets
from tests.clock import Clock
from tests.router.routing.fleet import Fleet


def take_pick() -> Pick:
    return Fleet("a").pick("Why?")


def test_a_pick_is_found_while_its_request_is_open_and_just_after() -> None:
    tickets, pick = Tickets(Clock(0.0), 0), take_pick()
    open_, ended = tickets.give(pick), tickets.give(pick)
    tickets.end(ended)

    assert [tickets.pop(number) for number in (open_, ended)] == [pick, pick]


def test_a_number_is_good_for_once_be_it_before_the_end_and_a_strange_one_for_nothing() -> None:
    tickets = Tickets(Clock(0.0), 0)
    number = tickets.give(take_pick())

    assert tickets.pop(number) is not None
    assert [tickets.pop(strange) for strange in (number, number + 1, 0)] == [None, None, None]

    tickets.end(number)
    assert (len(tickets), tickets.pop(number)) == (0, None)


def test_what_no_log_reported_is_forgotten_after_a_while() -> None:
    clock = Clock(0.0)
    tickets = Tickets(clock, 0)
    old, open_ = tickets.give(take_pick()), tickets.give(take_pick())
    tickets.end(old)
    clock.now_s = 6.0
    late = tickets.give(take_pick())
    tickets.end(late)

    assert tickets.pop(old) is None
    assert tickets.pop(late) is not None
    assert tickets.pop(open_) is not None


def test_without_a_log_no_more_than_a_thousand_ended_requests_are_kept() -> None:
    tickets = Tickets(Clock(0.0), 0)
    for _ in range(3_000):
        tickets.end(tickets.give(take_pick()))

    assert len(tickets) == 1_024


@given(st.integers(0, 2**64 - 1), st.integers(1, 20))
def test_numbers_are_64_bits_never_0_never_the_same_and_no_step_is_the_last_one(
    first: int, count: int
) -> None:
    tickets, pick = Tickets(Clock(0.0), first), take_pick()
    numbers = [tickets.give(pick) for _ in range(count)]

    steps = {after - before for before, after in pairwise(numbers)}

    assert (len(set(numbers)), len(steps)) == (count, count - 1)
    assert all(0 < number < 2**64 for number in numbers)
