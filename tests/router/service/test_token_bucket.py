"""So much in a second."""

from extproc.router.budget import TokenBucket


def test_what_is_left_is_spent_at_once_what_is_overspent_is_waited_for_and_little_is_saved_up() -> None:
    bucket = TokenBucket(10.0, 5.0)

    assert bucket.wait_s(0.0) == 0
    bucket.spend(7.0)
    assert [bucket.wait_s(0.0), bucket.wait_s(0.2)] == [0.2, 0]
    assert bucket.wait_s(1000.0) == 0
    bucket.spend(6.0)
    assert bucket.wait_s(1000.0) == 0.1
    assert bucket.wait_s(999.5) == 0.1, "a clock that stands or goes back gives nothing"
