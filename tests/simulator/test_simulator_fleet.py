"""The fleet as a whole: its own pickers in front of its engines, in virtual time, alone or sharing picks."""

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from msgspec import structs

from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.prompt.chain import chain_of
from extproc.router.routing.prompt.parse import parse
from extproc.router.routing.strategies.base import ClockAndRandom
from extproc.router.routing.strategies.prefix_cache.strategy import PrefixCache
from extproc.simulator.commands import simulate as command
from extproc.simulator.engine.engine import Engine
from extproc.simulator.engine.profiles import Profile, find_profile
from extproc.simulator.fleet.bus import BusFault, Sharing
from extproc.simulator.fleet.changes import FleetChange, Kind
from extproc.simulator.fleet.chats import Demand
from extproc.simulator.fleet.fleet import FleetRun, Setup, simulate_fleet
from extproc.simulator.fleet.gateway import EndpointNames, Gateways, ReadMetrics, Routing
from extproc.simulator.fleet.report import render_summaries
from extproc.simulator.fleet.seed_preset import PublishedCell, read_published_cells, tell_cells
from extproc.simulator.fleet.session import (
    PlannedSession,
    PlannedTurn,
    Transcript,
    make_text,
    write_body,
)
from extproc.simulator.fleet.summary import summarize
from extproc.simulator.fleet.traffic import Traffic
from extproc.simulator.fleet.workloads import WORKLOADS, draw_sessions
from extproc.simulator.fleet_commands import ARMS
from extproc.simulator.peers.signals import Scrape
from tests.simulator.plays import PROFILE, hit_rate_of_play, picture, play
from tests.simulator.prompts import planned
from tests.tables import table

LOST = FleetChange(5, Kind.CRASH, 1)


def named(number: int, seed: int = 0) -> str:
    return EndpointNames(Random(f"names {seed}"))[number].name


def serve_one(*sessions: PlannedSession, changes: tuple[FleetChange, ...] = ()) -> FleetRun:
    """What one endpoint makes of these sessions."""
    return simulate_fleet(Setup([PROFILE], 1, Routing(), Traffic(), changes), sessions)


def test_fleet_of_one_serves_a_request_as_its_engine_does() -> None:
    run = serve_one(planned(1, (832, 76)))
    (flight,) = run.flights
    engine, times = Engine(PROFILE), [0.0]
    engine.add_hashed("a", 832, range(56), 76, now=0)
    while not engine.is_idle:
        times.append(engine.step(times[-1]).ends_at)
    gaps_s = sum(gap * count for gap, count in zip(run.gaps.seconds, run.gaps.counts, strict=True))

    assert flight.first_at == times[1]
    assert flight.ended_at == pytest.approx(times[-1])
    assert gaps_s == pytest.approx(75 * PROFILE.step_s(832 + 38, 0), rel=0.001)


def test_arrival_amid_a_quiet_stretch_waits_for_the_step_that_runs() -> None:
    run = serve_one(planned(1, (100, 200)), planned(2, (100, 5), (200, 5, 1.0)))
    stepwise, sent = Engine(PROFILE), run.flights[2].sent_at
    stepwise.add_hashed("0", 100, range(18), 200, now=0)
    stepwise.add_hashed("1", 100, range(100, 106), 5, now=0)
    now = 0.0
    while now < sent:
        now = stepwise.step(now).ends_at

    assert run.flights[2].admitted_at == pytest.approx(now)


def test_same_seed_gives_the_same_run_and_another_another() -> None:
    assert picture(play()) == picture(play()) != picture(play(seed=1))


def test_prefix_hash_finds_more_cached_than_any_other_and_loses_nothing_where_nothing_is_reused() -> (
    None
):
    rates = {
        name: hit_rate_of_play(play(routing=Routing(name)))
        for name in ("random", "round_robin", "least_load")
    }
    best = summarize(play(routing=Routing("prefix_hash")), is_whole=True)
    ours, least = (
        summarize(play("unique", requests=800, routing=Routing(name)))
        for name in ("prefix_hash", "least_load")
    )

    assert 1 - best.hit_rate < 0.5 * (1 - max(rates.values()))
    assert ours.hit_rate == least.hit_rate == 0
    assert ours.ttft.mean_ms < 1.2 * least.ttft.mean_ms


def test_reasons_and_requests_add_up() -> None:
    run = play("hot-prefix", requests=300)
    summary = summarize(run, is_whole=True)

    assert sum(summary.reasons.values()) == summary.requests == 300
    assert sum(node.requests for node in run.nodes) == 300
    assert summary.reasons["spill"] > 0
    assert summary.failed == 0


