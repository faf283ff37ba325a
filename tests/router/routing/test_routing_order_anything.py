"""The bounds of the order among several workers' queues, whatever becomes of words and workers."""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.router.routing.queues import MOST_LOST, SETTLED_S, Town


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
