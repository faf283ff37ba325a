"""The cost of a prompt, endpoint by endpoint; and where prompts go by it."""

import random
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from extproc.calibrate.fit import USUAL_PROMPT
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.picker import Picker, Query, Route
from extproc.router.routing.pool import Pool
from extproc.router.routing.prompt.chain import chain_of
from extproc.router.routing.ring import Ring
from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.balanced import NO_PREFIX
from extproc.router.routing.strategies.base import NOWHERE, Reason, RequestResult
from extproc.router.routing.strategies.prefix_cache.engine import DEFAULT_ENGINE, ENGINES
from extproc.router.routing.strategies.prefix_cache.rule import Backlogs, Stretch
from extproc.router.routing.strategies.prefix_cache.strategy import (
    COLD,
    PREFIX,
    SESSION,
    PrefixCache,
)
from extproc.router.routing.strategies.prefix_hash import HOME, SPILL, PrefixHash
from extproc.router.routing.strategies.registry import STRATEGIES
from tests.router.routing.fleet import CHAT, Fleet, Shut, ask, words
from tests.tables import table

L4_MS_PER_TOKEN = 0.19
L4_MS_PER_REQUEST = 39 / 4


def test_a_conversation_stays_where_it_began() -> None:
    fleet = Fleet()
    said = [words("Why?", 500)]
    first = fleet.visit(*said)
    for turn in range(5):
        said += [f"Because {turn}.", f"And {turn}?"]
        pick = fleet.visit(*said)

        assert (pick.endpoint.name, pick.reason) == (first.endpoint.name, SESSION)
    assert first.reason is COLD


def test_a_burst_of_one_prefix_stays_together_until_its_endpoint_has_too_much_to_do() -> None:
    def together(age_s: int) -> int:
        fleet = Fleet()
        system = words("Be kind.", 1_000)
        fleet.visit("Hello", system=system)
        home = fleet.pick(words("What of this?", 2_000), system=system)
        fleet.clock.now_s += age_s
        picks = [fleet.pick(f"Question {number}", system=system) for number in range(100)]

        assert {pick.endpoint.name for pick in picks} == set("abcd")
        assert {pick.reason for pick in picks} == {PREFIX, SPILL}
        return [pick.endpoint is home.endpoint for pick in picks].index(False)

    assert together(0) < together(10) == 3


def test_unknown_prompts_are_spread_by_the_work_they_make() -> None:
    fleet = Fleet("ab")
    long = fleet.pick(words("long", 4_000))
    others = {fleet.pick(words(f"short {number}", 100)).endpoint.name for number in range(10)}

    assert others == {"a", "b"} - {long.endpoint.name}


def test_what_an_endpoint_would_cost_is_told_which_changes_nothing() -> None:
    fleet = Fleet("ab")
    fleet.visit(words("Why?", 1_000))
    warm = fleet.pick(words("Why?", 1_000)).endpoint.name
    (cold,) = {"a", "b"} - {warm}
    before = len(fleet.strategy.index)
    offers = fleet.explain(words("Why?", 1_000), "Because.", words("And?", 100))
    held_up = 1.1  # one is in flight there
    warm_ms = held_up * 103 * L4_MS_PER_TOKEN + L4_MS_PER_REQUEST

    assert offers[cold] == {
        "endpoint": cold,
        "match_tokens": 0,
        "miss_tokens": 1_112,
        "backlog_ms": 0.0,
        "in_flight": 0,
        "cost_ms": pytest.approx(1_112 * L4_MS_PER_TOKEN, abs=0.5),
    }
    assert (offers[warm]["match_tokens"], offers[warm]["miss_tokens"]) == (1_010, 103)
    assert (offers[warm]["in_flight"], offers[warm]["cost_ms"]) == (
        1,
        pytest.approx(warm_ms, abs=0.5),
    )
    assert (len(fleet.strategy.index), fleet.pool.book.total) == (before, 1)


def test_a_stretch_counts_what_is_missing_of_it_by_its_weight() -> None:
    stretch = Stretch(100, 300, 0.5)

    assert [stretch.missing(reach) for reach in (0, 100, 200, 300, 900)] == [100, 100, 50, 0, 0]


