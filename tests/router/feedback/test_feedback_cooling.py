"""Cooling down, in the test's own time."""

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from extproc.router.feedback.cooling import Change, Cooling, Rules, Why
from extproc.router.feedback.outcome import Outcome, Verdict
from tests.clock import Clock
from tests.tables import table

EXACT = Rules(jitter=0.0)
NAMES = ("a", "b", "c", "d")


class Bench:
    """A pool of four, and short words for what happens to it."""

    def __init__(self, rules: Rules = EXACT, names: tuple[str, ...] = NAMES, seed: int = 1) -> None:
        self.clock = Clock()
        self.cooling = Cooling(rules, clock=self.clock, rng=random.Random(seed))
        self.cooling.set_members(names)
        self.names = frozenset(names)

    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    def hear(
        self, name: str, verdict: Verdict, duration_s: float = 0.01, **fields: float
    ) -> Change | None:
        outcome = Outcome(name, verdict, duration_s=duration_s, **fields)  # type: ignore[arg-type]  # floats
        return self.cooling.observe(name, outcome)

    def fail(self, name: str, times: int = 3, duration_s: float = 0.01) -> Change | None:
        return [self.hear(name, Verdict.FAILED, duration_s) for _ in range(times)][-1]

    def answer(
        self, name: str, duration_s: float = 0.01, first_byte_s: float = 0.01
    ) -> Change | None:
        return self.hear(name, Verdict.ANSWERED, duration_s, first_byte_s=first_byte_s)

    def put_on_trial(self, name: str, after_s: float = 2.0) -> None:
        """Gets the first request after so long; the next outcome is of that one."""
        self.wait(after_s)
        self.cooling.picked(name)
        self.wait(0.1)

    def view(self) -> tuple[str, Mapping[str, Why]]:
        """Who is open, and why others are shut."""
        return self.open(), self.cooling.shut()

    def open(self) -> str:
        return "".join(sorted(self.names - self.cooling.closed()))


@table(
    ("story", "cools"),
    [
        *((story, True) for story in ("fff", "flflf", "ffuf", "xaxxx")),
        *((story, False) for story in ("ff", "ffa" * 10, "a" * 100, "b" * 100, "u" * 100)),
    ],
)
def test_three_failures_or_cut_answers_in_a_row_cool_an_endpoint_down(
    story: str, cools: bool
) -> None:
    """Of `l`, a long answer that began before the failures, each open stream has one: it ends no row."""
    verdicts = {"f": Verdict.FAILED, "b": Verdict.BUSY, "u": Verdict.UNKNOWN, "x": Verdict.BROKEN}
    bench = Bench()
    changes = [
        bench.hear("a", verdicts[event])
        if event in verdicts
        else bench.answer("a", *((60, 1) if event == "l" else ()))
        for event in story
    ]

    assert changes == [None] * (len(story) - 1) + [Change.COOLED if cools else None]
    assert bench.view() == (("bcd", {"a": Why.COOLING}) if cools else ("abcd", {}))
    assert bench.cooling.cooled_for_s("a") == (pytest.approx(2) if cools else 0)


@table(
    ("story", "cools"),
    [
        ("pswswswsw", False),  # they leave after two seconds
        ("pppp" + "w" * 15 + "sss", True),
        ("pppp" + "w" * 15 + "as" + "s", False),  # one was answered meanwhile
        ("pwwwwwwapwwwwwws" * 9, False),
        (("p" + "w" * 12 + "s") * 3, True),
        (("p" + "w" * 12 + "s") * 2 + "pa", False),
        ("pppp" + "w" * 15 + "uuu", False),  # uploads that stopped: it had nothing to answer
    ],
)
def test_silence_cools_an_endpoint_and_impatient_clients_do_not(story: str, cools: bool) -> None:
    """`p` a pick, `w` a second; of the oldest pick: `a` an answer, `s` a client that leaves, `u` in its upload."""
    bench, began, changes = Bench(), list[float](), list[Change | None]()
    for event in story:
        if event == "p":
            bench.cooling.picked("a")
            began.append(bench.clock.now_s)
        elif event == "w":
            bench.wait(1)
        else:
            waited_s = bench.clock.now_s - (began.pop(0) if began else bench.clock.now_s)
            if event == "a":
                bench.answer("a", waited_s, waited_s)
            else:
                outcome = Outcome(
                    "a",
                    Verdict.UNKNOWN,
                    duration_s=waited_s,
                    had_s=0.0 if event == "u" else waited_s,
                    is_aborted=True,
                )
                changes.append(bench.cooling.observe("a", outcome))

    assert (Change.COOLED in changes) == cools


