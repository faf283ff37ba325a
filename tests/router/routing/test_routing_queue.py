"""The queue of a pool: who waits, who leaves first, and that nobody is lost or counted twice."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from extproc.errors import (
    Cold,
    NoEndpoint,
    Overloaded,
    OverShare,
    PromptError,
    RequestError,
    Sheddable,
)
from extproc.grpc_server.budget import Budget
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.queue import TICK_S, Lane, Queue, QueueEnd, QueueLimits, Waiter
from extproc.router.routing.strategies.balanced import LeastLoad
from extproc.router.routing.strategies.base import ClockAndRandom
from extproc.router.share.letters import Echo, Heartbeat, Letter, name_of
from extproc.router.share.pool_share import Share
from tests.tables import table

OUTSIDE = ClockAndRandom(random.Random(0), lambda: 0.0)
PREMIUM, USUAL, BATCH = Lane(10), Lane(), Lane(-10)


@dataclass
class Clock:
    """Time that the test lets pass, and what was put off."""

    now_s: float = 0.0
    due: list[tuple[float, object]] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s

    def later(self, delay_s: float, action: object) -> None:
        self.due.append((self.now_s + delay_s, action))

    def pass_by(self, seconds: float = 0.0) -> None:
        """Does what falls due, in its order."""
        until_s = self.now_s + seconds
        while ripe := [entry for entry in self.due if entry[0] <= until_s]:
            first = min(ripe, key=lambda entry: entry[0])
            self.due.remove(first)
            self.now_s = max(self.now_s, first[0])
            assert callable(first[1])
            first[1]()
        self.now_s = until_s


@dataclass
class Door:
    """What lets requests in: so many `places`, to lanes that are not `closed`. Notes who left, and how."""

    clock: Clock
    budget: Budget
    queue: Queue
    places: int = 0
    closed: frozenset[Lane] = frozenset()
    served: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)  # of the refused: their time had ended
    asked: int = 0

    def send(self, name: str, lane: Lane = USUAL, size_bytes: int = 0) -> Waiter | None:
        """A request that finds no room; `None`: it was not held, either."""
        waiter = Waiter(lane, size_bytes)
        if not self.queue.enter(waiter):
            return None
        waiter.retry = lambda is_last: self.ask(name, waiter, is_last)
        return waiter

    def ask(self, name: str, waiter: Waiter, is_last: bool) -> None:
        self.asked += 1
        if self.places and waiter.lane not in self.closed:
            self.places -= 1
            self.served.append(name)
            self.queue.leave(waiter, QueueEnd.SERVED)
        elif is_last:
            self.refused.append(name)
            self.over += [name] * self.queue.is_over(waiter)
            self.queue.leave(waiter, QueueEnd.REFUSED)

    def open(self, count: int = 1) -> None:
        self.places += count
        self.queue.stir()
        self.clock.pass_by()

    @property
    def ends(self) -> dict[QueueEnd, int]:
        return {end: sum(stays.counts) for end, stays in self.queue.stays.items()}


def build_door(
    requests: int = 10, limit_bytes: int = 1_000, wait_s: float = 30.0, settle_s: float = 1.0
) -> Door:
    clock = Clock()
    limits, budget = QueueLimits(wait_s, requests, settle_s), Budget(limit_bytes)
    return Door(clock, budget, Queue(limits, budget, clock=clock, later=clock.later))


@table(
    ("came", "places", "served"),
    [
        (["a", "b", "c"], 1, ["a"]),
        (["a", "b", "c"], 2, ["a", "b"]),
        (["a", "b"], 5, ["a", "b"]),
        (["a", "b10", "c-10", "d10", "e"], 4, ["b10", "d10", "a", "e"]),
    ],
)
def test_as_many_leave_as_there_is_room_for_in_order(
    came: list[str], places: int, served: list[str]
) -> None:
    door = build_door()
    for name in came:
        door.send(name, Lane(int(name[1:] or 0)))
    door.open(places)

    assert door.served == served


@table(("stirs", "places", "served", "asked"), [(1, 1, ["0"], 2), (5, 0, [], 1)])
def test_one_more_is_asked_than_let_in(
    stirs: int, places: int, served: list[str], asked: int
) -> None:
    door = build_door(requests=1_000)
    for number in range(1_000):
        door.send(str(number))
    for _ in range(stirs):
        door.queue.stir()
    door.open(places)

    assert (door.served, door.asked, len(door.queue)) == (served, asked, 1_000 - places)


def test_who_is_kept_out_for_itself_stands_in_nobodys_way() -> None:
    door = build_door()
    busy, other = Lane(client=1), Lane(client=2)
    door.closed = frozenset({busy})
    for name, lane in (("busy", busy), ("busy too", busy), ("other", other)):
        door.send(name, lane)
    door.open(2)

    assert (door.served, door.places, door.asked) == (["other"], 1, 2)


def test_a_newcomer_waits_behind_its_lane_only_while_one_of_it_waits() -> None:
    door = build_door()
    door.send("a", Lane(client=1))
    assert door.queue.precedes(Lane(client=1))
    assert not door.queue.precedes(Lane(client=2))
    door.open(1)
    assert not door.queue.precedes(Lane(client=1))


def test_those_who_wait_are_asked_before_a_newcomer() -> None:
    """Room was made, and the newcomer comes before the queue had its turn."""
    door = build_door()
    door.send("a")
    door.places = 1
    door.queue.stir()

    assert not door.queue.precedes(USUAL)
    assert (door.served, door.places) == (["a"], 0)


def test_a_request_beyond_the_bound_is_not_held_nor_turns_anybody_out_if_no_queue_had_room_for_it() -> (
    None
):
    door = build_door(requests=2, limit_bytes=100)
    held = [
        door.send(name, size_bytes=size)
        for name, size in (("a", 60), ("big", 50), ("b", 40), ("c", 0))
    ]
    assert [waiter is not None for waiter in held] == [True, False, True, False]
    assert (door.send("huge", PREMIUM, 101), door.refused) == (None, [])
    door.open(2)
    assert door.send("d", size_bytes=100) is not None


@table("by_bytes", [False, True])
def test_a_full_queue_makes_room_for_higher_priorities_from_the_lowest_end(by_bytes: bool) -> None:
    size = 500 if by_bytes else 0
    door = build_door(requests=10 if by_bytes else 2)
    door.send("batch", BATCH, size)
    door.send("usual", USUAL, size)

    assert door.send("more batch", BATCH, size) is None
    assert door.send("premium", PREMIUM, size) is not None
    assert door.send("more premium", PREMIUM, size) is not None
    assert door.send("too many", PREMIUM, size) is None
    assert (door.refused, door.over) == (["batch", "usual"], [])


def test_who_waits_too_long_is_asked_a_last_time() -> None:
    door = build_door(wait_s=5.0)
    door.send("a")
    door.clock.pass_by(3)
    door.send("b")
    door.clock.pass_by(2 + TICK_S)
    assert (door.refused, door.over, len(door.queue)) == (["a"], ["a"], 1)
    door.places = 1
    door.clock.pass_by(3)
    assert (door.served, door.refused) == (["b"], ["a"])


def test_what_made_room_without_a_word_is_noticed_soon() -> None:
    """An endpoint that was left out is back: no event says so."""
    door = build_door()
    door.send("a")
    door.places = 1
    door.clock.pass_by(TICK_S)

    assert door.served == ["a"]


def test_a_queue_that_is_shut_refuses_all_and_holds_nobody_more() -> None:
    door = build_door()
    door.send("a")
    door.send("b", PREMIUM)
    door.queue.shut()

    assert (door.refused, door.over) == (["b", "a"], [])
    assert door.send("c") is None


def test_nothing_ticks_where_nobody_waits() -> None:
    door = build_door()
    door.send("a")
    door.open(1)
    door.queue.stir()
    door.clock.pass_by(1)

    assert door.clock.due == []


def test_of_many_lanes_only_some_are_asked_at_a_time() -> None:
    door = build_door(requests=5_000)
    for number in range(5_000):
        door.send(str(number), Lane(client=number))
    door.queue.admit()

    assert door.asked < 100


@table("is_shut", [False, True])
def test_of_very_many_only_some_leave_in_one_turn(is_shut: bool) -> None:
    door = build_door(requests=1_000)
    for number in range(1_000):
        door.send(str(number))
    door.places = 0 if is_shut else 1_000
    if is_shut:
        door.queue.shut()
    else:
        door.queue.admit()
    at_once = len(door.served) + len(door.refused)
    door.clock.pass_by()

    assert 0 < at_once < 100
    assert len(door.served) + len(door.refused) == 1_000


def test_stays_are_counted_by_how_they_ended() -> None:
    door = build_door(wait_s=20)
    for name in ("a", "b"):
        door.send(name)
    door.clock.pass_by(3)
    door.open(1)
    door.clock.pass_by(20)

    assert door.ends == {QueueEnd.SERVED: 1, QueueEnd.REFUSED: 1, QueueEnd.ABORTED: 0}
    assert door.queue.stays[QueueEnd.SERVED].sum_s == pytest.approx(3)
    assert door.queue.stays[QueueEnd.REFUSED].sum_s == pytest.approx(20, abs=2 * TICK_S)


def build_pool(door: Door, endpoints: int = 1, limit: int | None = 1) -> Pool:
    pool = Pool("llama", LeastLoad(OUTSIDE), max_in_flight=limit)
    pool.hold(door.queue)
    pool.replace(some_endpoints(endpoints))
    return pool


def some_endpoints(count: int) -> list[Endpoint]:
    return [Endpoint(f"e{number}", f"10.0.0.{number + 1}:80") for number in range(count)]


def pick(pool: Pool) -> Pick:
    return pool.pick(pool.strategy.read(None, {}, ""))


def ask_pool(pool: Pool, queue: Queue, taken: list[Pick]) -> Waiter:
    """Holds a request that tries the pool."""
    waiter = Waiter(USUAL)

    def ask(is_last: bool) -> None:
        try:
            taken.append(pick(pool))
        except RequestError:
            if is_last:
                queue.leave(waiter, QueueEnd.REFUSED)
        else:
            queue.leave(waiter, QueueEnd.SERVED)

    assert queue.enter(waiter)
    waiter.retry = ask
    return waiter


def test_an_end_that_a_peer_tells_of_lets_one_in() -> None:
    door = build_door()
    pool, taken = build_pool(door), list[Pick]()
    share = Share(pool, 7)
    peer, heard = 8, name_of("llama")

    def tell(sent_us: int, counts: dict[int, int], now: float) -> None:
        ours = share.heartbeat(now)
        echo = Echo(7, ours.sent_us, 0)
        share.receive(
            Letter(peer, heard, sent_us, [Heartbeat(sent_us, counts)], [echo]), now + 0.001
        )

    tell(1, {name_of("e0"): 1}, 10.0)
    tell(2, {name_of("e0"): 1}, 10.1)
    assert pool.book.total == 1
    ask_pool(pool, door.queue, taken)
    tell(3, {}, 10.2)
    door.clock.pass_by()

    assert (len(taken), len(door.queue)) == (1, 0)


def test_requests_before_any_endpoint_wait_until_the_gateway_has_heard_of_the_first() -> None:
    door = build_door(settle_s=2.0)
    pool, taken = build_pool(door, 0, limit=None), list[Pick]()
    for _ in range(3):
        ask_pool(pool, door.queue, taken)
    door.clock.pass_by(1)
    pool.replace(some_endpoints(1))
    door.clock.pass_by(1.5)
    before = len(taken), door.queue.precedes(Lane(client=9))
    door.clock.pass_by(0.6)

    assert before == (0, True)
    assert (len(taken), len(door.queue)) == (3, 0)


def test_another_queue_refuses_who_waits_in_the_one_before() -> None:
    door, other = build_door(), build_door()
    pool, taken = build_pool(door, 0), list[Pick]()
    ask_pool(pool, door.queue, taken)
    pool.hold(other.queue)
    assert (len(door.queue), door.ends[QueueEnd.REFUSED]) == (0, 1)
    pool.hold(None)
    assert pool.queue is None
    assert pool.book.on_less is None


@table(
    ("refusal", "has_endpoints", "may_pass"),
    [
        (Overloaded("full"), True, True),
        (Sheddable("full"), True, True),
        (OverShare("full"), True, True),
        (Cold("caches"), True, False),
        (NoEndpoint("none for this"), True, False),
        (NoEndpoint("none"), False, True),
        (PromptError("bad"), False, False),
    ],
)
def test_what_passes_by_itself_is_held(
    refusal: RequestError, has_endpoints: bool, may_pass: bool
) -> None:
    assert build_pool(build_door(), int(has_endpoints)).may_pass(refusal) is may_pass


class _Anything(RuleBasedStateMachine):
    """A door and a queue against lists of names."""

    def __init__(self) -> None:
        super().__init__()
        self.door = build_door(requests=5, limit_bytes=100, wait_s=4.0)
        self.waiting: dict[str, Waiter] = {}
        self.came: list[str] = []
        self.aborted: set[str] = set()
        self.turned_away = 0

    @rule(priority=st.integers(-1, 1), client=st.integers(0, 2), size=st.integers(0, 60))
    def come(self, priority: int, client: int, size: int) -> None:
        name = f"{len(self.came)}"
        waiter = self.door.send(name, Lane(priority, client), size)
        if waiter is None:
            self.turned_away += 1
        else:
            self.came.append(name)
            self.waiting[name] = waiter

    @rule(places=st.integers(1, 3))
    def make_room(self, places: int) -> None:
        before = self.queued()
        self.door.open(places)
        served = self.door.served[len(self.door.served) - (len(before) - len(self.queued())) :]
        assert served == before[: len(served)]
        self.door.places = 0

    @rule(number=st.integers(0, 5))
    def abort(self, number: int) -> None:
        queued = self.queued()
        if number < len(queued):
            self.aborted.add(queued[number])
            for _ in range(2):
                self.door.queue.leave(self.waiting[queued[number]], QueueEnd.ABORTED)

    @rule(seconds=st.sampled_from([0.1, 1.0, 5.0]))
    def pass_by(self, seconds: float) -> None:
        self.door.clock.pass_by(seconds)

    def queued(self) -> list[str]:
        """Who waits, as they should leave."""
        inside = [name for name in self.came if self.waiting[name] in self.door.queue]
        return sorted(
            inside, key=lambda name: (-self.waiting[name].lane.priority, self.waiting[name].number)
        )

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.door.queue) <= 5
        held = [self.waiting[name] for name in self.queued()]
        assert sum(waiter.size_bytes for waiter in held) == self.door.budget.used <= 100
        assert [*self.door.queue] == held
        lanes = {Lane(priority, client) for priority in (-1, 0, 1) for client in range(3)}
        assert {*filter(self.door.queue.precedes, lanes)} == {waiter.lane for waiter in held}

    @invariant()
    def each_leaves_once(self) -> None:
        left = [*self.door.served, *self.door.refused, *self.aborted]
        assert sorted([*left, *self.queued()]) == sorted(self.came)
        assert sum(self.door.ends.values()) == len(left)

    @invariant()
    def nobody_outstays_its_time(self) -> None:
        assert all(
            self.waiting[name].until_s > self.door.clock.now_s - 2 * TICK_S
            for name in self.queued()
        )


def test_every_held_request_leaves_exactly_once_in_order_and_within_bounds() -> None:
    run_state_machine_as_test(_Anything, settings=settings(stateful_step_count=30))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=40), st.integers(1, 3))
def test_a_pool_never_has_more_in_flight_than_it_may(
    steps: list[tuple[bool, int]], limit: int
) -> None:
    """Requests come and end in any order; the queue never lets one in too many, nor leaves a place empty."""
    door = build_door(requests=100)
    pool, taken = build_pool(door, limit=limit), list[Pick]()
    for comes, number in steps:
        if comes:
            try:
                assert not door.queue.precedes(USUAL)
                taken.append(pick(pool))
            except (AssertionError, Overloaded):
                ask_pool(pool, door.queue, taken)
        elif taken:
            taken.pop(number % len(taken)).release()
            door.clock.pass_by()
        assert pool.book.total == len(taken) <= limit
        assert not len(door.queue) or len(taken) == limit
