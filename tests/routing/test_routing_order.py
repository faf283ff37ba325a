"""The order among the queues of several workers: who goes in next, and that no more do than may."""

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from extproc.budget import Budget
from extproc.routing.endpoint import Endpoint
from extproc.routing.order import FIRSTS, Order, Room, Word
from extproc.routing.pool import Gate, Pool
from extproc.routing.queue import End, Lane, Limits, Queue, Waiter
from extproc.routing.strategies.balanced import LeastLoad
from tests.routing.test_routing_queue import OUTSIDE, Clock

# No word is longer on its way, and of one link no more are lost in a row.
SLOWEST_S = 0.1
MOST_LOST = 2
# So late everybody knows what there was to know.
SETTLED_S = 1.0


@dataclass(frozen=True)
class Request:
    number: int
    priority: int
    came_s: float


@dataclass
class Links:
    """Words on their way, each with the moment that it was sent at."""

    clock: Clock
    words: dict[tuple[int, int], list[tuple[float, Word]]] = field(default_factory=dict)
    alive: set[int] = field(default_factory=set)
    sent: int = 0

    def send(self, start: int, stop: int, word: Word) -> None:
        self.sent += 1
        self.words.setdefault((start, stop), []).append((self.clock.now_s, word))


class Worker:
    """One queue with its order. What it has in flight is all that its admission knows of."""

    def __init__(self, lane: int, links: Links, limit: int | None) -> None:
        self.lane = lane
        self.links = links
        self.limit = limit
        self.is_hung = self.is_over = False
        self.hung_s = 0.0
        self.open: list[Request] = []
        self.let_in: list[tuple[float, Request]] = []
        self.held: dict[int, Request] = {}
        self.order = Order("llama", self, self.room, later=self.later)
        limits = Limits(wait_s=1e6, requests=10_000)
        self.queue = Queue(limits, Budget(1), clock=links.clock, later=self.later, order=self.order)

    def others(self) -> Collection[int]:
        return self.links.alive - {self.lane}

    def tell(self, word: Word) -> None:
        for lane in sorted(self.others()):
            self.tell_one(lane, word)

    def tell_one(self, lane: int, word: Word) -> None:
        self.links.send(self.lane, lane, word)

    def later(self, delay_s: float, action: object) -> None:
        def act() -> None:
            if not (self.is_hung or self.is_over):
                assert callable(action)
                action()

        self.links.clock.later(delay_s, act)

    def room(self) -> Room | None:
        ours = len(self.open)
        return None if self.limit is None else Room(self.limit, self.limit, ours, ours)

    def has_room(self) -> bool:
        return self.limit is None or len(self.open) < self.limit

    def come(self, request: Request) -> None:
        lane = Lane(request.priority)
        if not self.queue.precedes(lane) and self.has_room():
            self.go(request)
            return
        waiter = Waiter(lane)
        assert self.queue.enter(waiter)
        self.held[request.number] = request
        waiter.ask = lambda _: self.ask(waiter, request)

    def ask(self, waiter: Waiter, request: Request) -> None:
        if self.has_room():
            self.go(request)
            del self.held[request.number]
            self.queue.leave(waiter, End.SERVED)

    def go(self, request: Request) -> None:
        self.queue.went()
        self.open.append(request)
        self.let_in.append((self.links.clock.now_s, request))

    def end(self) -> None:
        self.open.pop(0)
        self.queue.stir()


