"""So much in a second."""

from extproc.router.budget import TokenBucket


def test_what_is_left_is_spent_at_once_and_what_is_overspent_is_waited_for() -> None:
    bucket = TokenBucket(10.0, 5.0)

    assert bucket.wait_s(0.0) == 0
    bucket.spend(7.0)
    assert bucket.wait_s(0.0) == 0.2
    assert bucket.wait_s(0.2) == 0


def test_no_more_is_saved_up_than_the_most() -> None:
    bucket = TokenBucket(10.0, 5.0)
    bucket.wait_s(0.0)

    assert bucket.wait_s(1000.0) == 0
    bucket.spend(6.0)
    assert bucket.wait_s(1000.0) == 0.1


def test_a_clock_that_stands_gives_nothing() -> None:
    bucket = TokenBucket(10.0, 5.0)
    bucket.wait_s(1.0)
    bucket.spend(6.0)

    assert [0.1, 0.1] == [bucket.wait_s(1.0), bucket.wait_s(0.5)]