def test_what_many_share_weighs_less_the_more_of_them_there_are() -> None:
    def weight(visits: int, each_s: float) -> float:
        fleet = Fleet()
        system = words("Be kind.", 1_000)
        fleet.picker.pick(ask("A question that stays open", system=system))
        for number in range(visits):
            fleet.visit(f"Question {number}", system=system, after_s=each_s)
        decision = fleet.picker.propose(ask("Question", system=system))
        stretches = decision.pick.reading.explain(fleet.pool.candidates())["stretches"]
        assert isinstance(stretches, list)
        assert [stretch["weight"] for stretch in stretches[1:]] == [1.0]
        first: float = stretches[0]["weight"]
        return first

    weights = [weight(visits, 60 / visits) for visits in (3, 10, 100)]

    assert weights == sorted(weights, reverse=True)
    assert weights[0] < 1
    assert weights[-1] < 0.05


def test_a_backlog_is_done_in_time_and_of_an_endpoint_that_is_not_there_there_is_none() -> None:
    backlogs = Backlogs()
    backlogs.follow("a")
    for name, now in (("a", 10.0), ("b", 10.0), ("a", 10.5)):
        backlogs.add(name, 800, now)

    assert [backlogs.ms("a", now) for now in (10.5, 11.0, 12.0, 99.0)] == [1_200, 800, 0, 0]
    assert backlogs.ms("b", 10.0) == 0


def test_no_more_waits_than_the_open_requests_brought_whatever_the_clock_says() -> None:
    backlogs = Backlogs()
    backlogs.follow("a")
    for ms in (1_600, 800):
        backlogs.add("a", ms, 10.0)

    backlogs.end("a", 1_600, 10.0)
    assert backlogs.ms("a", 10.0) == pytest.approx(800)
    backlogs.end("a", 800, 10.5)
    assert backlogs.ms("a", 10.5) == 0
    backlogs.add("a", 800, 10.5)
    assert backlogs.ms("a", 10.5) == 800
    backlogs.end("b", 800, 10.5)
    assert backlogs.ms("b", 10.5) == 0


def test_an_endpoint_that_answered_everything_is_not_left_alone_for_work_the_clock_still_counts() -> (
    None
):
    fleet = Fleet("ab")
    picks = [fleet.pick(words(f"{number} Why?", 20_000)) for number in range(2)]
    for pick in picks:
        assert fleet.strategy.backlogs.ms(pick.endpoint.name, fleet.clock()) > 1_000
        pick.release()

    assert [cost["backlog_ms"] for cost in fleet.explain("new").values()] == [0, 0]


def test_who_is_cheapest_for_sure_is_compared_with_nobody_until_too_much_waits_there() -> None:
    fleet = Fleet()
    fleet.pool.fallbacks = 0
    said = (words("Why?", 500), "Because.", "How?")
    warm = fleet.visit(*said[:1]).endpoint.name
    for compared, in_flight in ((1, 0), (3, 200)):
        fleet.pool.book.set_peer_count(warm, in_flight)
        decision = fleet.picker.propose(ask(*said))

        assert (len(decision.costs), decision.pick.endpoint.name == warm) == (
            compared,
            compared == 1,
        )


def test_fallbacks_are_as_many_as_there_are_endpoints() -> None:
    assert len(Fleet("ab").pick("Why?").fallbacks) == 1
    assert len(Fleet("a").pick("Why?").fallbacks) == 0


def test_only_eligible_endpoints_that_are_not_left_out_are_chosen_whoever_holds_most() -> None:
    fleet = Fleet()
    warm = fleet.visit(words("Why?", 1_000)).endpoint
    others = [
        endpoint for name, endpoint in fleet.pool.snapshot.ready.items() if name != warm.name
    ][:2]
    request = replace(ask(words("Why?", 1_000)), subset=[endpoint.address for endpoint in others])
    picks = [fleet.picker.pick(request).pick for _ in range(5)]
    assert {pick.endpoint.name for pick in picks} <= {endpoint.name for endpoint in others}

    fleet.pool.gate = Shut(frozenset(warm.name))

    assert fleet.pick(words("Why?", 1_000), "Because.", "How?").endpoint.name != warm.name


def test_a_request_without_a_prompt_goes_to_the_least_loaded() -> None:
    fleet = Fleet("ab")
    busy = fleet.pick("Why?").endpoint.name
    picks = [fleet.picker.pick(Query("POST", CHAT, {}, body)).pick for body in (b"not json", b"{}")]

    assert {pick.reason for pick in picks} == {NO_PREFIX}
    assert picks[0].endpoint.name != busy


