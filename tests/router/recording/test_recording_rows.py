"""A trace's rows: the published form, no text, and a replay that finds what the run found."""

from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.json import decode

from extproc.router.recording.trace_rows import BLOCK_BYTES, name_blocks
from extproc.router.routing.picker import Query
from extproc.router.routing.pool import Pick
from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.prefix_cache.engine import ENGINES
from extproc.simulator.fleet.cell import MatrixCell
from extproc.simulator.fleet.fleet import FleetRun
from extproc.simulator.fleet.session import write_body
from extproc.simulator.fleet.summary import summarize
from tests.router.recording.traced import Rows, record_pool
from tests.router.routing.fleet import Fleet, words


def test_row_has_the_published_fields_and_no_text() -> None:
    fleet, rows = Fleet(), Rows()
    record_pool(fleet, rows)
    fleet.clock.now_s = 2.5
    pick = fleet.pick(words("SECRET", 3_000), system="SECRET")
    fleet.clock.now_s = 4.5
    pick.release()
    [[written]] = rows.files
    [row] = rows.read()

    published = {"timestamp", "input_length", "output_length", "hash_ids"}
    assert set(decode(written)) == {*published, "block_size"}
    assert (row.timestamp, row.input_length // 10, len(row.hash_ids)) == (2_500, 300, 188)
    assert 20 < row.output_length < 400
    assert b"SECRET" not in written


def test_answer_is_as_long_as_its_endpoint_says_of_all() -> None:
    fleet, rows = Fleet("a"), Rows()
    said = EndpointSignals(first_tokens=10, first_token_s=5, answer_s=25, answer_tokens=800)
    record_pool(fleet, rows, signals={"a": said})
    pick = fleet.pick("hello")
    fleet.clock.now_s += 3.0
    pick.release()

    assert rows.read()[0].output_length == 100  # 40 a second, after half a second


def test_client_limit_bounds_the_answer() -> None:
    fleet, rows = Fleet(), Rows()
    record_pool(fleet, rows)
    body = b'{"prompt": "hello", "max_tokens": 7}'
    pick = fleet.picker.pick(Query("POST", "/v1/completions", {}, body)).pick
    fleet.clock.now_s += 60
    pick.release()

    assert rows.read()[0].output_length == 7


def test_conversations_are_chosen_with_all_their_turns() -> None:
    fleet, rows = Fleet(), Rows()
    record_pool(fleet, rows, share=0.3)
    for number in range(200):
        texts = [f"chat {number}", "yes", "go on"]
        for turn in (1, 3):
            fleet.visit(*texts[:turn], system="the same")
    first = [row.hash_ids for row in rows.read()]

    assert 30 <= len(first) / 2 <= 90
    assert len(first) % 2 == 0


def test_each_file_has_a_key_of_its_own() -> None:
    fleet, rows = Fleet(), Rows()
    record_pool(fleet, rows, limit_bytes=50)
    for _ in range(3):
        fleet.visit("the same")

    assert [len(file) for file in rows.files] == [1, 1, 1, 0]
    assert len({row.hash_ids[0] for row in rows.read()}) == 3


@given(
    st.binary(max_size=9_000), st.integers(0, 9_000), st.lists(st.integers(1, 9_000), max_size=3)
)
def test_names_do_not_depend_on_how_a_prompt_is_cut(
    text: bytes, common: int, cuts: Sequence[int]
) -> None:
    edges = [0, *sorted(cuts), len(text)]
    pieces = [text[one:two] for one, two in pairwise(edges)]
    size, names = name_blocks(pieces, b"key")
    other = name_blocks([text[:common], b"another end"], b"key")[1]
    shared = min(common, size) // BLOCK_BYTES

    assert (size, names) == name_blocks([text], b"key")
    assert len(names) == -(-size // BLOCK_BYTES)
    assert names[:shared] == other[:shared]


def _engine_says(went: FleetRun) -> EndpointSignals:
    flights = went.flights
    return EndpointSignals(
        first_tokens=len(flights),
        first_token_s=sum(one.ttft_s for one in flights),
        answer_s=sum(one.e2e_s for one in flights),
        answer_tokens=sum(one.plan.output_tokens for one in flights),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "seeds"),
    [("tenants", 7), ("fewshot", 1), ("sessions", 1), ("k6-chat", 1), ("small", 1), ("mtool", 1)],
)
def test_recorded_run_replayed_has_its_hit_rate(workload: str, seeds: int, tmp_path: Path) -> None:
    """To about a point. What is left: some turns are taken for new chats, and prompts have other tokens.

    Of tenants the mean of several runs: where copies are made decides a run by three points, either way.
    """
    runs = [_hit_rates(workload, seed, tmp_path / f"{seed}.jsonl") for seed in range(seeds)]

    recorded, replayed = map(fmean, zip(*runs, strict=True))
    assert replayed == pytest.approx(recorded, abs=0.013)


def _hit_rates(workload: str, seed: int, path: Path) -> tuple[float, float]:
    """A run's, and of what was recorded of it."""
    fleet, rows, picks = Fleet(), Rows(), dict[int, Pick]()
    cell: dict[str, Any] = {"arm": "prefix_cache", "endpoints": 4, "seed": seed}
    went = MatrixCell(**cell, workload=workload, load=0.5, requests=500).simulate()
    record_pool(fleet, rows, signals=dict.fromkeys("abcd", _engine_says(went)))
    starts = [(one.sent_at, number, one.plan) for number, one in enumerate(went.flights)]
    ends = [(one.ended_at, number, None) for number, one in enumerate(went.flights)]
    for at_s, number, plan in sorted([*starts, *ends], key=itemgetter(0)):
        fleet.clock.now_s = at_s
        if plan is None:
            picks[number].release()
        else:
            query = Query("POST", plan.path, {}, write_body(plan))
            picks[number] = fleet.picker.pick(query).pick
    path.write_bytes(b"".join(rows.files[0]))
    engine = went.setup.profiles[0].name
    cell["arm"] += f":engine={engine}" * (engine in ENGINES)
    replayed = MatrixCell(**cell, trace=str(path), profiles=(engine,)).run()

    assert replayed.requests == 500
    return summarize(went, is_whole=True).hit_rate, replayed.hit_rate
