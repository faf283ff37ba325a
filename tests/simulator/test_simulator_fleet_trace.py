"""Replay of traces: at their own times, with what they have in common, and as text that a router can read."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner

from extproc.errors import SettingsError
from extproc.simulator.commands import simulate as simulate_command
from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.fleet import simulate_fleet
from extproc.simulator.fleet.session import write_body
from extproc.simulator.fleet.trace import Trace, read_trace
from tests.simulator.traces import write_trace
from tests.tables import table


def trace_of(folder: Path, *requests: tuple[int, int, list[int]]) -> Trace:
    """A trace of (timestamp, tokens, blocks)."""
    path = folder / "trace.jsonl"
    rows = [
        {"timestamp": at, "input_length": tokens, "output_length": 7, "hash_ids": blocks}
        for at, tokens, blocks in requests
    ]
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    read_trace.cache_clear()
    return read_trace(str(path))


def text_of(trace: Trace, place: int) -> str:
    (message,) = orjson.loads(write_body(trace.sessions[place].turns[0]))["messages"]
    assert message["role"] == "user"
    text: str = message["content"]
    return text


def replay(path: Path, arm: str = "least_load", **asked: object) -> MatrixCell:
    read_trace.cache_clear()
    return replace(MatrixCell(arm=arm, endpoints=2, trace=str(path)), **asked)  # type: ignore[arg-type]  # its fields


def test_equal_blocks_behind_equal_blocks_are_equal_text_and_others_are_not(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, (0, 1300, [1, 2, 3]), (5, 1100, [1, 2, 4]), (9, 1100, [5, 2, 6]))
    one, other, stranger = (text_of(trace, place) for place in range(3))
    chars = len(one) / 1300
    common = next(place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1])

    assert common == pytest.approx(1024 * chars, abs=20)
    assert len(other) / 1100 == pytest.approx(chars, rel=0.01)
    assert 3.2 <= chars <= 4.8
    assert stranger[:20] != one[:20]


def test_cache_finds_what_has_the_same_blocks_before_it(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, (0, 1300, [1, 2, 3]), (60_000, 1300, [1, 2, 4]), (120_000, 1300, [4, 2, 3]))
    run = simulate_fleet(replay(tmp_path / "trace.jsonl").plan(), trace.sessions)
    alone = simulate_fleet(replay(tmp_path / "trace.jsonl", endpoints=1).plan(), trace.sessions)

    assert [flight.cached_tokens for flight in alone.flights] == [0, 1024, 0]
    assert [flight.due_at for flight in run.flights] == [0, 60, 120]


def test_trace_is_replayed_at_its_own_times_or_faster(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "made.jsonl")
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
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
    first, window = replay(path, requests=10).run(), replay(path, warmup_s=10.0, measured_s=20.0).run()

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
        ("\n{\n", ":2: JSONDecodeError"),
        ('\n{"timestamp": 1}\n', ":2: KeyError"),
        ('{"timestamp": 1, "input_length": "a", "output_length": 1, "hash_ids": []}', "integers"),
        ('{"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1, 2]}', "2 blocks of 512"),
        ('\n{"timestamp": "x", "input_length": 5, "output_length": 1, "hash_ids": [1]}', ":2: ValueError"),
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
    asked = ["fleet", "--trace", str(path), "--trace-speed", "2", "--endpoints", "2", "--json", str(figures)]
    result = CliRunner().invoke(simulate_command, [*asked, "--arm", "random"], catch_exceptions=False)
    (run,) = orjson.loads(figures.read_bytes())["runs"]

    assert "random" in result.output
    assert run["cell"]["trace_xxh3"] == read_trace(str(path)).digest
    assert run["cell"]["workload"] == "trace"
    assert run["figures"]["asked_rps"] is None
