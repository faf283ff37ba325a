"""So much in a second."""

from extproc.router.share.ration import Ration


def test_what_is_left_is_spent_at_once_and_what_is_overspent_is_waited_for() -> None:
    ration = Ration(10.0, 5.0)

    assert ration.wait_s(0.0) == 0
    ration.spend(7.0)
    assert ration.wait_s(0.0) == 0.2
    assert ration.wait_s(0.2) == 0


def test_no_more_is_saved_up_than_the_most() -> None:
    ration = Ration(10.0, 5.0)
    ration.wait_s(0.0)

    assert ration.wait_s(1000.0) == 0
    ration.spend(6.0)
    assert ration.wait_s(1000.0) == 0.1


def test_a_clock_that_stands_gives_nothing() -> None:
    ration = Ration(10.0, 5.0)
    ration.wait_s(1.0)
    ration.spend(6.0)

    assert [0.1, 0.1] == [ration.wait_s(1.0), ration.wait_s(0.5)]