def test_how_long_an_endpoint_is_silent_counts_from_its_first_pick_without_an_answer() -> None:
    bench = Bench()
    for _ in range(5):
        assert bench.cooling.silent_for_s("a") == 0
        bench.cooling.picked("a")
        bench.wait(20)
    assert bench.cooling.silent_for_s("a") == 100

    bench.wait(300)
    assert bench.cooling.silent_for_s("a") == 0  # nobody asks it any more
    for _ in range(5):
        bench.cooling.picked("a")
    bench.wait(7)
    assert bench.cooling.silent_for_s("a") == 7

    bench.answer("a")
    assert bench.cooling.silent_for_s("a") == 0


def test_uploads_that_stop_do_not_show_an_endpoint_as_silent() -> None:
    bench = Bench()
    for _ in range(9):
        bench.cooling.picked("a")
        bench.wait(5)
        bench.hear("a", Verdict.UNKNOWN, duration_s=5)

    assert bench.cooling.silent_for_s("a") == 0


def test_after_the_time_one_request_at_a_time_until_one_succeeds() -> None:
    bench = Bench()
    bench.fail("a")
    bench.wait(1.9)
    assert bench.open() == "bcd"

    bench.wait(0.2)
    assert bench.view() == ("abcd", {"a": Why.COOLING})

    bench.cooling.picked("b")
    assert bench.open() == "abcd"

    bench.cooling.picked("a")
    assert bench.open() == "bcd"

    bench.wait(0.1)
    assert bench.answer("a") is Change.BACK
    assert bench.view() == ("abcd", {})

    bench.cooling.picked("a")
    assert bench.open() == "abcd"


@table("verdict", [Verdict.FAILED, Verdict.BROKEN])
def test_a_trial_that_fails_doubles_the_time_up_to_a_cap(verdict: Verdict) -> None:
    bench = Bench()
    bench.fail("a")
    times = []
    for _ in range(6):
        times.append(bench.cooling.cooled_for_s("a"))
        bench.put_on_trial("a", times[-1])
        assert bench.hear("a", verdict) is Change.COOLED

    assert times == pytest.approx([2, 4, 8, 16, 16, 16])


def test_times_are_jittered_by_a_fifth() -> None:
    times = []
    for seed in range(200):
        bench = Bench(Rules(), seed=seed)
        bench.fail("a")
        times.append(bench.cooling.cooled_for_s("a"))

    assert min(times) >= 1.6
    assert max(times) <= 2.4
    assert max(times) - min(times) > 0.6


def test_requests_of_before_do_not_change_a_cooling_nor_cool_an_endpoint_that_is_back() -> None:
    """A hundred requests that die together are one incident, and one that succeeds late proves nothing."""
    bench = Bench()
    bench.fail("a", 100, duration_s=30)
    bench.wait(1)
    bench.fail("a", 100, duration_s=30)
    assert bench.answer("a", duration_s=30, first_byte_s=30) is None
    assert bench.cooling.cooled_for_s("a") == pytest.approx(1)

    bench.put_on_trial("a", 1.5)
    bench.fail("a", 1, duration_s=30)
    assert bench.answer("a", duration_s=30, first_byte_s=30) is None
    assert (bench.cooling.cooled_for_s("a"), bench.open()) == (0, "bcd")

    bench.answer("a")
    bench.fail("a", 50, duration_s=10)
    assert bench.open() == "abcd"


def test_a_trial_without_an_outcome_or_whose_client_left_makes_room_for_the_next() -> None:
    bench = Bench()
    bench.fail("a")
    bench.put_on_trial("a")
    bench.wait(9.8)
    assert bench.open() == "bcd"

    bench.wait(0.2)
    assert bench.open() == "abcd"

    bench.put_on_trial("a", 0)
    assert bench.open() == "bcd"

    bench.hear("a", Verdict.UNKNOWN, 0.1)
    assert bench.open() == "abcd"


@table(("calm_s", "cools_s"), [(1, 16), (61, 8), (121, 4), (10_000, 2)])
def test_an_endpoint_that_fails_again_soon_cools_longer_and_a_calm_one_is_forgiven(
    calm_s: float, cools_s: float
) -> None:
    bench = Bench()
    bench.fail("a")
    for wait_s in (2, 4):
        bench.put_on_trial("a", wait_s)
        bench.fail("a", 1)
    bench.wait(8.1)
    bench.answer("a")
    bench.wait(calm_s)
    bench.fail("a")

    assert bench.cooling.cooled_for_s("a") == pytest.approx(cools_s)


