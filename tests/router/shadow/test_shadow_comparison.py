"""What two pictures of the same requests say, and when they say nothing."""

import re
from random import Random

import pytest

from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.base import EngineFigures
from extproc.router.shadow.comparison import PictureBatch, PoolShadow, Side
from extproc.router.shadow.forecast import Estimate, Forecast, estimate, foretell
from extproc.router.shadow.picture import Picture
from tests.router.routing.fleet import Fleet, words
from tests.router.shadow.watched import WatchedFleet
from tests.tables import table


def forecast_of(fleet: WatchedFleet) -> Forecast:
    fleet.shadow.settle()
    return foretell(fleet.shadow, fleet.clock.now_s)


def test_chats_whose_turns_go_around_would_be_found_in_one_cache() -> None:
    fleet = WatchedFleet()
    fleet.show_chats(minutes=45)
    told = forecast_of(fleet)
    assert told.as_served
    assert told.as_picked
    assert told.saved

    assert [told.verdict, told.is_watching, told.counted_s] == ["pays", True, 2_400]
    assert told.as_served.hit_rate.value == 0
    assert told.as_picked.hit_rate.low > 0.5
    assert told.as_picked.mean_s.value < 0.6 * told.as_served.mean_s.value
    assert told.saved.value == pytest.approx(
        told.as_served.engines.value - told.as_picked.engines.value
    )
    assert told.sentence.startswith("Switching pays: 53% of the prompt tokens")


def test_where_turns_find_their_chat_already_switching_does_not_pay() -> None:
    fleet = WatchedFleet()
    fleet.show_chats(minutes=45, by_turns=False)

    assert forecast_of(fleet).sentence.startswith("Switching does not pay here: 53%")


def test_nothing_is_said_before_caches_are_full_and_batches_are_there() -> None:
    fleet = WatchedFleet(kv_tokens=100_000)
    assert "no request has come. Watch for 60 more" in forecast_of(fleet).sentence
    fleet.show_chats(minutes=20)
    told = forecast_of(fleet)
    assert [told.verdict, told.as_picked] == ["too_early", None]
    assert "the caches are still filling. Watch for 40 more" in told.sentence
    fleet.show_chats(minutes=25)
    assert "Watch for 15 more" in forecast_of(fleet).sentence
    fleet.show_chats(minutes=16)

    # What came while the caches filled does not count.
    assert [forecast_of(fleet).verdict, forecast_of(fleet).counted_s] == ["pays", 1_800]


@table("address", ["", "10.96.0.12:80"])
def test_whom_the_proxy_does_not_name_nobody_guesses(address: str) -> None:
    fleet = WatchedFleet()
    for number in range(20):
        reading = fleet.arrive(words(f"{number}", 300))
        fleet.shadow.nameless(reading, address, "")
        fleet.shadow.left(reading)
    said = forecast_of(fleet)

    assert said.verdict == "blind"
    assert (address or "upstream.address") in said.sentence


@pytest.mark.parametrize("by_log", [False, True])
def test_an_address_is_shown_in_signs_that_do_nothing_and_cut(by_log: bool) -> None:
    fleet, hostile = WatchedFleet(), "\x1b[2J\u202e" + "x" * 1_000_000
    reading = fleet.arrive(words("asks", 300))
    fleet.shadow.nameless(reading, "" if by_log else hostile, "id")
    fleet.shadow.logged("id", hostile, 1.0)

    assert forecast_of(fleet).sentence.count("\\x1b[2J\\u202exxx") == 1
    assert len(fleet.shadow.seen.stranger) < 100


def test_a_pool_whose_endpoints_are_all_gone_saves_nothing() -> None:
    fleet = WatchedFleet()
    fleet.show_chats(minutes=45)
    fleet.follow("")

    assert (
        forecast_of(fleet).sentence
        == "Nothing is foretold: the pool has no endpoint that is ready."
    )


