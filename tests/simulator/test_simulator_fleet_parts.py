"""The parts of the fleet: sessions, chats, the client, latencies; and the replay of traces."""

from collections import Counter
from dataclasses import replace
from functools import partial
from math import isnan
from pathlib import Path
from random import Random

import msgspec
import pytest
from click.testing import CliRunner

from extproc.errors import SettingsError
from extproc.simulator.commands import simulate as simulate_command
from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.chats import Demand
from extproc.simulator.fleet.fleet import simulate_fleet
from extproc.simulator.fleet.flight import Flight
from extproc.simulator.fleet.session import PlannedSession, PlannedTurn, Transcript, write_body
from extproc.simulator.fleet.summary import Latency
from extproc.simulator.fleet.timeline import VirtualTimeline
from extproc.simulator.fleet.trace import Trace, read_trace
from extproc.simulator.fleet.traffic import SessionClient, Traffic
from extproc.simulator.fleet.workloads import SHAREGPT, WORKLOADS, draw_sessions, expand_names
from tests.simulator.prompts import planned
from tests.simulator.traces import write_trace
from tests.tables import table

ASK = (64, 32)


def requests(sessions: list[PlannedSession]) -> list[PlannedTurn]:
    return [turn for session in sessions for turn in session.turns]


def test_timeline_runs_in_order_of_time_then_of_planning_and_never_backwards() -> None:
    timeline, seen, times = VirtualTimeline(), list[str](), list[float]()
    for time, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        timeline.at(time, partial(seen.append, name))
    timeline.at(2.0, lambda: timeline.at(1.0, lambda: times.append(timeline.now)))
    timeline.run()

    assert (seen, times) == (["a", "b", "c"], [2.0])


def test_next_turn_contains_the_answer_of_the_one_before_and_only_the_head_is_common() -> None:
    session = planned(7, (64, 32), (112, 16))
    first, second = session.path(0, 16).runs, session.path(1, 16).runs
    head = Transcript().then("system", "head", 40)
    one, other = (planned(owner, (64, 32), head=head).path(0, 16).runs for owner in (1, 2))

    assert [end for _, end in second] == [4, 6, 7, 8]
    assert second[:2] == first
    assert [end for _, end in one] == [2, 4, 6]
    assert (one[0] == other[0], one[1] == other[1]) == (True, False)


@table("seed", range(3))
def test_chats_have_the_published_means_and_eight_turns_and_three_more(seed: int) -> None:
    turns = requests(draw_sessions("sessions", Demand(8000), seed))
    chats = SHAREGPT.draw(20_000, Random(seed))

    assert sum(turn.prompt_tokens for turn in turns) / 8000 == pytest.approx(832.0, rel=0.003)
    assert sum(turn.output_tokens for turn in turns) / 8000 == pytest.approx(76.06, rel=0.003)
    assert min(map(len, chats[:-1])) == 8
    # Of Exp(3.5) cut to whole turns the mean is 1 / (e^(1/3.5) - 1) = 3.02.
    assert sum(map(len, chats)) / len(chats) == pytest.approx(11.02, abs=0.3)


def test_replay_goes_through_a_tenth_ten_times_in_one_random_order() -> None:
    sessions = draw_sessions("replay", Demand(8000), 0)

    prompts = [session.turns[0].messages[:-1] for session in sessions]
    assert prompts[:800] == prompts[800:1600] == prompts[7200:]
    assert len({*prompts}) == 800
    generated = {session.turns[0].messages[-1].text for session in sessions}
    assert len(generated) == 8000
    assert not generated & {message.text for prompt in prompts for message in prompt}
    assert 70 <= len({session.owner for session in sessions}) <= 76
    assert sessions[:800] != sorted(sessions[:800], key=lambda session: session.owner)


def test_k6_threads_are_those_of_the_published_benchmark() -> None:
    sessions = draw_sessions("k6-chat", Demand(7340), 0)
    turns = requests(sessions)

    assert len(sessions) == pytest.approx(1000, rel=0.05)
    assert sum(turn.prompt_tokens for turn in turns) / len(turns) == pytest.approx(680, rel=0.005)
    assert sum(turn.output_tokens for turn in turns) / len(turns) == pytest.approx(9.24, rel=0.01)


