"""The order among the queues of several workers: who goes in next, and that no more do than may."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.order import FIRSTS, Room
from extproc.router.routing.pool import Gate, Pool
from extproc.router.routing.queue import Lane
from extproc.router.routing.strategies.balanced import LeastLoad
from tests.router.routing.queues import Town, Worker, served
from tests.router.routing.test_routing_prefix_cache import Shut
from tests.router.routing.test_routing_queue import OUTSIDE

# Whose turn it is.


@given(
    st.integers(2, 4),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=5, max_size=25),
    st.data(),
)
@settings(max_examples=60)
def test_requests_of_all_workers_leave_in_the_order_of_one_queue(
    count: int, limit: int, asked: list[tuple[int, int]], data: st.DataObject
) -> None:
    """All come while the pool is full; then one ends after the other, wherever."""
    town = Town(count, limit)
    for number in range(limit):
        town.come(number % count)
        town.calm()
    for lane, priority in asked:
        town.come(lane % count, priority)
        town.calm(0.001)
    town.calm()
    waited = sorted(town.held, key=lambda request: (-request.priority, request.number))
    for _ in range(len(asked)):
        busy = [worker for worker in town.workers if worker.open]
        data.draw(st.sampled_from(busy)).end()
        town.calm()
        assert town.total == limit

    assert served(town)[-len(waited) :] == waited


def test_places_that_come_free_at_once_are_taken_at_once_by_whom_they_belong_to() -> None:
    """Six wait, at two workers by turns; four end at a third: nobody waits for a word of the other."""
    town = Town(3, 4)
    for _ in range(4):
        town.come(2)
        town.calm()
    waiting = [town.come(number % 2) for number in range(6)]
    town.calm()
    for _ in range(4):
        town.workers[2].end()
    town.clock.pass_by(0.005)
    for lane in (0, 1):
        town.deliver(2, lane)
    town.clock.pass_by()

    assert {request.number for worker in town.workers for request in worker.open} == {
        request.number for request in waiting[:4]
    }


def test_who_goes_first_by_its_priority_takes_no_place_of_many_who_are_known() -> None:
    """Eight of one worker end, eight wait at the other, and hear of it; then come four who go before them."""
    town = Town(2, 8)
    for _ in range(8):
        town.come(0)
        town.calm()
    for _ in range(8):
        town.come(1)
    town.calm()
    for _ in range(8):
        town.workers[0].end()
    town.clock.pass_by(0.005)
    town.deliver(0, 1)
    for _ in range(4):
        town.come(0, priority=1)
    town.clock.pass_by()

    assert town.total == 8 + 1


def test_who_stands_behind_more_than_are_named_counts_them_all() -> None:
    town = Town(2, FIRSTS + 8)
    for _ in range(FIRSTS + 8):
        town.come(1)
        town.calm()
    for _ in range(FIRSTS + 8):
        town.come(0)
    town.calm()
    last = town.come(1)
    town.calm()
    for _ in range(FIRSTS + 4):
        town.workers[1].end()
    town.clock.pass_by()

    assert last in town.held
    town.calm()
    assert last in town.held


def test_in_a_pool_with_room_nobody_waits() -> None:
    """Sixteen come at once to each of four workers that have not heard of each other's: half of the room."""
    town = Town(4, 128)
    for number in range(64):
        town.come(number % 4)

    assert (town.total, town.held) == (64, [])


def test_a_part_is_what_it_is_by_the_last_word() -> None:
    """One worker has taken one, and could have had more; then the other one fills the pool."""
    town = Town(2, 64)
    town.come(0)
    for _ in range(62):
        town.calm()
        town.come(1)
    town.calm()
    for _ in range(16):
        town.come(0)

    assert town.total == 64


def test_a_first_request_waits_for_nobody() -> None:
    town = Town(4, 1)
    for lane in range(4):
        town.come(lane)

    assert town.total == 4, "each worker's part is one at least"


@pytest.mark.parametrize(("count", "limit"), [(2, 3), (4, 3), (4, 8), (8, 3)])
def test_a_burst_takes_no_more_than_the_limit_and_one_for_each_other_worker(count: int, limit: int) -> None:
    town = Town(count, limit)
    for number in range(60):
        town.come(number % count)
    most = town.total
    for _ in range(5):
        town.calm()
        most = max(most, town.total)

    assert most <= limit + count - 1
    assert town.total >= limit


def test_of_more_than_are_named_all_go_in_their_turn() -> None:
    town = Town(2, 1)
    town.come(0)
    town.calm()
    waiting = [town.come(number % 2) for number in range(4 * FIRSTS)]
    town.calm()
    for _ in waiting:
        next(worker for worker in town.workers if worker.open).end()
        town.calm()

    assert served(town)[1:] == waiting


def test_what_has_no_limit_is_let_in_at_once() -> None:
    town = Town(3, None)
    for number in range(30):
        town.come(number % 3)

    assert (town.total, town.held, town.links.sent) == (30, [], 0)


def test_what_only_some_endpoints_may_take_is_its_own_workers() -> None:
    town = Town(2, 1)
    town.come(0)
    town.calm()
    town.come(0)
    town.calm()

    assert town.workers[1].queue.precedes(Lane())
    assert not town.workers[1].queue.precedes(Lane(is_free=False))