def test_gateways_pick_apart_and_the_prefixes_stay_together() -> None:
    together, apart = (play(routing=Routing(gateways=count)) for count in (1, 4))

    assert hit_rate_of_play(apart) == pytest.approx(hit_rate_of_play(together), abs=0.1)
    assert {flight.gateway for flight in apart.flights} == {0, 1, 2, 3}


def test_crash_loses_what_runs_and_spares_the_rest_and_who_comes_back_serves() -> None:
    run = play(requests=1200, changes=(LOST, FleetChange(10, Kind.JOIN, 1)))
    lost = [flight for flight in run.flights if flight.is_failed]
    crashed = [flight for flight in run.flights if flight.endpoint == named(1)]
    back = [flight for flight in crashed if flight.sent_at > 10]

    assert lost
    assert {flight.endpoint for flight in lost} == {named(1)}
    assert not [flight for flight in crashed if 5 < flight.sent_at <= 10]
    assert back
    assert not any(flight.is_failed for flight in back)
    assert summarize(run, is_whole=True).failed == len(lost)


def test_fleet_without_endpoints_fails_every_request_and_an_empty_window_is_said() -> None:
    run = play(
        endpoints=1, changes=(FleetChange(0, Kind.CRASH, 0),), requests=20, traffic=Traffic(users=2)
    )
    failed = summarize(run, is_whole=True)
    empty = summarize(play("unique", requests=20, traffic=Traffic(rate=5, until_s=0.0)))

    assert all(flight.is_failed for flight in run.flights)
    assert (failed.failed, failed.hit_rate, failed.served_rps) == (failed.requests, 0, 0)
    assert (empty.offered_rps, empty.served_rps, empty.hit_rate) == (0, 0, 0)
    assert empty.warnings == ["nothing was due in the window: it has no load to measure"]


def test_drained_endpoint_finishes_what_it_has_whether_it_comes_back_or_not() -> None:
    run = play(changes=(FleetChange(5, Kind.DRAIN, 1),))
    changes = (FleetChange(1, Kind.DRAIN, 0), FleetChange(2, Kind.JOIN, 0))
    (flight,) = serve_one(planned(1, (100, 200)), changes=changes).flights

    assert not any(flight.is_failed for flight in run.flights)
    assert max(flight.sent_at for flight in run.flights if flight.endpoint == named(1)) <= 5
    assert flight.is_answered
    assert flight.ended_at > 5


def test_new_endpoint_joins_and_slow_one_is_slow() -> None:
    slow = (FleetChange(0, Kind.SLOW, 0, 3.0), FleetChange(8, Kind.SLOW, 0, 1.0))
    changes = (FleetChange(5, Kind.JOIN, 4), *slow)
    run = play("unique", routing=Routing("round_robin"), traffic=Traffic(rate=5), changes=changes)
    slowed, usual = (
        [f.tpot_s for f in run.flights if f.endpoint == named(number) and f.sent_at < 2]
        for number in (0, 1)
    )

    assert len(run.nodes) == 5
    assert run.nodes[4].requests > 0
    assert min(slowed) > 1.5 * max(usual)


def test_inter_token_latencies_count_every_token_after_the_first() -> None:
    run = play("unique", requests=200, endpoints=1, traffic=Traffic())
    outputs = sum(flight.plan.output_tokens - 1 for flight in run.flights)

    assert sum(node.preemptions for node in run.nodes) > 0
    assert sum(run.gaps.counts) == outputs


def test_client_with_a_ceiling_sees_answers_late_and_is_asked_no_more() -> None:
    free, busy = (
        summarize(play("unique", requests=100, traffic=Traffic(users=20, ceiling=c)), is_whole=True)
        for c in (None, 1.5)
    )

    assert free.served_rps > 2
    assert 1 < busy.served_rps < 1.52
    assert busy.ttft.mean_ms > free.ttft.mean_ms


def test_figures_leave_out_the_warm_up_and_the_tail() -> None:
    traffic = Traffic(rate=6, until_s=60)
    setup = Setup([PROFILE], 4, Routing(), traffic, warmup_s=20)
    run = simulate_fleet(setup, draw_sessions("unique", Demand(600), 0))
    measured, whole = summarize(run), summarize(run, is_whole=True)

    assert (measured.start_s, measured.end_s) == (20, 60)
    assert measured.offered_rps == pytest.approx(6, rel=0.1)
    assert measured.requests == sum(20 <= flight.due_at <= 60 for flight in run.flights)
    assert whole.requests == len(run.flights) > measured.requests
    assert max(flight.ended_at for flight in run.flights) > 60
    assert all(flight.is_answered for flight in run.flights if flight.due_at <= 60)
    assert sum(run.gaps.counts) < sum(f.plan.output_tokens for f in run.flights)


