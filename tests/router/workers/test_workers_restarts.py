"""When a worker that ended is started again."""

from extproc.router.workers.restarts import Restarts


def test_who_is_killed_is_started_again_at_once() -> None:
    restarts = Restarts()

    assert [0.0, 0.0, 0.0] == [restarts.wait_s(3_600) for _ in range(3)]


def test_who_ends_as_soon_as_it_begins_waits_longer_each_time() -> None:
    restarts = Restarts()

    assert [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0] == [restarts.wait_s(0.1) for _ in range(8)]


def test_who_has_lived_for_a_while_begins_anew() -> None:
    restarts = Restarts()
    for _ in range(5):
        restarts.wait_s(0.1)

    assert [0.0, 0.5] == [restarts.wait_s(60), restarts.wait_s(1)]