@table(("size", "shut"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2), (9, 4)])
def test_never_more_than_the_smaller_half_is_shut_and_the_first_to_fail_are(
    size: int, shut: int
) -> None:
    names = tuple(map(str, reversed(range(size))))
    bench = Bench(names=names[::-1])
    for name in names[: size - 1] or names:
        bench.fail(name)

    assert len(bench.open()) == size - shut
    assert bench.cooling.shut() == dict.fromkeys(names[:shut], Why.COOLING)


def test_a_pool_that_fails_as_a_whole_is_left_as_it_is_until_the_first_answers() -> None:
    bench = Bench()
    for name in NAMES:
        bench.fail(name)
    assert bench.view() == ("abcd", {})

    bench.wait(1.5)
    bench.answer("d")
    assert (bench.open(), set(bench.cooling.shut())) == ("cd", {"a", "b"})

    bench.wait(1)
    for name in "abc":
        bench.put_on_trial(name, 0)
        bench.answer(name)
    assert bench.view() == ("abcd", {})


def test_a_busy_endpoint_rests_as_long_as_it_asks_and_not_longer_than_half_a_minute() -> None:
    bench = Bench()
    bench.hear("a", Verdict.BUSY, retry_after_s=5)
    bench.hear("b", Verdict.BUSY, retry_after_s=86_400)
    assert bench.view() == ("cd", {"a": Why.BUSY, "b": Why.BUSY})

    bench.wait(5)
    assert bench.open() == "acd"

    bench.cooling.picked("a")
    assert bench.open() == "acd"  # no trial: it never failed

    bench.wait(25)
    assert bench.open() == "abcd"


def test_a_pool_that_is_busy_as_a_whole_says_so_itself_and_rests_again_when_one_is_not() -> None:
    bench = Bench()
    for name in NAMES:
        bench.hear(name, Verdict.BUSY, retry_after_s=3 if name == "d" else 20)
    assert bench.open() == "abcd"

    bench.wait(3)
    assert bench.open() == "cd"


def test_being_busy_on_trial_proves_that_an_endpoint_works() -> None:
    bench = Bench()
    bench.fail("a")
    bench.put_on_trial("a")

    assert bench.hear("a", Verdict.BUSY, retry_after_s=1) is Change.BACK
    assert bench.cooling.shut() == {"a": Why.BUSY}


def test_an_unhealthy_endpoint_is_left_out_until_it_or_nobody_is_healthy() -> None:
    """The service may stand where it cannot reach what the gateway can."""
    bench = Bench()
    bench.cooling.set_health("a", is_healthy=False)
    bench.wait(10_000)
    assert bench.view() == ("bcd", {"a": Why.UNHEALTHY})

    bench.cooling.set_health("a", is_healthy=True)
    bench.cooling.set_health("b", is_healthy=True)
    assert bench.open() == "abcd"

    for name in NAMES:
        bench.cooling.set_health(name, is_healthy=False)
    assert bench.view() == ("abcd", dict.fromkeys(NAMES, Why.UNHEALTHY))


def test_a_good_probe_does_not_shorten_a_cooling_but_ends_that_of_an_idle_pool() -> None:
    """No request comes, so no trial could end it."""
    bench = Bench()
    bench.fail("a")
    bench.cooling.set_health("a", is_healthy=False)
    bench.cooling.set_health("a", is_healthy=True)
    assert bench.view() == ("bcd", {"a": Why.COOLING})

    bench.wait(2)
    assert bench.cooling.shut() == {"a": Why.COOLING}

    bench.cooling.set_health("a", is_healthy=True)
    assert bench.view() == ("abcd", {})


def test_an_endpoint_whose_probes_are_good_and_whose_requests_fail_stays_away() -> None:
    bench = Bench()
    bench.fail("a")
    times = []
    for _ in range(5):
        times.append(bench.cooling.cooled_for_s("a"))
        bench.wait(times[-1])
        bench.cooling.set_health("a", is_healthy=True)
        bench.cooling.picked("a")
        assert bench.open() == "bcd"

        bench.wait(0.1)
        bench.cooling.set_health("a", is_healthy=True)
        assert bench.open() == "bcd"
        assert bench.fail("a", 1) is Change.COOLED

    assert times == pytest.approx([2, 4, 8, 16, 16])