def test_command_prints_every_strategy_and_writes_all_figures(tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    arguments = [
        "--requests",
        "200",
        "--rate",
        "20",
        "--scenario",
        "half-speed",
        "--json",
        str(path),
    ]
    result = CliRunner().invoke(command, ["fleet", *arguments], catch_exceptions=False)
    runs = json.loads(path.read_text())["runs"]

    assert sum(line.startswith("prefix_hash ") for line in result.output.splitlines()) == 3
    for term in ("TTFT", "TPOT", "ITL", "hit rate", "asked", "preempted", "TTFT from due"):
        assert f"{term}: " in result.output.replace("\n", " ")
    assert {run["figures"]["strategy"] for run in runs} == set(ARMS)
    assert runs[0]["cell"]["scenario"] == "half-speed"


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_published_benchmark_is_reproduced_within_its_aims(tmp_path: Path) -> None:
    path = tmp_path / "cells.json"
    result = CliRunner().invoke(
        command, ["fleet", "--preset", "seed-000", "--json", str(path)], catch_exceptions=False
    )
    cells = [cell for cell in json.loads(path.read_text()) if cell["has_ceiling"]]

    # A row and a sentence for each load, with their client and with one on time.
    assert result.output.count("prefix_hash") == 8 + 8
    assert len(cells) == 12
    for cell in cells:
        published, simulated = cell["published"], cell["simulated"]
        ttft = simulated["ttft"]["mean_ms"] / published["ttft_mean_ms"]
        assert simulated["total_tok_per_s"] == pytest.approx(published["total_tok_per_s"], rel=0.15)
        if published["strategy"] == "prefix_hash":
            assert 1 / 1.5 < ttft < 1.5
        elif published["cap"] >= 1600:
            assert ttft == pytest.approx(1, abs=0.35)


def test_report_warns_where_offered_loads_differ() -> None:
    slow, fast = (
        summarize(play(requests=1200, traffic=Traffic(users=40), routing=Routing(name)))
        for name in ("round_robin", "prefix_hash")
    )
    same = summarize(play("unique", requests=50))

    assert fast.offered_rps > 1.03 * slow.offered_rps
    assert "latencies do not compare" in render_summaries([slow, fast])
    assert "latencies do not compare" not in render_summaries([same, same])


@table(
    "changes",
    [
        (FleetChange(12, Kind.DRAIN, 0), FleetChange(13, Kind.JOIN, 0)),
        (FleetChange(12, Kind.FLUSH, 0),),
    ],
)
def test_endpoint_that_was_drained_or_flushed_goes_on_without_cache(
    changes: tuple[FleetChange, ...],
) -> None:
    turns = [(640 + 80 * turn, 16, 10.0) for turn in range(3)]
    cached = [
        flight.cached_tokens for flight in serve_one(planned(1, *turns), changes=changes).flights
    ]

    assert cached[0] == cached[1] == 0
    assert cached[2] > 600


def test_prompt_longer_than_the_profile_allows_is_served() -> None:
    (flight,) = serve_one(planned(1, (30_000, 5))).flights

    assert flight.is_answered


def test_profiles_are_given_out_in_turns() -> None:
    slow = replace(PROFILE.slowed(3.0), name="slow")
    setup = Setup([PROFILE, slow], 2, Routing("round_robin"), Traffic())
    fast_one, slow_one = simulate_fleet(setup, [planned(i, (100, 50)) for i in range(2)]).flights

    assert slow_one.ended_at == pytest.approx(3 * fast_one.ended_at)


def test_gain_of_each_load_is_told_as_the_document_tells_it() -> None:
    """Ours is 100 times its TTFT, half its tokens and 3 times its ITL in both: medians of two seeds."""
    run = summarize(play(requests=50))
    slow = replace(
        run,
        ttft=replace(run.ttft, mean_ms=101 * run.ttft.mean_ms),
        total_tok_per_s=run.total_tok_per_s / 2,
        itl=replace(run.itl, mean_ms=3 * run.itl.mean_ms),
    )
    runs = {"least_load": slow, "prefix_hash": run, "round_robin": run}
    cells = [PublishedCell(cell, True, runs[cell.strategy]) for cell in 2 * read_published_cells()]

    assert tell_cells(cells).splitlines()[-1] == (
        "8,000 in flight, their client: prefix_hash against least_load: TTFT 100 times sooner, +100% tokens/s, "
        "ITL 200% better; published TTFT 164 times sooner, +41% tokens/s, ITL 143% better"
    )
    assert len(tell_cells(cells).splitlines()) == 4


@table(
    ("preset", "least_ms", "most_ms", "published"),
    [("seed-002", 400, 500, "-11%"), ("seed-004", 450, 720, "-34%")],
)
def test_threads_take_about_as_long_as_published_and_say_what_prefix_hash_gains(
    preset: str, least_ms: float, most_ms: float, published: str
) -> None:
    done = CliRunner().invoke(
        command, ["fleet", "--preset", preset, "--seed", "3"], catch_exceptions=False
    )
    *_, lost, gained, own, told, more = done.output.splitlines()
    figures = [line.split() for line in (lost, gained, own)]

    assert [row[0] for row in figures] == ["least_load", "prefix_hash", "prefix_cache"]
    assert least_ms < float(figures[0][1]) < most_ms
    assert figures[2][2] == "-"
    assert re.fullmatch(rf"prefix_hash against least_load: -\d+% .*; published {published}", told)
    assert more.startswith("prefix_cache against least_load: ")


@table(
    ("profiles", "slow"),
    [
        (["l4-llama8b-fp8"], []),
        (["h100-llama8b-bf16"], []),
        (["l4-llama8b-fp8", "l4-llama8b-fp8", "l4-llama8b-fp8", "h100-llama8b-bf16"], [0.16]),
    ],
)
def test_endpoints_of_another_kind_are_found_by_their_metrics(
    profiles: list[str], slow: list[float]
) -> None:
    """Though `prefix_cache` takes all of them for L4s, and the requests share nothing."""
    found = slowness_in_fleet([find_profile(name) for name in profiles], ())

    assert sorted(found.values()) == pytest.approx(slow, rel=0.35)


def test_one_endpoint_of_half_the_speed_is_found_among_others() -> None:
    changes = (FleetChange(0.0, Kind.SLOW, 0, 2.0),)
    [factor] = slowness_in_fleet([find_profile("l4-llama8b-fp8")], changes).values()

    assert 1.5 < factor < 2.6


def slowness_in_fleet(
    profiles: Sequence[Profile], changes: Sequence[FleetChange], rate: float = 6.0
) -> Mapping[str, float]:
    """Which of four endpoints are slower than most after 2,500 requests, one gateway."""
    kept: list[PrefixCache] = []

    @dataclass(frozen=True, slots=True)
    class Kept(Routing):
        def build_gateways(
            self,
            endpoints: Sequence[Endpoint],
            outsides: Sequence[ClockAndRandom],
            scrapes: Sequence[Scrape],
            read: ReadMetrics,
        ) -> Gateways:
            def build() -> PrefixCache:
                kept.append(PrefixCache(outsides[0]))
                return kept[-1]

            gateways = Gateways([build], outsides, read)
            gateways.replace(endpoints)
            return gateways

    sessions = draw_sessions("unique", Demand(2_500, 0.0, 4), 1)
    simulate_fleet(Setup(profiles, 4, Kept(), Traffic(rate=rate), changes), sessions)
    return kept[0].signals.slow


HEAD = Transcript(3).then("system", "head.text", 1000)
CHAT = planned(7, (1050, 20), (1100, 30), head=HEAD)


def messages(body: bytes) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in json.loads(body)["messages"]]