def test_a_word_that_comes_after_a_later_one_is_left_alone() -> None:
    """It tells of a request in flight that has ended."""
    town = Town(2, 1)
    town.come(0)
    town.clock.pass_by(0.2)
    town.workers[0].end()
    town.clock.pass_by(0.2)
    words = town.links.words[0, 1]
    assert (words[0][1].in_flight, words[-1][1].in_flight) == (1, 0)
    town.deliver(0, 1, len(words) - 1)
    town.deliver(0, 1)

    assert not town.workers[1].queue.precedes(Lane())


# What a pool tells.


def build_pool(worker: Worker, limit: int | None = 2, gate: Gate | None = None) -> Pool:
    """Three endpoints; the first two have an adapter, all have another one."""
    pool = Pool("llama", LeastLoad(OUTSIDE), max_in_flight=limit, gate=gate)
    pool.hold(worker.queue)
    pool.replace(
        Endpoint(f"e{number}", f"10.0.0.{number}:80", adapters=frozenset(adapters))
        for number, adapters in enumerate((("all", "some"), ("all", "some"), ("all",)), 1)
    )
    return pool


def test_a_pools_room_is_that_of_endpoints_that_may_be_picked() -> None:
    """What others have there counts, and what is on an endpoint that is left out does not."""
    pool = build_pool(Town(2, 1).workers[0])
    assert pool.room() == Room(limit=6, ceiling=6, total=0, ours=0)
    for name, elsewhere in (("e1", 1), ("e2", 4)):
        pool.book.hear(name, elsewhere)
        pool.book.take(name)
    assert pool.room() == Room(limit=6, ceiling=6, total=7, ours=2)
    pool.gate = Shut(frozenset({"e2"}))
    assert pool.room() == Room(limit=4, ceiling=4, total=2, ours=1)
    pool.admission.priorities = {"premium": 10}
    assert pool.room() == Room(limit=4, ceiling=5, total=2, ours=1)
    pool.max_in_flight = None
    assert pool.room() is None


@pytest.mark.parametrize(
    ("adapter", "subset", "is_free"),
    [
        ("", None, True),
        ("all", None, True),
        ("some", None, False),
        ("", ["10.0.0.1:80", "10.0.0.2", "10.0.0.3:80"], True),
        ("", ["10.0.0.1:80"], False),
        ("all", ["10.0.0.1:80"], False),
    ],
)
def test_what_every_endpoint_may_take_is_in_the_order(
    adapter: str, subset: list[str] | None, is_free: bool
) -> None:
    pool = build_pool(Town(2, 1).workers[0])

    assert pool.lane({}, adapter, subset).is_free is is_free
    pool.hold(None)
    assert pool.lane({}, adapter, subset).is_free


def test_what_goes_to_an_endpoint_without_waiting_counts_as_well() -> None:
    """So the second of a room of two waits for the other worker's word."""
    town = Town(2, 2)
    worker = town.workers[0]
    pool = build_pool(worker)
    assert not worker.queue.precedes(Lane())
    pool.pick(pool.strategy.read(None, {}, ""))

    assert worker.queue.precedes(Lane())
    assert "1 unheard" in repr(worker.order)


# Who says nothing.


def test_a_word_that_was_lost_is_asked_for_again() -> None:
    town = Town(2, 1)
    town.come(0)
    town.calm()
    town.come(1)
    town.calm(0.5)
    town.workers[0].end()
    town.clock.pass_by(0.005)
    town.links.words.clear()
    town.calm(0.2)

    assert [request.number for request in served(town)] == [1, 2]


@pytest.mark.parametrize("is_killed", [True, False])
def test_one_that_is_first_and_says_nothing_is_not_waited_for(is_killed: bool) -> None:
    town = Town(3, 2)
    town.come(1)
    town.come(1)
    town.calm()
    for lane in (0, 1, 2):
        town.come(lane)
    town.calm()
    if is_killed:
        town.kill(0)
    else:
        town.workers[0].is_hung = True
    town.workers[1].end()
    town.calm(0.05 if is_killed else 1.5)

    assert [request.number for request in served(town)][2:] == [4]


def test_a_worker_that_is_new_is_heard_before_it_takes_more_than_one() -> None:
    """The others have the pool's whole room; the new one knows nothing of that."""
    town = Town(2, 8)
    for _ in range(8):
        town.come(0)
        town.calm()
    town.kill(1)
    town.revive(1)
    for _ in range(8):
        town.come(1)
    town.calm()

    assert town.total == 9


def test_nothing_new_is_not_said() -> None:
    town = Town(2, 1)
    town.come(0)
    town.calm()
    town.come(1)
    town.calm(0.55)
    sent = town.links.sent
    town.workers[0].queue.stir()
    town.clock.pass_by(0.01)

    assert town.links.sent == sent


def test_words_end_where_nothing_happens() -> None:
    town = Town(3, 2)
    for number in range(6):
        town.come(number % 3)
    for _ in range(6):
        town.calm()
        next(worker for worker in town.workers if worker.open).end()
    town.calm(1.0)

    assert (town.total, town.clock.due) == (0, [])