def test_an_endpoint_is_unknown_until_a_probe_or_an_answer_says_something() -> None:
    bench = Bench()
    assert bench.cooling.unknown() == frozenset()

    bench.cooling.expect_probes()
    assert (bench.cooling.unknown(), bench.open()) == (frozenset(NAMES), "abcd")

    bench.cooling.set_health("a", is_healthy=True)
    bench.cooling.set_health("b", is_healthy=False)
    bench.answer("c")
    bench.fail("d", 1)
    assert bench.cooling.unknown() == {"d"}

    bench.cooling.set_members([*NAMES, "e"])
    assert bench.cooling.unknown() == {"d", "e"}

    bench.cooling.forget_health()
    assert bench.cooling.unknown() == frozenset()


def test_an_endpoint_that_leaves_is_a_stranger_and_starts_anew_when_it_returns() -> None:
    bench = Bench()
    bench.fail("a")
    bench.cooling.set_members("bcd")
    bench.fail("a", 10)
    bench.cooling.set_health("a", is_healthy=False)
    bench.cooling.picked("a")
    assert (bench.cooling.closed(), bench.cooling.shut()) == (frozenset(), {})
    assert bench.cooling.cooled_for_s("a") == 0

    bench.cooling.set_members(NAMES)
    assert bench.open() == "abcd"
    assert bench.fail("a", 2) is None


def test_nothing_cools_where_the_rules_say_never() -> None:
    bench = Bench(Rules(failures=None))
    bench.fail("a", 1_000)

    assert bench.cooling.closed() == frozenset()


names = st.sampled_from(NAMES)


class AnyOrder(RuleBasedStateMachine):
    """Outcomes, picks, health and members in any order."""

    @initialize(failures=st.integers(1, 4), seed=st.integers(0, 9))
    def begin(self, failures: int, seed: int) -> None:
        self.clock = Clock()
        self.cooling = Cooling(Rules(failures=failures), clock=self.clock, rng=random.Random(seed))
        self.members = frozenset(NAMES)
        self.well: set[str] = set()
        self.cooling.set_members(NAMES)

    @rule(
        name=names,
        verdict=st.sampled_from(Verdict),
        times=st.integers(1, 5),
        duration_s=st.floats(0, 50),
        retry_after_s=st.floats(0, 100),
    )
    def hear(
        self, name: str, verdict: Verdict, times: int, duration_s: float, retry_after_s: float
    ) -> None:
        for _ in range(times):
            outcome = Outcome(
                name, verdict, duration_s=duration_s, first_byte_s=0.1, retry_after_s=retry_after_s
            )
            self.cooling.observe(name, outcome)

    @rule(name=names)
    def pick(self, name: str) -> None:
        self.cooling.picked(name)

    @rule(name=names, is_healthy=st.booleans())
    def probe(self, name: str, is_healthy: bool) -> None:
        self.cooling.set_health(name, is_healthy=is_healthy)
        self.well = self.well | {name} if is_healthy else self.well - {name}

    @rule(seconds=st.floats(0, 60))
    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @rule(members=st.sets(names))
    def change(self, members: set[str]) -> None:
        self.members = frozenset(members)
        self.cooling.set_members(members)

    @invariant()
    def at_least_half_is_open(self) -> None:
        closed = self.cooling.closed()

        assert len(closed) <= len(self.members) // 2
        # One that a probe has cleared is shown as ready, and gets one request at a time.
        assert closed <= self.cooling.shut().keys() | self.well
        assert self.cooling.shut().keys() <= self.members

    def teardown(self) -> None:
        """From now on every request succeeds and every endpoint is healthy: all of them come back."""
        for name in self.members:
            self.cooling.set_health(name, is_healthy=True)
        for _ in range(60):
            self.clock.now_s += 1
            for name in self.members - self.cooling.closed():
                self.cooling.picked(name)
                self.cooling.observe(name, Outcome(name, Verdict.ANSWERED, 200, 0.01, 0.01))

        assert (self.cooling.closed(), self.cooling.shut()) == (frozenset(), {})


TestAnyOrder = AnyOrder.TestCase


@given(st.lists(st.tuples(st.floats(0, 30), st.booleans()), max_size=40))
def test_the_view_is_the_same_whether_it_was_looked_at_before_or_not(
    steps: list[tuple[float, bool]],
) -> None:
    """What is remembered between two looks changes nothing: one bench is looked at all the time."""
    watched, unwatched = Bench(), Bench()
    for seconds, is_well in steps:
        for bench in (watched, unwatched):
            bench.wait(seconds)
            bench.answer("a") if is_well else bench.fail("a")
            bench.hear("b", Verdict.BUSY, retry_after_s=seconds)
        watched.open()

    assert watched.open() == unwatched.open()