@table(
    ("one", "other"),
    [
        ({"model": "llama"}, {"model": "qwen"}),
        ({"cache_salt": "x"}, {"cache_salt": "y"}),
        ({"tools": [{"type": "function"}]}, {}),
    ],
)
def test_what_shares_no_cache_shares_no_blocks(one: dict[str, Any], other: dict[str, Any]) -> None:
    fleet = Fleet()
    text = words("Why?", 500)
    known = [fleet.picker.pick(ask(text, **fields)).key for fields in (one, other, one)]

    assert known[0] == known[2] != known[1]


def test_the_adapter_of_a_request_is_part_of_its_blocks() -> None:
    strategy = Fleet().strategy
    picker = Picker([Route(Pool("llama", strategy), adapters=frozenset({"sql"}))])
    picker.routes["llama"].pool.replace(
        [Endpoint("a", "10.0.0.1:80", adapters=frozenset({"sql", "x"}))]
    )
    keys = {picker.pick(ask("Why?", model=model)).key for model in ("sql", "x", "base")}

    assert len(keys) == 3


@table(
    ("event", "reason"),
    [("goes on", SESSION), ("returns", COLD), ("moves", COLD), ("is lost", COLD), ("began", COLD)],
)
def test_an_endpoint_that_went_or_began_anew_is_cold(event: str, reason: Reason) -> None:
    fleet = Fleet("ab")
    said = (words("Why?", 1_000), "Because.", "How?")
    warm = fleet.visit(*said[:1]).endpoint.name
    if event == "is lost":
        fleet.strategy.signals.forget_cache(warm)
    if event == "returns":
        fleet.follow("ab".replace(warm, ""))
    fleet.follow("ab", subnet=9 if event == "moves" else 0)
    for started_s in (1e9, 1e9 + 60 * (event == "began")):
        sense(fleet, warm, replace(SAID, kv_tokens=84_000, started_s=started_s))

    assert fleet.pick(*said).reason is reason


def test_a_process_whose_start_was_heard_keeps_what_it_read_since() -> None:
    fleet, said = Fleet("a"), (words("Why?", 1_000), "Because.", "How?")
    for started_s in (1e9, 2e9):
        sense(fleet, "a", replace(SAID, kv_tokens=84_000, started_s=started_s))
        for _ in fleet.strategy.signals.forget_idle("a"):
            pass
        assert fleet.visit(*said[:1]).reason is COLD
    sense(fleet, "a", replace(SAID, kv_tokens=84_000, started_s=3e9))

    assert fleet.pick(*said).reason is SESSION


def test_a_large_cache_is_forgotten_a_little_at_a_time() -> None:
    fleet = Fleet("a")
    for number in range(600):
        fleet.visit(words(f"{number}", 100))
    index, sizes = fleet.strategy.index, list[int]()
    for _ in fleet.strategy.signals.forget_idle("a"):
        sizes.append(len(index))

    assert sizes == [*range(sizes[0], 0, -256), 0]
    assert len(sizes) > 2


@table("is_open", [False, True])
@table(("status", "is_known"), [(200, True), (400, True), (503, False), (None, True)])
def test_a_request_that_failed_left_nothing_behind(
    status: int | None, is_known: bool, is_open: bool
) -> None:
    fleet = Fleet("a")
    pick = fleet.pick(words("Why?", 1_000))
    if not is_open:
        pick.release()
    pick.learn(RequestResult(status=status))
    if is_open:
        pick.release()
    fleet.clock.now_s += 10

    assert bool(len(fleet.strategy.index)) == is_known
    assert (fleet.pick(words("Why?", 1_000)).reason is PREFIX) == is_known


@table("way", ["moved", "told while open", "told late"])
def test_a_request_that_another_endpoint_answered_is_known_there_alone(way: str) -> None:
    fleet = Fleet("ab")
    text = words("Why?", 1_000)
    pick = fleet.pick(text)
    (other,) = {"a", "b"} - {pick.endpoint.name}
    address = fleet.pool.snapshot.ready[other].address
    if way == "moved":
        fleet.pool.move(pick, address).release()
    else:
        if way == "told late":
            pick.release()
        pick.learn(RequestResult(status=200), address)
        if way == "told while open":
            pick.release()
    fleet.clock.now_s += 60
    offers = fleet.explain(text)

    assert (offers[pick.endpoint.name]["match_tokens"], offers[other]["miss_tokens"]) == (0, 0)
    assert fleet.pool.book.total == 0
    assert not any(fleet.strategy.index.holding(name).pinned for name in "ab")  # type: ignore[union-attr]


