"""What endpoints say of themselves, and how much of it is believed."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.prefix_cache.engine import (
    SignalHistory,
    Trust,
    foreign_requests,
)
from extproc.router.routing.strategies.prefix_cache.speeds import Prefills
from tests.tables import table

FIRST = EndpointSignals(queried_tokens=10, prefills=1, started_s=1e9)


def rounds(trust: Trust, predicted: float, found: Iterable[float]) -> list[bool]:
    """A round for each share that is found where `predicted` was."""
    return [trust.add(20_000, 20_000 * share, predicted) for share in found]


def test_three_wrong_rounds_make_an_index_worth_dropping() -> None:
    trust = Trust()

    assert rounds(trust, 0.9, [0.1] * 3) == [False, False, True]
    assert trust.share == 0.5
    assert [trust.predicted_rate, trust.measured_rate] == pytest.approx([0.9, 0.1])


@table(
    ("predicted", "found"),
    [(0.9, [0.1, 0.1, 0.85, 0.1, 0.1]), (0.9, [0.1, 0.1, 0.72, 0.1, 0.1]), (0.2, [0.9] * 20)],
)
def test_a_right_round_begins_the_count_anew(predicted: float, found: list[float]) -> None:
    trust = Trust()

    assert not any(rounds(trust, predicted, found))
    assert trust.level == 0


def test_trust_comes_back_as_slowly_as_it_goes() -> None:
    trust = Trust()
    rounds(trust, 0.9, [0.1] * 6)
    levels = [trust.level]
    for _ in range(6):
        rounds(trust, 0.5, [0.45])
        levels.append(trust.level)

    assert levels == [2, 2, 2, 1, 1, 1, 0]


def test_little_traffic_and_no_foresight_prove_nothing() -> None:
    trust = Trust()

    assert not any(trust.add(100, 0, 1.0) for _ in range(199))
    assert not any(trust.add(20_000, 0, None) for _ in range(20))
    assert trust.level == 0


shares = st.floats(0, 1)


@given(st.lists(st.tuples(shares, shares), max_size=100))
def test_trust_is_lost_in_three_rounds_and_never_all(reported: list[tuple[float, float]]) -> None:
    trust, since = Trust(), 0
    for predicted, found in reported:
        level, since = trust.level, since + 1
        is_wrong = trust.add(20_000, 20_000 * found, predicted)
        if is_wrong or trust.level != level:
            assert since >= 3
            assert is_wrong == (trust.level > level or trust.level == level == 3)
            since = 0

        assert trust.share in {1, 0.5, 0.25, 0.125}
        assert abs(trust.level - level) <= 1


@given(st.lists(st.floats(0, 0.099), min_size=1, max_size=50), shares)
def test_an_index_that_is_right_is_never_dropped(errors: list[float], predicted: float) -> None:
    trust = Trust()

    assert not any(rounds(trust, predicted, [max(0.0, predicted - error) for error in errors]))
    assert trust.level == 0


def test_waiting_is_smoothed_and_forgotten_where_nobody_answers() -> None:
    sense = SignalHistory()
    seen = []
    for waiting in (0, 10, 10, 10):
        sense.add(replace(FIRST, waiting=waiting))
        seen.append(sense.waiting)
    sense.miss()

    assert seen == [0, 3.0, pytest.approx(5.1), pytest.approx(6.57)]
    assert sense.waiting is None


@table(
    ("later", "is_lost"),
    [
        (replace(FIRST, started_s=1e9 + 60, queried_tokens=99), True),
        (replace(FIRST, queried_tokens=9), True),
        (replace(FIRST, prefills=0), True),
        (replace(FIRST, queried_tokens=20), False),
    ],
)
@table("was_away", [False, True])
def test_one_that_began_anew_lost_all_unless_that_is_known(
    later: EndpointSignals, is_lost: bool, was_away: bool
) -> None:
    for is_known in (False, True):
        sense = SignalHistory()
        assert [sense.add(FIRST).is_lost for _ in range(2)] == [False, False]
        sense.is_emptied = is_known
        if was_away:
            sense.miss()

        assert [sense.add(later).is_lost for _ in range(2)] == [is_lost and not is_known, False]
        assert sense.add(replace(later, started_s=2e9)).is_lost


@table(
    ("prefills", "tokens", "expected"),
    [(100, 100_000, 3.5), (300, 200_000, None), (100, 10**9, 1.5), (100, 100, 8.0), (100, 0, None)],
)
def test_bytes_of_a_token_are_known(prefills: int, tokens: int, expected: float | None) -> None:
    sense = SignalHistory()
    sense.add(FIRST)
    sense.sent.requests, sense.sent.size = 100, 350_000.0
    later = replace(FIRST, prefills=1 + prefills, prompt_tokens=tokens)

    assert sense.add(later).bytes_per_token == expected


def test_prefills_are_what_came_since_the_last_look() -> None:
    sense = SignalHistory()
    sense.add(FIRST)
    later = EndpointSignals(
        queried_tokens=4_010, hit_tokens=1_000, prefills=11, prefill_s=2.5, started_s=1e9
    )

    assert sense.add(later).prefills == Prefills(10.0, 3_000.0, 2_500.0)
    assert sense.add(later).prefills is None


@table(
    ("waiting", "expected"),
    [
        ({"a": 8.0, "b": 0.0}, {"a": 6.0}),
        ({"a": 0.0, "b": 0.0}, {}),
        ({"a": 8.0, "b": 0.0, "c": None}, {"a": 6.0, "c": 3.0}),  # what is not known is not idle
    ],
)
def test_several_gateways_hear_what_waits_for_the_others(
    waiting: dict[str, float | None], expected: dict[str, float]
) -> None:
    assert foreign_requests(waiting, {}, {}, 4) == expected


@table(
    ("ours", "running", "waiting", "expected"),
    [
        (10, 6, 4, {}),
        (10, 20, 6, {}),
        (10, 20, 40, {"a": 40.0}),
        (0, 8, 0.4, {"a": 0.4}),
        (0, 8, 0, {}),
    ],
)
def test_alone_only_what_is_far_beyond_our_own_counts(
    ours: int, running: float, waiting: float, expected: dict[str, float]
) -> None:
    assert foreign_requests({"a": waiting}, {"a": ours}, {"a": running}, 1) == expected


@given(
    st.dictionaries(st.sampled_from("abc"), st.none() | st.floats(0, 1e4)),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 100)),
    st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e4)),
    st.integers(1, 9),
)
def test_what_others_say_never_speaks_for_an_endpoint(
    waiting: dict[str, float | None],
    in_flight: dict[str, int],
    running: dict[str, float],
    gateways: int,
) -> None:
    foreign = foreign_requests(waiting, in_flight, running, gateways)

    assert all(count > 0 for count in foreign.values())
    assert foreign.keys() <= waiting.keys()