@table("name", WORKLOADS)
def test_workload_has_exactly_the_requests_and_repeats_for_a_seed(name: str) -> None:
    sessions = draw_sessions(name, Demand(505, 2.0), 1)

    assert len(requests(sessions)) == 505
    assert sessions == draw_sessions(name, Demand(505, 2.0), 1)
    longest = 262_144 if name in {"codegen", "swe", "mconv", "docqa"} else 32_768
    assert max(turn.prompt_tokens + turn.output_tokens for turn in requests(sessions)) < longest


def test_lengths_of_unique_prompts_differ_and_a_quarter_has_the_hot_prefix() -> None:
    lengths = [turn.prompt_tokens for turn in requests(draw_sessions("unique", Demand(4000), 0))]
    hot = [
        len(each.turns[0].messages) == 3 for each in draw_sessions("hot-prefix", Demand(4000), 0)
    ]

    assert sum(lengths) / 4000 == pytest.approx(800, rel=0.05)
    assert min(lengths) < 80
    assert max(lengths) > 4000
    assert sum(hot) / 4000 == pytest.approx(0.25, abs=0.02)


@table("name", WORKLOADS)
def test_documentation_has_every_workload(name: str) -> None:
    asked = WORKLOADS[name]
    row = f"| `{name}` | {asked.letter} | {asked.about} | {asked.capacity_rps:g} |"

    assert row in (Path(__file__).parents[2] / "docs" / "how-to" / "simulate.md").read_text()


def test_held_out_stands_for_the_twenty_and_an_unknown_workload_lists_the_known_ones() -> None:
    assert len(expand_names(["held-out"])) == 20
    assert len({*expand_names(["held-out", "everyday"])}) == 32
    assert expand_names(["C", "swe"]) == ["C", "swe"]
    with pytest.raises(
        SettingsError, match=r"replay \(A\), sessions \(C\).*; did you mean sessions\?"
    ):
        draw_sessions("session", Demand(1), 0)


class Answerer:
    """Answers every request of a client after one second."""

    def __init__(self, traffic: Traffic, sessions: list[PlannedSession]) -> None:
        self.timeline = VirtualTimeline()
        self.sent: list[Flight] = []
        self.most = 0
        self.client = SessionClient(sessions, traffic, self.timeline, Random(1), self.send)

    def send(self, flight: Flight) -> None:
        self.sent.append(flight)
        self.most = max(self.most, self.client.in_flight)
        self.timeline.at(self.timeline.now + 1.0, partial(self.client.ended, flight))

    def run(self) -> list[float]:
        self.client.start()
        self.timeline.run()
        return [flight.sent_at for flight in self.sent]


@table(
    ("traffic", "sessions", "sent"),
    [
        (Traffic(), [planned(i, ASK) for i in range(3)], [0, 0, 0]),
        (Traffic(), [planned(1, (64, 32), (112, 32, 2.5))], [0, 3.5]),
        (Traffic(users=3), [planned(i, ASK) for i in range(7)], [0, 0, 0, 1, 1, 1, 2]),
    ],
    ids=["all at once", "after an answer and a pause", "as users are free"],
)
def test_requests_go_when_due(
    traffic: Traffic, sessions: list[PlannedSession], sent: list[float]
) -> None:
    assert Answerer(traffic, sessions).run() == sent


def test_failed_turn_ends_its_session() -> None:
    answerer = Answerer(Traffic(), [planned(1, (64, 32), (112, 32))])
    answerer.timeline.at(0.5, lambda: setattr(answerer.sent[0], "is_failed", True))

    assert len(answerer.run()) == 1


def test_cap_holds_requests_back_and_they_are_due_all_the_same() -> None:
    answerer = Answerer(Traffic(cap=2), [planned(i, ASK) for i in range(5)])

    assert answerer.run() == [0, 0, 1, 1, 2]
    assert answerer.most == 2
    assert {flight.due_at for flight in answerer.sent} == {0}


class Reader(Answerer):
    """Gets seven chunks of an answer as soon as a request is sent."""

    def send(self, flight: Flight) -> None:
        super().send(flight)
        self.seen = self.client.read(7)