SAID = EndpointSignals(kv_tokens=1_000, queried_tokens=10, prefills=1, started_s=1e9)


def sense(fleet: Fleet, name: str, signals: EndpointSignals | None) -> None:
    fleet.strategy.signals.apply_signals(name, signals, fleet.pool.book.counts)


def test_an_endpoint_that_never_finds_what_was_predicted_is_distrusted() -> None:
    fleet = Fleet("a")
    said = SAID
    seen = []
    for _ in range(4):
        for number in range(3):
            fleet.visit(words(f"{number} Why?", 200))
        said = replace(said, queried_tokens=said.queried_tokens + 30_000)
        sense(fleet, "a", said)
        seen.append(len(fleet.strategy.index))
    told = fleet.strategy.signals.describe_engines()["endpoints"]["a"]  # type: ignore[index]

    assert seen[-1] == 0
    assert told["presumed_share"] == 0.5
    assert told["cache_tokens"] == 500
    assert told["predicted_hit_rate"] > 0.9
    assert told["measured_hit_rate"] == 0


def test_what_other_gateways_sent_explains_what_an_endpoint_did_not_find() -> None:
    """Our prompts are all cached there and theirs are new: the engine's counters have both."""
    fleet, said, kept = Fleet("a"), replace(SAID, kv_tokens=10**6), []
    for at in range(6):
        fleet.visit(words("Why?", 200))
        theirs = chain_of(fleet.read(words(f"{at} Who?", 2_000)), 1)
        fleet.strategy.sharing.apply_peer_pick("a", theirs, theirs.size)
        said = replace(said, queried_tokens=said.queried_tokens + 30_000)
        sense(fleet, "a", said)
        kept.append(len(fleet.strategy.index))

    assert all(kept)


@table(("block_tokens", "cached"), [(None, None), (128, 2 * 7 * 128)])
def test_predictions_count_whole_blocks(block_tokens: int | None, cached: int | None) -> None:
    fleet = Fleet("a")
    if block_tokens is not None:
        sense(fleet, "a", replace(SAID, kv_tokens=84_000, block_tokens=block_tokens))
    for _ in range(3):
        fleet.visit(words("Why?", 1_000))
    told = fleet.strategy.signals.predicted()

    assert {reason for reason, counts in told.items() if counts.prompt} == {COLD, PREFIX}
    assert (told[COLD].cached, told[COLD].saved_ms) == (0, 0)
    assert told[PREFIX].prompt == 2 * told[COLD].prompt
    assert told[PREFIX].cached == (cached or told[PREFIX].prompt)
    ms_per_token = ENGINES[DEFAULT_ENGINE].prefill_ms_per_token
    assert told[PREFIX].saved_ms == pytest.approx(told[PREFIX].cached * ms_per_token)


def test_tokens_of_another_size_are_told_by_what_the_engines_read() -> None:
    fleet = Fleet("a")
    sense(fleet, "a", SAID)
    for number in range(300):
        fleet.visit(words(f"{number:03} Why?", 100))
        if number % 60 == 59:
            size = chain_of(fleet.read(words("000 Why?", 100)), 1).size * (number + 1)
            sense(fleet, "a", replace(SAID, prefills=number + 2, prompt_tokens=size / 3))
    assert fleet.strategy.signals.bytes_per_token == pytest.approx(3, abs=0.01)
    learnt = fleet.strategy.signals.describe_engines()
    assert learnt["prefill_ms_per_token"] == pytest.approx(L4_MS_PER_TOKEN, rel=0.01)


def prefilled(requests: int, tokens: int, ms_per_token: float) -> EndpointSignals:
    """What an engine says that prefilled so many tokens a request."""
    seconds = requests * (58.5 + tokens * ms_per_token) / 1000
    return replace(SAID, prefills=requests, queried_tokens=requests * tokens, prefill_s=seconds)


