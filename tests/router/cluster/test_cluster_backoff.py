from random import Random

import pytest

from extproc.router.cluster.backoff import Backoff


class Highest(Random):
    """Draws the upper bound."""

    def uniform(self, a: float, b: float) -> float:
        return max(a, b)


def test_the_bound_doubles_up_to_the_cap_the_first_tries_are_eager_and_reset_starts_over() -> None:
    plain, eager = Backoff(Highest()), Backoff(Highest(), early_cap_s=2, early_tries=5)

    assert [plain.next_s() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert [eager.next_s() for _ in range(10)] == [0.5, 1, 2, 2, 2, 4, 8, 16, 30, 30]
    for backoff in (plain, eager):
        backoff.reset()
    assert [plain.next_s() for _ in range(4)] == [0.5, 1, 2, 4]
    assert [eager.next_s() for _ in range(4)] == [0.5, 1, 2, 2]


def test_delays_are_spread_over_the_whole_bound() -> None:
    backoff = Backoff(Random(7), base_s=10, cap_s=10)
    delays = sorted(backoff.next_s() for _ in range(1_000))

    assert delays[0] < 0.1
    assert delays[-1] > 9.9
    assert delays[500] == pytest.approx(5, abs=0.5)