def test_busy_client_sends_late_and_sees_late() -> None:
    reader = Reader(Traffic(rate=1e9, ceiling=10), [planned(i, (64, 7)) for i in range(2)])

    # Sending costs 30 ms, seven chunks cost 70: the client sees them in the middle, and sends after
    # that.
    assert reader.run() == pytest.approx([0, 0.1], abs=1e-6)
    assert reader.seen == pytest.approx(0.1 + 0.03 + 0.07 / 2, abs=1e-6)


def test_minutes_of_an_open_loop_have_the_same_number_of_sessions() -> None:
    sessions = [planned(i, ASK) for i in range(1000)]
    minutes = Counter(int(time // 60) for time in Answerer(Traffic(rate=3), sessions).run())

    assert [minutes[minute] for minute in range(5)] == [180] * 5


@table("until_s", [10.0, 200.0])
def test_client_stops_when_all_that_was_due_is_answered(until_s: float) -> None:
    answerer = Answerer(Traffic(rate=5, until_s=until_s), [planned(i, ASK) for i in range(200)])
    times = answerer.run()

    assert max(times) < until_s + 1
    assert sum(time <= until_s for time in times) == pytest.approx(min(5 * until_s, 200), rel=0.2)


def test_latencies_are_exact_and_interpolated() -> None:
    latency = Latency.of([0.004, 0.001, 0.002, 0.003])
    written_out = [0.001] * 5 + [0.002] * 2 + [0.009]

    assert (latency.mean_ms, latency.median_ms) == pytest.approx((2.5, 2.5))
    assert (latency.p90_ms, latency.p99_ms) == pytest.approx((3.7, 3.97))
    assert Latency.of_counted([(0.009, 1), (0.001, 5), (0.002, 2)]) == Latency.of(written_out)
    assert isnan(Latency.of([]).mean_ms)


def trace_of(folder: Path, *requests: tuple[int, int, list[int]]) -> Trace:
    """A trace of (timestamp, tokens, blocks)."""
    path = folder / "trace.jsonl"
    rows = [
        {"timestamp": at, "input_length": tokens, "output_length": 7, "hash_ids": blocks}
        for at, tokens, blocks in requests
    ]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    read_trace.cache_clear()
    return read_trace(str(path))


def report_text(trace: Trace, place: int) -> str:
    (message,) = msgspec.json.decode(write_body(trace.sessions[place].turns[0]))["messages"]
    assert message["role"] == "user"
    text: str = message["content"]
    return text


def test_a_prompt_that_goes_on_behind_another_contains_its_answer(tmp_path: Path) -> None:
    """In blocks of 16: two turns, and a question that only begins like the first one."""
    prompts = [(40, [1, 2, 3]), (70, [1, 2, 4, 5, 6]), (44, [1, 2, 7])]
    row = {"output_length": 16, "block_size": 16}
    rows = [
        {**row, "timestamp": at, "input_length": tokens, "hash_ids": blocks}
        for at, (tokens, blocks) in enumerate(prompts)
    ]
    (tmp_path / "trace.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    first, second, stranger = (
        one.turns[0].messages for one in read_trace(str(tmp_path / "trace.jsonl")).sessions
    )

    assert second[: len(first)] == first
    assert sum(message.tokens for message in second[:-1]) == 70
    assert stranger[0] == first[0]
    assert [message.role for message in stranger] == ["user", "", "assistant"]


def replay(path: Path, arm: str = "least_load", **asked: object) -> MatrixCell:
    read_trace.cache_clear()
    return replace(MatrixCell(arm=arm, endpoints=2, trace=str(path)), **asked)  # type: ignore[arg-type]  # its fields


def test_equal_blocks_behind_equal_blocks_are_equal_text_and_others_are_not(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, (0, 1300, [1, 2, 3]), (5, 1100, [1, 2, 4]), (9, 1100, [5, 2, 6]))
    one, other, stranger = (report_text(trace, place) for place in range(3))
    chars = len(one) / 1300
    common = next(
        place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]
    )

    assert common == pytest.approx(1024 * chars, abs=20)
    assert len(other) / 1100 == pytest.approx(chars, rel=0.01)
    assert 3.2 <= chars <= 4.8
    assert stranger[:20] != one[:20]


def test_cache_finds_what_has_the_same_blocks_before_it(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path, (0, 1300, [1, 2, 3]), (60_000, 1300, [1, 2, 4]), (120_000, 1300, [4, 2, 3])
    )
    run = simulate_fleet(replay(tmp_path / "trace.jsonl").plan(), trace.sessions)
    alone = simulate_fleet(replay(tmp_path / "trace.jsonl", endpoints=1).plan(), trace.sessions)

    assert [flight.cached_tokens for flight in alone.flights] == [0, 1024, 0]
    assert [flight.due_at for flight in run.flights] == [0, 60, 120]


def test_trace_is_replayed_at_its_own_times_or_faster(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "made.jsonl")
    rows = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    cell = replay(path)
    fast = replace(cell, trace_speed=2.0)
    due = [flight.due_at for flight in simulate_fleet(cell.plan(), cell.draw()).flights]
    due_fast = [flight.due_at for flight in simulate_fleet(fast.plan(), fast.draw()).flights]

    assert due == pytest.approx([(row["timestamp"] - rows[0]["timestamp"]) / 1000 for row in rows])
    assert due_fast == pytest.approx([at_s / 2 for at_s in due])
    assert fast.rps == pytest.approx(2 * cell.rps)


def test_strategies_that_read_the_prompt_find_more_of_a_trace(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "made.jsonl", conversations=80)
    blind, reads = (replay(path, arm, endpoints=4).run() for arm in ("random", "prefix_cache"))
    first, window = (
        replay(path, requests=10).run(),
        replay(path, warmup_s=10.0, measured_s=20.0).run(),
    )

    assert blind.requests == reads.requests == len(path.read_bytes().splitlines())
    assert blind.failed == reads.failed == 0
    assert reads.hit_rate > blind.hit_rate + 0.1
    # Requests and a window cut it.
    assert (first.requests, window.start_s, window.end_s) == (10, 10, 30)


def test_trace_that_is_another_one_by_now_is_not_taken_for_the_first(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "made.jsonl")
    cell = replace(replay(path), trace_xxh3=read_trace(str(path)).digest)
    assert cell.run().requests > 0

    write_trace(path, seed=1)
    read_trace.cache_clear()
    with pytest.raises(SettingsError, match="not what was replayed"):
        cell.run()


@table(
    ("text", "fault"),
    [
        ("\n{\n", ":2: DecodeError"),
        ('\n{"timestamp": 1}\n', ":2: KeyError"),
        ('{"timestamp": 1, "input_length": "a", "output_length": 1, "hash_ids": []}', "integers"),
        (
            '{"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}',
            "2 blocks of 512",
        ),
        (
            '{"timestamp": "inf", "input_length": 5, "output_length": 1, "hash_ids": [1]}',
            "not finite",
        ),
        (
            '\n{"timestamp": "x", "input_length": 5, "output_length": 1, "hash_ids": [1]}',
            ":2: ValueError",
        ),
        ("", "no request"),
        (None, "No such file"),
    ],
)
def test_trace_that_cannot_be_read_is_named(tmp_path: Path, text: str | None, fault: str) -> None:
    path = tmp_path / ("none.jsonl" if text is None else "bad.jsonl")
    if text is not None:
        path.write_text(text)
    read_trace.cache_clear()

    with pytest.raises(SettingsError, match=fault):
        read_trace(str(path))


def test_prompt_that_no_cache_of_the_fleet_can_hold_is_refused(tmp_path: Path) -> None:
    trace_of(tmp_path, (0, 90_000, [1]))

    with pytest.raises(SettingsError, match="a request has 90007 tokens"):
        replay(tmp_path / "trace.jsonl").run()


def test_command_replays_a_trace_and_says_which(tmp_path: Path) -> None:
    path, figures = write_trace(tmp_path / "made.jsonl"), tmp_path / "figures.json"
    asked = [
        "fleet",
        "--trace",
        str(path),
        "--trace-speed",
        "2",
        "--endpoints",
        "2",
        "--json",
        str(figures),
    ]
    result = CliRunner().invoke(
        simulate_command, [*asked, "--arm", "random"], catch_exceptions=False
    )
    (run,) = msgspec.json.decode(figures.read_bytes())["runs"]

    assert "random" in result.output
    assert run["cell"]["trace_xxh3"] == read_trace(str(path)).digest
    assert run["cell"]["workload"] == "trace"
    assert run["figures"]["asked_rps"] is None