class Town:
    """So many workers of one pool."""

    def __init__(self, count: int, limit: int | None) -> None:
        self.clock = Clock()
        self.links = Links(self.clock, alive={*range(count)})
        self.limit = limit
        self.workers = [Worker(lane, self.links, limit) for lane in range(count)]
        self.came = 0
        for lane in range(count):
            self.meet(lane)
        self.calm(0.001)

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.lane in self.links.alive]

    @property
    def awake(self) -> list[Worker]:
        return [worker for worker in self.living if not worker.is_hung]

    @property
    def total(self) -> int:
        return sum(len(worker.open) for worker in self.living)

    @property
    def held(self) -> list[Request]:
        return [request for worker in self.awake for request in worker.held.values()]

    def come(self, lane: int, priority: int = 0) -> Request:
        self.came += 1
        request = Request(self.came, priority, self.clock.now_s)
        self.workers[lane].come(request)
        return request

    def deliver(self, start: int, stop: int, place: int = 0) -> None:
        words = self.links.words.get((start, stop), [])
        if place >= len(words) or self.workers[stop].is_hung:
            return
        _, word = words.pop(place)
        self.workers[stop].order.hear(start, word)

    def deliver_all(self, older_s: float = 0.0) -> None:
        """Brings what has been on its way for so long, in its order."""
        for (start, stop), words in [*self.links.words.items()]:
            while words and not self.workers[stop].is_hung and words[0][0] <= self.clock.now_s - older_s:
                self.deliver(start, stop)

    def pass_by(self, seconds: float, late_s: float = SLOWEST_S) -> None:
        """Lets time pass; no word is later than so."""
        until_s = self.clock.now_s + seconds
        while self.clock.now_s < until_s:
            self.deliver_all(late_s)
            self.clock.pass_by(min(0.01, until_s - self.clock.now_s))

    def calm(self, seconds: float = 0.05) -> None:
        """Until everybody has heard all, as on an idle machine."""
        self.pass_by(seconds, 0.0)
        self.deliver_all()
        self.clock.pass_by()

    def meet(self, lane: int) -> None:
        """A worker has begun, and says so."""
        for other in self.awake:
            if other.lane != lane:
                other.order.meet(lane)

    def kill(self, lane: int) -> None:
        """The kernel closes its links."""
        self.workers[lane].is_over = True
        self.links.alive.discard(lane)
        for pair in [pair for pair in self.links.words if lane in pair]:
            del self.links.words[pair]
        for worker in self.awake:
            worker.order.lose(lane)

    def revive(self, lane: int) -> None:
        self.workers[lane] = Worker(lane, self.links, self.limit)
        self.links.alive.add(lane)


def served(town: Town) -> list[Request]:
    entries = [entry for worker in town.workers for entry in worker.let_in]
    return [request for _, request in sorted(entries, key=lambda entry: entry[0])]


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


