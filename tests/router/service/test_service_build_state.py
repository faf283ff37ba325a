"""What a state shows, with time passed in."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from extproc.router.feedback.cooling import Cooling, Rules
from extproc.router.feedback.outcome import Outcome, Verdict
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.base import ClockAndRandom
from extproc.router.routing.strategies.registry import STRATEGIES
from extproc.router.service.configuration import Configuration
from extproc.router.service.live.build_state import WINDOW_S, StateBuilder
from extproc.router.service.live.recorder import LAST_DECISIONS, Recording
from extproc.router.service.live.service_state import EndpointRow, State
from extproc.router.settings.reading import parse_settings
from tests.clock import Clock
from tests.stack.client import chat_about

SETTINGS = parse_settings("pools: [{name: llama, endpoints: {static: ['10.0.0.1:80']}}]", {})


class RunningPools(list[SimpleNamespace]):
    def remarks(self) -> list[str]:
        return []


@dataclass
class Stage:
    """One pool, and everything that a builder looks at."""

    strategy: str = "prefix_cache"
    size: int = 3
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        outside = ClockAndRandom(random.Random(1), self.clock)
        cooling = Cooling(Rules(), clock=self.clock, rng=outside.rng)
        self.pool = Pool("llama", STRATEGIES.build(self.strategy, {}, outside), gate=cooling)
        self.pool.replace([Endpoint(f"e{n}", f"10.0.0.{n}:80") for n in range(self.size)])
        self.feedback = PoolFeedback(self.pool, cooling)
        keeper = SimpleNamespace(pool=self.pool, age_s=3.0, fault=None)
        running = SimpleNamespace(
            pool=self.pool,
            keeper=keeper,
            feedback=self.feedback,
            name="llama",
            lint=None,
            settings=SETTINGS.pools[0],
        )
        running.foretell = lambda: None
        running.describe_events = lambda: {"e1": {"state": "degraded", "why": "7 lost"}}
        self.pools = RunningPools([running])
        self.picker = Picker([Route(self.pool)])
        self.configuration = Configuration(SETTINGS, "file", self.clock())
        self.recording = Recording(self.clock)
        self.builder = StateBuilder(self.recording)
        self.trouble: list[str] = []

    def faults(self) -> list[str]:
        return self.trouble

    def pick(self, text: str) -> str:
        decision = self.picker.pick(Query("POST", "/v1/chat/completions", {}, chat_about(text)))
        self.recording.note(decision)
        return decision.pick.endpoint.name

    def answer(self, number: int, first_token_s: float) -> None:
        before = self.feedback.signals.get(f"e{number}", EndpointSignals())
        counts = before.first_tokens + 1, before.first_token_s + first_token_s
        self.feedback.signals[f"e{number}"] = EndpointSignals(
            first_tokens=counts[0], first_token_s=counts[1]
        )

    def draw(self) -> State:
        return self.read()()

    def read(self) -> Callable[[], State]:
        return self.builder.read(self, self.clock())  # type: ignore[arg-type]  # keepers of ours

    def rows(self) -> dict[str, EndpointRow]:
        return {row.name: row for row in self.draw().pools[0].endpoints}


def test_shares_reasons_and_refusals_are_those_since_somebody_looks() -> None:
    """Whoever misses a state finds in the next what it missed."""
    stage = Stage("round_robin")
    assert [row.share for row in stage.rows().values()] == [None, None, None]
    for number in range(6):
        stage.pick(str(number))

    state = stage.draw()

    assert [row.share for row in state.pools[0].endpoints] == [0.3333, 0.3333, 0.3333]
    assert [row.in_flight for row in state.pools[0].endpoints] == [2, 2, 2]
    assert [row.events for row in state.pools[0].endpoints] == [None, "degraded: 7 lost", None]
    assert state.pools[0].balance == 1.0
    assert state.reasons == {"llama": {"turn": 6}}
    stage.recording.refuse("llama", "overloaded")
    stage.recording.refuse("", "model_not_found")
    assert stage.draw().reasons == {
        "llama": {"turn": 6, "overloaded": 1},
        "": {"model_not_found": 1},
    }


def test_what_was_counted_before_the_window_is_left_out_once_something_is_in_it() -> None:
    stage = Stage()
    stage.answer(0, 9.0)
    assert stage.rows()["e0"].first_token_s == 9.0  # all there is
    stage.clock.now_s += 1
    stage.answer(0, 1.0)
    assert stage.rows()["e0"].first_token_s == 1.0
    stage.clock.now_s += WINDOW_S + 1
    stage.draw()

    # Nothing in this minute: all that ever was.
    assert stage.rows()["e0"].first_token_s == 5.0
    assert stage.rows()["e1"].first_token_s is None


def test_a_state_is_of_the_moment_of_reading() -> None:
    """What happens before it is built is in the next state."""
    size = 400
    stage, quiet = Stage("round_robin", size), Stage("round_robin", size)
    for each in (stage, quiet):
        each.draw()
        for number in range(size):
            each.pick(str(number))
            each.answer(number % 200, 1.0)
    reported_of = stage.pool.snapshot.ready["e1"]
    build = stage.read()
    stage.pick("another")
    stage.answer(7, 9.0)
    stage.recording.refuse("llama", "overloaded")
    stage.feedback.apply_signals(reported_of, EndpointSignals(queried_tokens=10.0, hit_tokens=5.0))
    stage.trouble = ["late"]
    stage.pool.replace([Endpoint("e0", "10.0.0.0:80")])
    stage.feedback.keep({"e0"})

    assert build() == quiet.draw()


def test_hits_predicted_and_found_are_shown_by_endpoint_and_of_the_pool() -> None:
    stage = Stage()
    stage.draw()
    text = "the same prompt " * 100
    first = stage.pick(text)
    stage.clock.now_s += 1
    assert stage.pick(text) == first
    endpoint = stage.pool.snapshot.ready[first]
    stage.feedback.apply_signals(endpoint, EndpointSignals(queried_tokens=1_000, hit_tokens=400))
    state = stage.draw()
    row = next(row for row in state.pools[0].endpoints if row.name == first)
    stage.clock.now_s += 1
    stage.feedback.apply_signals(endpoint, EndpointSignals(queried_tokens=100, hit_tokens=10))

    assert (
        (row.predicted, row.found) == (state.pools[0].predicted, state.pools[0].found) == (0.5, 0.4)
    )
    assert stage.rows()[first].found == 0.1, (
        "an engine that began again is told by what it counts since"
    )


def test_a_cooling_endpoint_shows_for_how_long_and_the_service_why_it_is_not_ready() -> None:
    stage = Stage()
    for _ in range(3):
        stage.feedback.observe(Outcome("10.0.0.1:80", Verdict.FAILED, 500, 0.1))
    stage.trouble.append("pool llama: no list of endpoints yet")

    state = stage.draw()
    row = state.pools[0].endpoints[1]

    assert (row.state, state.pools[0].states) == ("cooling", {"ready": 2, "cooling": 1})
    assert row.left_s is not None
    assert 1.5 < row.left_s < 2.5
    assert (state.is_ready, state.faults) == (False, ["pool llama: no list of endpoints yet"])


def test_a_refused_configuration_is_reported_until_another_one_is_applied() -> None:
    stage = Stage()
    stage.configuration = stage.configuration.refused("no", stage.clock())
    stage.clock.now_s += 5
    configuration = stage.draw().configuration
    assert configuration.refusal is not None
    assert (configuration.number, configuration.refusal.age_s, configuration.refusal.why) == (
        1,
        5.0,
        "no",
    )
    stage.configuration = stage.configuration.replaced(SETTINGS, stage.clock())

    assert stage.draw().configuration.refusal is None
    assert stage.draw().configuration.number == 2


def test_the_tape_keeps_the_last_decisions_and_nothing_of_a_prompt() -> None:
    stage = Stage("prefix_hash")
    for number in range(LAST_DECISIONS + 10):
        stage.pick(f"a secret {number}")

    state = stage.draw()

    assert [row.number for row in state.decisions] == list(range(LAST_DECISIONS + 10, 10, -1))
    assert "secret" not in str(stage.recording.last) + str(state)
    assert all(row.prefix is not None and len(row.prefix) == 16 for row in state.decisions)
    assert state.pools[0].bound is not None
    assert Stage("prefix_cache").draw().pools[0].bound is None, "it has none"


@given(st.lists(st.integers(0, 2), max_size=60), st.lists(st.integers(0, 90), max_size=60))
def test_shares_add_up_and_means_lie_between_the_extremes(
    picks: list[int], steps: list[int]
) -> None:
    stage = Stage("random")
    for number, step in zip(picks, steps, strict=False):
        stage.pick("x")
        stage.answer(number, 1.0 + number)
        stage.clock.now_s += step
        state = stage.draw()
        shares = [row.share for row in state.pools[0].endpoints]

        assert None in shares or abs(sum(share or 0 for share in shares) - 1) < 0.001
        assert all(
            row.first_token_s in (None, 1.0 + at) for at, row in enumerate(state.pools[0].endpoints)
        )
        mean_s = state.pools[0].first_token_s
        assert mean_s is not None
        assert 1.0 <= mean_s <= 3.0