def test_without_attributes_the_access_log_says_who_served() -> None:
    fleet = WatchedFleet()
    for number in range(700):
        reading = fleet.arrive(words(f"{number}", 300))
        fleet.shadow.nameless(reading, "", f"id {number}")
        fleet.clock.now_s += 8
        fleet.shadow.left(reading)
        fleet.shadow.logged(f"id {number}", "10.0.0.97:80", 5.0)
    told = forecast_of(fleet)

    assert told.requests == 450
    assert told.as_served
    assert told.as_served.busiest.value == 1


def test_the_first_request_to_route_turns_the_pictures_around() -> None:
    fleet = WatchedFleet()
    fleet.show_chats(minutes=45)
    for number in range(900):
        pick = fleet.pick(*[words(f"chat {number // 3}", 600)] * (1 + 2 * (number % 3)))
        fleet.clock.now_s += 3
        pick.release()
    told = forecast_of(fleet)
    assert told.as_served
    assert told.as_picked

    assert not told.is_watching
    assert told.as_picked.hit_rate.value > 1.2 * told.as_served.hit_rate.value
    assert "by least load" in told.sentence
    fleet.show("a", words("one proxy still watches", 300))
    assert not forecast_of(fleet).is_watching


def test_what_engines_count_stands_beside_and_says_how_much_was_seen() -> None:
    fleet = WatchedFleet()
    fleet.show_chats(minutes=3)
    for minute in range(2):
        counted = EndpointSignals(
            queried_tokens=1e6 * minute,
            hit_tokens=2e5 * minute,
            first_tokens=10.0 * minute,
            first_token_s=2.0 * minute,
        )
        fleet.shadow.apply_signals("a", counted)
    fleet.show_chats(minutes=40)
    told = forecast_of(fleet)

    assert [told.measured_hit_rate, told.measured_mean_s] == [0.2, 0.2]
    assert told.seen_share
    assert told.seen_share == pytest.approx(0.887, abs=0.01)
    assert "of the engines' prompts came by here" in told.sentence


def test_each_of_two_services_says_which_share_of_the_prompts_it_saw() -> None:
    """A proxy of each shows it every second chat; the engines count them all."""
    fleets = WatchedFleet(), WatchedFleet()
    for _ in range(45):
        for fleet in fleets:
            fleet.show_chats(minutes=1)
        batches = [one for each in fleets for one in (*each.shadow.batches, each.shadow.open_batch)]
        counted = EndpointSignals(queried_tokens=sum(one.prompt for one in batches))
        for fleet in fleets:
            fleet.shadow.apply_signals("a", counted)

    for told in map(forecast_of, fleets):
        assert told.seen_share == pytest.approx(0.5, abs=0.02)
        assert re.search(r"Only (49|50|51)% of the engines' prompts came by here", told.sentence)


def test_an_open_answer_holds_up_the_pictures_for_ten_minutes_at_most() -> None:
    fleet = WatchedFleet()
    fleet.arrive(words("never ends", 300))
    fleet.show_chats(minutes=9)
    assert fleet.shadow.warm_s is None
    fleet.show_chats(minutes=5)

    assert fleet.shadow.warm_s


def test_who_left_or_was_refused_is_in_neither_picture() -> None:
    fleet = WatchedFleet()
    for number in range(100):
        fleet.show("", words(f"{number}", 600))

    assert not fleet.shadow.has_requests


def test_interval_holds_the_mean_of_the_batches_and_shrinks_with_their_number() -> None:
    few = estimate([(1, 10), (3, 10)] * 2)
    many = estimate([(1, 10), (3, 10)] * 50)

    assert estimate([]) == Estimate(0, 0, 0)
    assert few.value == many.value == 0.2
    # Four batches of 0.1 and 0.3: 3.18 standard errors of 0.115 / 2.
    assert few.high - few.value == pytest.approx(3.18 * 0.11547 / 2)
    assert many.high - many.value == pytest.approx(1.986 * 0.1005 / 10, rel=0.01)