class Closing:
    """A gate that leaves out `names`."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def closed(self) -> frozenset[str]:
        return self._names

    def set_members(self, names: Iterable[str]) -> None: ...

    def picked(self, name: str) -> None: ...

    def shut(self) -> dict[str, str]:
        return {}

    def has_trial(self) -> bool:
        return False

    def wants_response(self, name: str) -> bool:
        return bool(self._names & {name})


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
    pool.gate = Closing(frozenset({"e2"}))
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


# Whatever happens.


@pytest.mark.parametrize("seed", range(240, 280))
def test_large_bursts_and_many_ends_at_a_time_pass_no_bound(seed: int) -> None:
    """What takes more requests than a machine that looks for the smallest case gets to."""
    rng = random.Random(seed)
    count, limit = rng.choice([2, 3, 4, 6]), rng.choice([1, 3, 8, 20, 60])
    town = Town(count, limit)
    for _ in range(150):
        what, lane = rng.random(), rng.randrange(count)
        if what < 0.3:
            priority = rng.choice([0, 0, 0, 1])
            for _ in range(rng.randint(1, 15)):
                town.come(lane, priority)
        elif what < 0.45:
            worker = town.workers[lane]
            for _ in range(min(len(worker.open), rng.randint(1, 30))):
                worker.end()
        elif what < 0.8:
            start, stop = rng.sample(range(count), 2)
            for _ in range(rng.randint(1, 5)):
                town.deliver(start, stop)
        elif what < 0.97:
            town.pass_by(rng.choice([0.001, 0.002, 0.01, 0.05]))
        else:
            town.calm()
        assert town.total <= limit + count - 1


class _Anything(RuleBasedStateMachine):
    """Words are late, lost, and change places; workers hang and are killed."""

    def __init__(self) -> None:
        super().__init__()
        self.town = Town(2, 1)
        self.lost: dict[tuple[int, int], int] = {}

    lanes = st.integers(0, 3)

    @initialize(count=st.integers(2, 4), limit=st.sampled_from([1, 3, 8, 20]))
    def begin(self, count: int, limit: int) -> None:
        self.town = Town(count, limit)

    @rule(lane=lanes, count=st.integers(1, 10), priority=st.integers(0, 1))
    def come(self, lane: int, count: int, priority: int) -> None:
        if lane in self.awake:
            for _ in range(count):
                self.town.come(lane, priority)

    @property
    def awake(self) -> set[int]:
        return {worker.lane for worker in self.town.awake}

    @rule(lane=lanes, count=st.integers(1, 8))
    def end(self, lane: int, count: int) -> None:
        if lane in self.awake:
            worker = self.town.workers[lane]
            for _ in range(min(count, len(worker.open))):
                worker.end()

    @rule(start=lanes, stop=lanes, place=st.integers(0, 2))
    def deliver(self, start: int, stop: int, place: int) -> None:
        if start in self.town.links.alive and stop in self.town.links.alive:
            self.town.deliver(start, stop, place)
            self.lost[start, stop] = 0

    @rule(start=lanes, stop=lanes)
    def lose(self, start: int, stop: int) -> None:
        words, lost = self.town.links.words.get((start, stop)), self.lost.get((start, stop), 0)
        if words and lost < MOST_LOST:
            words.pop(0)
            self.lost[start, stop] = lost + 1

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.5]))
    def pass_by(self, seconds: float) -> None:
        self.town.pass_by(seconds)
        self.town.clock.pass_by()
        self.lost.clear()

    @rule()
    def calm(self) -> None:
        self.town.calm()

    @precondition(lambda self: len(self.town.awake) > 1)
    @rule(lane=lanes)
    def hang(self, lane: int) -> None:
        if lane in self.awake:
            worker = self.town.workers[lane]
            worker.is_hung, worker.hung_s = True, self.town.clock.now_s

    @precondition(lambda self: len(self.town.awake) > 1)
    @rule(lane=lanes)
    def kill(self, lane: int) -> None:
        """The parent does so with one that hangs."""
        if lane in self.town.links.alive:
            self.town.kill(lane)

    @rule(lane=lanes, says_so=st.booleans())
    def revive(self, lane: int, says_so: bool) -> None:
        if lane < len(self.town.workers) and lane not in self.town.links.alive:
            self.town.revive(lane)
            if says_so:
                self.town.meet(lane)

    @invariant()
    def no_more_are_let_in_than_the_limit_and_one_for_each_other(self) -> None:
        town = self.town
        counted = [
            worker
            for worker in town.living
            if not worker.is_hung or town.clock.now_s - worker.hung_s < SETTLED_S
        ]
        assert town.limit is not None
        assert sum(len(worker.open) for worker in counted) <= town.limit + len(town.workers) - 1

    @invariant()
    def nobody_is_overtaken_for_long(self) -> None:
        town = self.town
        for worker in town.awake:
            for at_s, request in worker.let_in:
                if at_s < town.clock.now_s - SETTLED_S:
                    for waiting in town.held:
                        is_later = request.came_s > waiting.came_s + SETTLED_S
                        assert not (is_later and request.priority <= waiting.priority), (request, waiting)

    def teardown(self) -> None:
        """As soon as words come again and requests end, everybody is served."""
        town = self.town
        for worker in town.living:
            if worker.is_hung:
                town.kill(worker.lane)
        for _ in range(len(town.held) + town.total):
            town.calm()
            for worker in [worker for worker in town.awake if worker.open][:1]:
                worker.end()
        town.calm(1.5)
        assert not town.held
        assert not town.clock.due or town.total


def test_the_limit_and_the_order_hold_whatever_becomes_of_words_and_workers() -> None:
    run_state_machine_as_test(_Anything, settings=settings(max_examples=100, stateful_step_count=40))