def lengths(body: bytes) -> list[tuple[str, int]]:
    return [(role, len(text)) for role, text in messages(body)]


def test_text_has_its_characters_and_without_a_role_goes_on_with_the_message_before() -> None:
    script = Transcript().then("user", "tenant.head", 100).then("", "chat.asked", 10)
    ((role, text),) = messages(write_body(script.ask("chat.said", 5)))
    sizes = [0, 1, 10, 100_000, 700_000]

    assert (role, len(text)) == ("user", sum(message.chars for message in script.messages))
    assert [len(make_text(b"name", chars)) for chars in sizes] == sizes


def test_sessions_have_the_head_in_common_and_equal_texts_behind_different_ones_differ() -> None:
    one, other = (
        messages(write_body(planned(owner, (1050, 20), head=HEAD).turns[0])) for owner in (1, 11)
    )
    a, b, again = (Transcript().then("system", name, 50).then("user", "same", 50) for name in "aba")

    assert one[0] == other[0]
    assert one[1][1][:20] != other[1][1][:20]
    assert a.messages[1].text != b.messages[1].text
    assert a.messages == again.messages


@table("name", WORKLOADS.keys() - {"image", "ids"})
def test_bodies_of_every_workload_of_texts_have_the_characters_of_their_tokens(name: str) -> None:
    for session in draw_sessions(name, Demand(300, 1.0), 3)[:10]:
        for turn in session.turns:
            said = turn.messages[:-1]
            assert sum(length for _, length in lengths(write_body(turn))) == sum(
                part.chars for part in said
            )
            assert turn.prompt_tokens == sum(part.tokens for part in said)
            assert turn.output_tokens == turn.messages[-1].tokens