@table(
    ("engine", "measured", "counted"),
    [
        ("l4-llama8b-fp8", 0.03, 0.0677),
        ("l4-llama8b-fp8", 0.005, 0.0485),
        ("l4-llama8b-fp8", 0.17, 0.19),
        ("l4-llama8b-fp8", 0.6, 0.19),
        ("h100-llama8b-bf16", 0.19, 0.03),
    ],
)
def test_constants_of_a_slower_engine_are_scaled_to_what_is_measured_and_those_of_a_faster_one_are_not(
    engine: str, measured: float, counted: float
) -> None:
    fleet = Fleet("abc", engine=engine)
    model = fleet.strategy.signals
    steps = model.step_ms
    for requests in range(1, 202, 25):
        for name in "abc":
            sense(fleet, name, prefilled(requests, 1_000, measured))
    told = model.describe_engines()

    assert told["prefill_ms_per_token"] == pytest.approx(counted, rel=0.01)
    assert model.step_ms / steps == pytest.approx(
        model.ms_per_byte * 4 / ENGINES[engine].prefill_ms_per_token
    )
    assert not model.slow


def test_a_prefill_and_a_queue_cost_as_much_more_as_an_endpoint_is_slower() -> None:
    fleet = Fleet("ab")
    for name, ms in (("a", 0.19), ("b", 0.6)):
        for requests in range(1, 202, 25):
            sense(fleet, name, prefilled(requests, 1_000, ms))
    told = fleet.strategy.signals.describe_engines()["endpoints"]
    factor = told["b"]["slower_by"]  # type: ignore[index]
    idle = fleet.explain("new")
    first = [fleet.pick(words(f"{number} Why?", 1_000)).endpoint.name for number in range(9)]
    backlogs = {name: cost["backlog_ms"] for name, cost in fleet.explain("new").items()}

    assert factor == pytest.approx((58.5 + 600) / (58.5 + 190), rel=0.05)
    assert idle["b"]["cost_ms"] == pytest.approx(factor * idle["a"]["cost_ms"], abs=0.2)
    share = first.count("b") / first.count("a")
    assert backlogs["b"] == pytest.approx(share * factor * backlogs["a"], rel=0.05)

    fleet.follow("a")

    assert not fleet.strategy.signals.slow


def test_what_waits_for_other_gateways_is_a_reason_to_leave() -> None:
    fleet = Fleet("ab", gateways=4)
    said = [words("Why?", 500)]
    warm = fleet.visit(*said).endpoint.name
    (other,) = {"a", "b"} - {warm}
    for name, waiting in ((warm, 400.0), (other, 0.0)):
        for _ in range(20):
            sense(fleet, name, replace(SAID, waiting=waiting))
    assert fleet.pick(*said, "Because.", "How?").endpoint.name == other

    for _ in range(60):
        sense(fleet, warm, SAID)

    assert fleet.pick(*said, "Because.", "How?").endpoint.name == warm


def test_every_strategy_gives_way_to_every_other_with_its_counts() -> None:
    fleet = Fleet()
    picks = []
    for before in STRATEGIES.kinds:
        for after in STRATEGIES.kinds:
            for name in (before, after):
                fleet.pool.strategy = STRATEGIES.build(name, {}, fleet.outside)
                fleet.follow("abcd")
                picks.append(fleet.pick("Why?", system=words("Be kind.", 100)))
    fleet.follow("abc")
    assert sum(fleet.pool.book.counts().values()) == len(picks) == 2 * len(STRATEGIES.kinds) ** 2

    for pick in picks:
        pick.release()

    assert set(fleet.pool.book.counts().values()) == {0}


def test_of_many_who_hold_as_much_some_are_asked() -> None:
    names = "".join(map(chr, range(ord("A"), ord("A") + 40)))
    fleet = Fleet(names)
    system = words("Be kind.", 1_000)
    seen = {fleet.pick(f"Question {number}", system=system).endpoint.name for number in range(400)}
    offers = fleet.explain("Question", system=system)

    assert len(seen) > 20
    assert len(offers) <= 4
    assert sum(offer["match_tokens"] != 0 for offer in offers.values()) >= 2


def test_a_strategy_that_gave_way_writes_nothing_of_endpoints_that_came_since() -> None:
    fleet = Fleet("ab")
    pick = fleet.pick("Why?")
    fleet.pool.strategy = PrefixHash(fleet.outside)
    fleet.follow("abc")
    moved = fleet.pool.move(pick, fleet.pool.snapshot.ready["c"].address)
    moved.release()
    moved.learn(RequestResult(status=500))

    assert moved.endpoint.name == "c"
    assert len(fleet.strategy.index) == 0
    assert fleet.pool.book.total == 0