def test_a_pool_without_shadow_is_not_watched() -> None:
    fleet = Fleet()
    pick = fleet.pick(words("anything", 300))
    pick.release()

    assert fleet.pool.watcher is None
    assert isinstance(WatchedFleet().pool.watcher, PoolShadow)


def test_a_prompt_waits_for_the_step_that_runs_and_shares_the_next_one() -> None:
    engine = {"prefill_ms_per_token": 0.04, "step_ms": 20.0, "kv_tokens": 100_000}
    fleet, picture = WatchedFleet("a"), Picture(Random(0), {"engine": engine})
    longer = Picture(Random(0), {"engine": {**engine, "context_us_per_token": 8.0}})
    figures = EngineFigures(0.01, 20.0, 4.0, {}, {"a": 400_000})
    longer.follow(fleet.pool.snapshot, figures)
    picture.follow(fleet.pool.snapshot, figures)
    chains = [fleet.arrive(words(f"{number}", 2_500)).content()[0] for number in range(4)]
    waits = []
    for at_s, chain in zip((0.0, 0.001, 0.002, 1.0), chains, strict=True):
        assert chain
        placed = picture.place(at_s, chain)
        picture.end(placed, at_s + 9)
        waits.append((placed.first_s, placed.work_ms / 1000))
    (one_s, one), (two_s, two), (three_s, three), (four_s, four) = waits

    assert one_s == pytest.approx(0.02 + one)
    assert two_s == pytest.approx(one_s + 0.02 + two)
    assert three_s == pytest.approx(two_s + three)
    # Half a step of those that decode is left, on average.
    assert four_s == pytest.approx(1.0 + 0.01 + 0.02 + four)
    # Each token of a request that it keeps makes a step longer.
    assert chains[0]
    longest_s = longer.place(0.0, chains[0]).first_s
    assert longest_s - one_s == pytest.approx(8e-6 * chains[0].size / 4, rel=0.01)


@table(("answer_s", "is_found"), [(1.0, True), (60.0, False)])
def test_an_answer_that_stood_behind_thoughts_is_not_found(answer_s: float, is_found: bool) -> None:
    """Prompts repeat sixty words of it; in a second fifty tokens are made, in a minute 3,000."""
    fleet, picture = WatchedFleet("a"), Picture(Random(0), {"kv_tokens": 100_000})
    picture.follow(fleet.pool.snapshot, EngineFigures(0.01, 20.0, 4.0, {}, {"a": 400_000}))
    for number in range(20):
        texts = [words(f"{number} {turn}", 60) for turn in range(3)]
        for turn in (1, 3):
            chain, _ = fleet.arrive(*texts[:turn]).content()
            assert chain
            placed = picture.place(200.0 * number + 100 * turn, chain)
            picture.end(placed, placed.first_s + answer_s)
            places = {0: None, chain.ends[0]: False, chain.answered_bytes: True}

    assert places[placed.found] is is_found


@table(
    ("saved", "said"),
    [
        ([1.0] * 6, "Switching pays: 60%"),
        ([0.0] * 6, "Switching does not pay here: 60%"),
        ([-1.0] * 6, "Switching does not pay here: 60%"),
        ([3.0, -3.0] * 3, "Undecided, watch for"),
    ],
)
def test_the_verdict_is_by_what_is_certain(saved: list[float], said: str) -> None:
    """Engines saved in each batch, of four; below 2 % of them it is not worth it."""
    fleet = WatchedFleet()
    fleet.shadow.warm_s = 0.0
    for number, engines in enumerate(saved):
        went = Side(found=4e5, work_s=600 * (2 + engines), first_s=20, p99_s=1)
        other = Side(found=6e5, work_s=1_200, first_s=20, p99_s=1)
        fleet.shadow.batches.append(PictureBatch(600.0 * number, 100, 1e6, went, other))
    told = forecast_of(fleet)

    assert told.sentence.startswith(said)
    assert (told.wait_s is not None) == (told.verdict == "undecided")