def test_a_router_reads_pictures_and_token_ids_as_the_tokens_that_an_engine_sees() -> None:
    def read(turn: PlannedTurn) -> int:
        return chain_of(parse(turn.path, "", write_body(turn)).turns(1 << 24), 1).size // 4

    image, ids = (
        draw_sessions(name, Demand(300, 1.0), 3)[0].turns[-1] for name in ("image", "ids")
    )
    chars = sum(message.chars for message in image.messages[:-1])

    assert any(message.is_picture for message in image.messages)
    assert read(image) == pytest.approx(chars / 4, rel=0.02)
    assert read(ids) == ids.prompt_tokens


def test_characters_per_token_differ_by_session_and_by_a_fifth_at_most() -> None:
    asked = [session.turns[0].messages[0] for session in draw_sessions("U", Demand(500), 0)]
    errors = [message.chars / message.tokens / 4 for message in asked if message.tokens > 500]

    assert min(errors) == pytest.approx(0.8, abs=0.01)
    assert max(errors) == pytest.approx(1.2, abs=0.01)


def test_chat_grows_by_answer_and_question_of_their_lengths_and_the_service_reads_it() -> None:
    first, second = (write_body(turn) for turn in CHAT.turns)
    planned_chars = [(message.role, message.chars) for message in CHAT.turns[1].messages[:-1]]
    prompt = parse("/v1/chat/completions", "application/json", first)

    assert lengths(first) == planned_chars[:2]
    assert lengths(second) == planned_chars
    assert [message.tokens for message in CHAT.turns[1].messages] == [1000, 50, 20, 30, 30]
    assert second.startswith(first.removesuffix(b"]}"))
    assert prompt.first_user_message(50) == messages(first)[1][1][:50]


def test_endpoints_are_called_something_else_for_each_seed() -> None:
    names = [{EndpointNames(Random(seed))[number].name for number in range(8)} for seed in (1, 2)]

    assert len(names[0]) == 8
    assert not names[0] & names[1]


def test_agents_grow_evenly_to_thirty_thousand_tokens() -> None:
    sessions = [
        session for session in draw_sessions("G", Demand(600), 1) if len(session.turns) > 30
    ]

    for session in sessions[:-1]:
        prompts = [turn.prompt_tokens for turn in session.turns]
        grown = [
            after.prompt_tokens - before.prompt_tokens - before.output_tokens
            for before, after in zip(session.turns, session.turns[1:], strict=False)
        ]
        assert prompts[0] == 2000
        assert prompts[-1] == pytest.approx(30_000, abs=800)
        assert min(grown) > 0
        assert len(prompts) <= 40


def shared(sharing: Sharing | None, gateways: int = 4) -> FleetRun:
    return play(requests=800, routing=Routing("prefix_cache", gateways=gateways, sharing=sharing))


@pytest.fixture(scope="module")
def alone() -> float:
    return hit_rate_of_play(shared(None, gateways=1))


@pytest.fixture(scope="module")
def unshared() -> float:
    return hit_rate_of_play(shared(None))


@pytest.mark.parametrize(
    "sharing",
    [
        Sharing(),
        Sharing(0.01),
        Sharing(1.0),
        Sharing(0.01, loss=0.1),
        Sharing(0.01, 0.0, BusFault.SLOWS, 15.0),
    ],
    ids=lambda sharing: f"{sharing.delay_s:g}-{sharing.loss:g}-{sharing.fault}",
)
def test_gateways_that_share_find_as_much_as_one(
    alone: float, unshared: float, sharing: Sharing
) -> None:
    """Those that share nothing find less, or this would show nothing."""
    assert hit_rate_of_play(shared(sharing)) == pytest.approx(alone, abs=0.02)
    assert unshared < alone - 0.02