def gateways(count: int) -> list[Fleet]:
    return [Fleet("abcdefgh", seed=seed, gateways=count) for seed in range(count)]


def test_several_gateways_find_conversations_and_instructions_at_their_homes_and_predict_them_there() -> (
    None
):
    one, other = gateways(2)
    for number in range(20):
        said = [words(f"{number} Why?", 500)]
        first, following = one.visit(*said), other.visit(*said, "Because.", "How?")

        assert (first.endpoint.name, first.reason) == (following.endpoint.name, HOME)
        assert following.reason is SESSION
    told = other.strategy.signals.predicted()[SESSION]
    assert 0.9 * told.prompt < told.cached < told.prompt

    for number in range(20):
        system = words(f"You serve client {number}.", 2_000)
        first, following = one.visit("Why?", system=system), other.visit("How?", system=system)
        assert first.endpoint.name == following.endpoint.name


def test_a_gateway_that_is_alone_has_no_homes() -> None:
    fleet = Fleet()
    for number in range(200):
        said = [words(f"{number} Why?", 100)]
        fleet.visit(*said)
        fleet.visit(*said, "Because.", "How?")
    offers = fleet.explain("Why not?")

    assert fleet.strategy.gateways.count == 1
    assert HOME not in {fleet.visit(f"{number} Who?").reason for number in range(50)}
    assert len(offers) <= 4


def test_gateways_find_out_that_they_are_several() -> None:
    """Turns of each conversation meet a random one of four; at the end they are found where they began."""
    fleets = [Fleet("abcdefgh", seed=seed) for seed in range(4)]
    rng = random.Random(0)
    missed: list[int] = []
    for number in range(400):
        said, places = [words(f"{number} Why?", 300)], set()
        for turn in range(4):
            places.add(rng.choice(fleets).visit(*said, after_s=1.0).endpoint.name)
            said += [f"Because {turn}.", f"And {turn}?"]
        missed.append(len(places) - 1)

    assert {round(fleet.strategy.gateways.count) for fleet in fleets} <= {3, 4, 5, 6}
    assert sum(missed[:10]) >= 10
    assert sum(missed[-100:]) <= 5


def test_a_turn_of_ours_tells_where_a_conversation_is_whatever_its_home() -> None:
    (fleet,) = gateways(2)[:1]
    for number in range(20):
        said = [words(f"{number} Why?", 500)]
        home = fleet.visit(*said).endpoint.name
        said += ["Because.", "How?"]
        there = fleet.pool.snapshot.ready["a" if home != "a" else "b"]
        moved = fleet.pool.move(fleet.pick(*said), there.address)
        moved.release()
        fleet.clock.now_s += 10

        assert fleet.visit(*said, "So.", "Oh?").endpoint.name == moved.endpoint.name


def test_the_ring_is_kept_by_those_that_place_alike() -> None:
    fleet = Fleet()
    ready = {name: Endpoint(name, "10.0.0.1:80") for name in "ab"}
    placed = PrefixCache(fleet.outside).place(ready, NOWHERE)

    assert isinstance(placed, Ring)
    assert PrefixCache(fleet.outside, gateways=2).place(ready, placed) is placed
    assert PrefixHash(fleet.outside).place(ready, placed) is not placed


def test_a_request_in_flight_weighs_a_part_of_a_step_or_of_the_mean_prefill() -> None:
    strategy = PrefixCache(Fleet().outside, engine="h100-llama8b-bf16")
    engine, costs = strategy.signals, strategy.costs
    engine.follow(["a"])
    by_step = costs.ms_per_request
    for _ in range(500):
        engine.predict("a", 40_000, 40_000, PrefixCache.reasons[0])

    assert by_step == pytest.approx(6 / 4)
    assert costs.ms_per_request == pytest.approx(0.05 * 40_000 * engine.ms_per_byte, rel=0.01)


