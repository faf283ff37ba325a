"""A failed connection is held until its endpoint was asked; a few questions, whatever a log says."""

from extproc.router.feedback.doubts import MOST_ASKED, Doubts
from extproc.router.feedback.outcome import Outcome, Verdict
from tests.clock import Clock


def unreached(address: str = "a") -> Outcome:
    return Outcome(address, Verdict.FAILED, duration_s=0.5, is_unreached=True)


def doubting() -> tuple[Doubts, Clock, list[str]]:
    clock, asked = Clock(), list[str]()
    doubts = Doubts(clock)
    doubts.ask = asked.append
    return doubts, clock, asked


def test_a_silent_endpoint_makes_its_failures_count_from_when_they_began() -> None:
    doubts, clock, asked = doubting()
    weighed = [doubts.weigh(unreached()) for _ in range(3)]
    clock.now_s += 1
    believed = doubts.settle("a", is_there=False)

    assert (weighed, asked) == ([False] * 3, ["a"])
    assert [outcome.duration_s for outcome in believed] == [1.5] * 3
    assert doubts.weigh(unreached())


def test_an_endpoint_that_answers_is_asked_again_a_second_later() -> None:
    doubts, clock, asked = doubting()
    doubts.weigh(unreached())
    assert doubts.settle("a", is_there=True) == []
    assert [doubts.weigh(unreached()) for _ in range(9)] == [False] * 9
    clock.now_s += 1.1
    doubts.weigh(unreached())

    assert asked == ["a", "a"]


def test_questions_and_what_waits_for_them_are_bounded() -> None:
    doubts, _, asked = doubting()
    for number in range(200):
        doubts.weigh(unreached(f"e{number}"))
        doubts.weigh(unreached("e0"))

    assert len(asked) == MOST_ASKED
    assert len(doubts.settle("e0", is_there=False)) == 16


def test_other_failures_and_those_that_nobody_can_check_count_at_once() -> None:
    doubts, _, asked = doubting()

    assert doubts.weigh(Outcome("a", Verdict.FAILED, 500))
    assert asked == []
    assert Doubts(Clock()).weigh(unreached())