def test_a_gateway_that_is_started_again_soon_finds_as_much_as_before(alone: float) -> None:
    restarted = hit_rate_of_play(
        shared(Sharing(0.01, fault=BusFault.RESTART, middle_s=15.0), gateways=2)
    )

    assert restarted == pytest.approx(alone, abs=0.05)


def test_a_dead_bus_changes_nothing_and_a_shared_run_is_the_same_each_time() -> None:
    sharings = [None, Sharing(fault=BusFault.DEAD), *[Sharing(0.01, loss=0.1)] * 2]
    none, dead, one, other = (
        picture(play(requests=200, routing=Routing("prefix_cache", gateways=4, sharing=sharing)))
        for sharing in sharings
    )

    assert none == dead
    assert one == other


@pytest.mark.parametrize("fault", [BusFault.DIES, BusFault.AWAY, BusFault.HALVES])
def test_a_bus_that_fails_later_costs_little_against_none(unshared: float, fault: BusFault) -> None:
    """All of these are in the minute after the loss, and users think for a second: the worst time of all."""
    assert hit_rate_of_play(shared(Sharing(0.01, fault=fault, middle_s=15.0))) > unshared - 0.05


BEGINS_S, TURNS_TELL_S, ENDS_S = 12.0, 5.0, 32.0


def quick(sharing: Sharing | None) -> float:
    """Of the later turns, some seconds after a fault began, the share that went where the last one went.

    Ten conversations a second begin, their turns half a second apart.
    """
    rng = random.Random(1)
    turns = [(100 + 110 * turn, 10, 0.3 if turn else 0.0) for turn in range(5)]
    starts = sorted(rng.uniform(0, ENDS_S) for _ in range(320))
    setup = Setup(
        [find_profile("h100-llama8b-bf16")],
        4,
        Routing("prefix_cache", {"engine": "h100-llama8b-bf16"}, 4, sharing=sharing),
        Traffic(until_s=ENDS_S),
    )
    sessions = [
        structs.replace(planned(owner, *turns), start_s=start_s)
        for owner, start_s in enumerate(starts)
    ]
    places: dict[int, str] = {}
    hits = []
    for flight in simulate_fleet(setup, sessions).flights:
        before, places[flight.session.owner] = places.get(flight.session.owner), flight.endpoint
        if before is not None and flight.due_at >= BEGINS_S + TURNS_TELL_S:
            hits.append(before == flight.endpoint)
    return sum(hits) / len(hits)


@pytest.fixture(scope="module")
def quick_unshared() -> float:
    return quick(None)


@pytest.mark.parametrize("fault", [BusFault.SLOWS, BusFault.DIES, BusFault.HALVES])
def test_five_seconds_after_a_fault_began_turns_have_told(
    quick_unshared: float, fault: BusFault
) -> None:
    """Before that quick turns miss: of the first 4 s six in ten hit."""
    assert quick(Sharing(0.01, 0.0, fault, BEGINS_S)) >= 0.95 * quick_unshared


def test_the_command_shares() -> None:
    """A fault is written as the documentation writes it."""
    options = ["--arm", "prefix_cache", "--requests", "40", "--gateways", "2", "--seed", "1"]
    losses = [["--share-delay", "10", "--share-loss", loss] for loss in ("0.1", "1.5")]
    asked = (*losses, ["--share-fault", "halves"])
    done = [CliRunner().invoke(command, ["fleet", *options, *each]).exit_code for each in asked]

    assert done == [0, 2, 0]


def test_a_matrix_has_every_way_of_sharing_in_its_table_and_csv(tmp_path: Path) -> None:
    csv = tmp_path / "m.csv"
    options = [
        "--arm",
        "prefix_cache",
        "--workload",
        "T",
        "--load",
        "0.4",
        "--seeds",
        "1",
        "--workers",
        "1",
    ]
    sharing = [
        "--share-delay",
        "10",
        "--share-delay",
        "100",
        "--share-fault",
        "dies",
        "--gateways",
        "2",
    ]
    short = ["--warmup-s", "1", "--measured-s", "2", "--csv", str(csv)]
    done = CliRunner().invoke(command, ["matrix", str(tmp_path / "m"), *options, *sharing, *short])

    assert done.exit_code == 0, done.output
    assert "workload T, load 0.4" in done.output
    assert "share_delay_ms 100.0, share_fault dies" in done.output
    assert "share_delay_ms 10.0, share_fault dies" in done.output
    assert csv.read_text().count("\n") == 3