@table(("usage", "factor"), [(0.0, 0.0), (0.5, 1 / 64), (0.9, 0.9**6), (1.0, 1.0), (3.0, 1.0)])
def test_a_cache_in_use_costs_the_more_the_fuller_its_engine_says_it_is(
    usage: float, factor: float
) -> None:
    """A sixth of a whole cache's prefill where all of it is in use."""
    fleet, whole_ms = Fleet("ab"), 84_000 * L4_MS_PER_TOKEN
    used = EndpointSignals(kv_usage=usage)
    fleet.strategy.signals.apply_signals("a", used, fleet.pool.book.counts)
    cost = {name: float(str(told["cost_ms"])) for name, told in fleet.explain("How?").items()}

    assert cost["a"] - cost["b"] == pytest.approx(factor * whole_ms / 6, rel=0.01, abs=0.01)


def test_an_idle_endpoint_whose_scrape_met_a_request_has_its_share() -> None:
    """A last scrape that saw one block in use kept an endpoint without requests until the next one."""
    fleet = Fleet("ab")
    fleet.strategy.signals.apply_signals("a", EndpointSignals(kv_usage=0.01), dict)
    got = Counter(fleet.visit(f"{n} is how much?", after_s=1).endpoint.name for n in range(40))

    assert 8 < got["a"] < 32


def test_what_an_engine_said_of_its_cache_moves_with_our_prompts_and_goes_with_its_silence() -> (
    None
):
    fleet = Fleet("ab")

    def cost() -> float:
        return float(str(fleet.explain("How?")["a"]["cost_ms"]))

    fleet.strategy.signals.apply_signals("a", EndpointSignals(kv_usage=0.5), dict)
    half = cost()
    while fleet.pool.book.counts()["a"] < 1:
        fleet.pick(words("Why?", 30_000))
    fleet.clock.now_s += 1_000
    fuller = cost()
    fleet.strategy.signals.apply_signals("a", None, dict)

    assert fuller > 10 * half
    assert cost() < fuller / 10


def test_what_waits_at_an_engine_is_to_come_into_its_cache() -> None:
    """An engine does not count a prompt that waits for memory, and a request more waits behind it."""
    fleet = Fleet("ab")

    def cost(waiting: float) -> float:
        signals = EndpointSignals(kv_usage=0.8, running=9.0 - waiting, waiting=waiting)
        fleet.strategy.signals.apply_signals("a", signals, dict)
        return float(str(fleet.explain("How?")["a"]["cost_ms"]))

    while fleet.pool.book.counts()["a"] < 1:
        fleet.pick(words("Why?", 30_000))
    fleet.clock.now_s += 1_000

    assert cost(waiting=9) > cost(waiting=3) > cost(waiting=0)


def test_the_engines_are_the_simulators_profiles() -> None:
    profiles = yaml.safe_load(
        files("extproc.simulator.engine").joinpath("profiles.yaml").read_text("utf-8")
    )

    for name, costs in ENGINES.items():
        profile = profiles[name]
        attention_ms = profile.get("attention_ns", 0) * USUAL_PROMPT / 2 / 1e6
        assert costs.prefill_ms_per_token == pytest.approx(
            profile["prefill_ms_per_token"] + attention_ms, rel=0.005
        )
        assert (costs.step_ms, costs.kv_tokens) == (profile["base_ms"], profile["kv_tokens"])


@given(
    st.lists(st.lists(st.sampled_from(["Why?", "How? " * 200, "é" * 300]), min_size=1, max_size=5)),
    st.integers(1, 3),
    st.sampled_from([0, 2]),
)
def test_any_pick_is_of_the_cheapest(
    chats: list[Sequence[str]], gateways: int, fallbacks: int
) -> None:
    fleet = Fleet(gateways=gateways, kv_tokens=1_024)
    fleet.pool.fallbacks = fallbacks
    for texts in chats:
        draw = fleet.outside.rng.getstate()
        decision = fleet.picker.propose(ask(*texts))
        # The same draw compares the same endpoints: of the idle ones it is chance which.
        fleet.outside.rng.setstate(draw)
        rows = cast(
            "list[dict[str, Any]]",
            decision.pick.reading.explain(fleet.pool.candidates())["candidates"],
        )
        costs = {row["endpoint"]: row["cost_ms"] for row in rows}
        fleet.outside.rng.setstate(draw)
        pick = fleet.visit(*texts, after_s=0.01)

        assert costs[pick.endpoint.name] == min(costs.values())
        assert (
            len({pick.endpoint.name, *(endpoint.name for endpoint in pick.fallbacks)})
            == 1 + fallbacks
        )
