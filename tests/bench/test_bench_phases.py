"""A load that changes: its parts, and how the endpoints took it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from extproc.bench.experiments.watch import FleetWatch, add_up, read_gauges
from extproc.bench.load.journal import close_journal, open_journal, read_journal
from extproc.bench.measure.phases import find_missed, list_stretches, measure_elasticity
from extproc.bench.record import FleetSample, Record, RunResult
from extproc.bench.report import report
from extproc.bench.report.headline import summary_text
from extproc.bench.report.run_page import html_report
from extproc.bench.spec.traffic import TrafficShape
from extproc.bench.spec.tree import Slo, Spec, Watching
from tests.bench import synthetic
from tests.bench.synthetic import record, result
from tests.hosting import hosting
from tests.tables import table
from tests.waiting import until

LIMIT = Slo(ttft_ms=1000)


def shape(**traffic: Any) -> TrafficShape:
    return TrafficShape.model_validate({"req_rate": 10, "duration": 100, **traffic})


def parts(traffic: TrafficShape, end_s: float = 100) -> list[tuple[str, float, float]]:
    return [(part.name, part.start_s, part.end_s) for part in list_stretches(traffic, end_s)]


def slow_from(start_s: int, end_s: int, *, until_s: int = 100) -> list[Record]:
    """A request a second; those due within the span get their first token after 3 s, others after 0.5 s."""
    return [
        record(at_s, float(at_s), first_token_s=at_s + (3.0 if start_s <= at_s < end_s else 0.5))
        for at_s in range(until_s)
    ]


def ready(*counts: tuple[float, int]) -> list[FleetSample]:
    return [FleetSample(at_s, count, None, None, None) for at_s, count in counts]


@table(
    ("spike", "expected"),
    [
        ({"burst": 10, "after": 30}, [("before", 0, 30), ("spike", 30, 40), ("after", 40, 100)]),
        ({"burst": 10}, [("spike", 0, 10), ("after", 10, 100)]),
        ({"burst": 50, "after": 80}, [("before", 0, 80), ("spike", 80, 100)]),
        (
            {"burst": 20, "after": 20, "every": 60},
            [
                ("before", 0, 20),
                ("spike 1", 20, 40),
                ("after spike 1", 40, 80),
                ("spike 2", 80, 100),
            ],
        ),
        (None, []),
    ],
)
def test_spikes_part_a_run(
    spike: dict[str, float] | None, expected: list[tuple[str, float, float]]
) -> None:
    found = list_stretches(shape(traffic_spike=spike), 100)

    assert [(part.name, part.start_s, part.end_s) for part in found] == expected


def test_stages_part_a_run_and_more_users_are_a_rise() -> None:
    stages = [{"vus": 5, "duration": 30}, {"vus": 9, "duration": 20}, {"vus": 0, "duration": 10}]
    traffic = TrafficShape.model_validate({"stages": stages})
    found = list_stretches(traffic, 60)

    assert (traffic.duration, traffic.concurrency, traffic.is_closed) == (60, 9, True)
    assert [(part.name, part.start_s, part.end_s, part.is_rise) for part in found] == [
        ("1: 5 users", 0, 30, False),
        ("2: 9 users", 30, 50, True),
        ("3: 0 users", 50, 60, False),
    ]


def test_seconds_are_missed_in_which_too_few_requests_were_good() -> None:
    due = [record(i, i / 20, first_token_s=i / 20 + (3 if i == 0 else 0.1)) for i in range(20)]

    assert find_missed(slow_from(30, 45), LIMIT) == list(range(30, 45))
    assert find_missed(slow_from(0, 0), LIMIT) == []
    assert find_missed(slow_from(30, 45), Slo()) is None
    # One bad request of twenty is allowed, one of nineteen is not.
    assert find_missed(due, LIMIT) == []
    assert find_missed([due[0], *due[2:]], LIMIT) == [0]


def test_reaction_and_recovery_count_from_the_rise() -> None:
    """Spike at 30 s; limits missed from 31 to 44; two endpoints until 42 s, then three."""
    stretches = list_stretches(shape(traffic_spike={"burst": 10, "after": 30}), 100)
    samples = ready((0, 2), (30, 2), (42, 3), (80, 2))
    found = measure_elasticity(slow_from(31, 45), stretches, LIMIT, samples, 100.0)

    assert found
    assert (found.slo_seconds_missed, found.endpoint_seconds) == (
        14,
        30 * 2 + 12 * 2 + 38 * 3 + 20 * 2,
    )
    ((rise),) = found.responses
    assert (rise.reaction_s, rise.recovery_s) == (12.0, 15.0)


def test_rise_has_no_time_where_nothing_recovers_and_zero_where_nothing_was_missed() -> None:
    stretches = list_stretches(shape(traffic_spike={"burst": 10, "after": 30}), 100)
    never = measure_elasticity(slow_from(31, 100), stretches, LIMIT, ready((0, 2), (50, 2)), 100.0)
    at_once = measure_elasticity(slow_from(0, 0), stretches, LIMIT, [], 100.0)

    assert never
    assert (never.responses[0].reaction_s, never.responses[0].recovery_s) == (None, None)
    assert at_once
    assert (at_once.responses[0].recovery_s, at_once.endpoint_seconds) == (0.0, None)


def test_seconds_missed_before_the_next_spike_belong_to_their_own() -> None:
    stretches = list_stretches(shape(traffic_spike={"burst": 5, "after": 10, "every": 40}), 100)
    found = measure_elasticity([*slow_from(12, 20)], stretches, LIMIT, [], 100.0)

    assert found
    assert [(rise.name, rise.recovery_s) for rise in found.responses] == [
        ("spike 1", 10.0),
        ("spike 2", 0.0),
        ("spike 3", 0.0),
    ]


def spiked_run() -> RunResult:
    shape = {"req_rate": 1, "duration": 100, "traffic_spike": {"burst": 10, "after": 30}}
    tree = {
        "endpoint": "127.0.0.1:1",
        "performance": {"traffic_shape": shape, "slo": {"ttft_ms": 1000}},
    }
    made = result(slow_from(31, 45), duration_s=101.0, of=Spec.model_validate(tree))
    return replace(made, info=replace(made.info, fleet=tuple(ready((0, 2), (42, 3)))))


def test_report_has_phases_that_hold_every_request_once_and_every_format_tells_them() -> None:
    run = spiked_run()
    said = report.build(run)
    text, html = summary_text(said), html_report(run, said)

    assert [phase.name for phase in said.phases] == ["before", "spike", "after"]
    assert sum(phase.figures.counts.offered for phase in said.phases) == 100
    assert [phase.slo_seconds_missed for phase in said.phases] == [0, 9, 5]
    assert [phase.ready for phase in said.phases] == [2, None, 3]
    assert report.decode_report(report.encode_report(said)) == said
    assert "recovery, spike...............: 15.0 s" in text
    assert "| spike " in text
    assert "Endpoints ready" in html
    assert "SLO seconds missed" in html


def test_journal_keeps_what_was_seen_of_the_endpoints(tmp_path: Path) -> None:
    run, path = spiked_run(), tmp_path / "run.jsonl"
    open_journal(path, run.info)
    close_journal(path, run.info)

    assert read_journal(path).info.fleet == run.info.fleet


EXPOSITION = (Path(__file__).parent / "data" / "gauges.txt").read_text()


@table("model", ["a b", "tiny", "a } b"])
def test_gauges_of_an_exposition_are_added_up_over_engines(model: str) -> None:
    gauges = read_gauges(EXPOSITION.replace("a b", model))

    assert gauges[:2] == (7.0, 5.0)
    assert gauges[2] == pytest.approx(0.6)
    assert read_gauges("vllm:gpu_cache_usage_perc 0.25\n")[2] == 0.25
    assert read_gauges("") == (None, None, None)


@given(st.text())
def test_any_text_is_read_as_gauges(text: str) -> None:
    gauges = read_gauges(f"{text}\nvllm:num_requests_running{{{text}")

    assert all(value is None or isinstance(value, float) for value in gauges)


def test_endpoints_that_say_nothing_are_left_out() -> None:
    sample = add_up(1.0, 3, [EXPOSITION, None, "vllm:num_requests_running 3"])

    assert (sample.ready, sample.running, sample.waiting) == (3, 10, 5)
    assert sample.kv_use == pytest.approx(0.6)


async def test_looks_are_put_on_the_runs_clock() -> None:
    """The last look before the start says what was there at 0."""
    watch = await watched_phases(Watching(every=0.1), (), 3)
    _, last, first, *_ = watch.samples(0.0)
    start_s = (last.at_s + first.at_s) / 2

    placed = [sample.at_s for sample in watch.samples(start_s)]
    assert 0 < first.at_s - start_s < 1e5
    assert placed[:2] == [0.0, first.at_s - start_s]
    assert len(placed) == len(watch.samples(0.0)) - 1


@pytest.fixture
async def world() -> AsyncIterator[tuple[str, dict[str, int]]]:
    """A router and an endpoint in one: `/pools` lists itself as often as set, and one that drains."""
    state = {"ready": 2}

    async def pools(_: web.Request) -> web.Response:
        endpoints = [{"address": address, "state": "ready"}] * state["ready"]
        drains = {"address": "127.0.0.1:1", "state": "draining"}
        return web.json_response(
            [{"name": "other", "endpoints": []}, {"name": "llm", "endpoints": [*endpoints, drains]}]
        )

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=EXPOSITION)

    async with hosting({"GET /pools": pools, "GET /metrics": metrics}) as address:
        yield address, state


async def watched_phases(
    watching: Watching, endpoints: Sequence[str], looks: int, change: Any = None
) -> FleetWatch:
    watch = FleetWatch(watching, endpoints)
    task = asyncio.create_task(watch.run())
    await until(lambda: watch.samples(0.0))
    if change:
        change()
    await until(lambda: len(watch.samples(0.0)) >= looks)
    task.cancel()
    await asyncio.wait([task])
    return watch


async def test_router_tells_who_is_ready_and_they_tell_the_rest(
    world: tuple[str, dict[str, int]],
) -> None:
    address, state = world
    # An answer may take as long as the next look: a busy machine must have the time.
    watching = Watching(every=0.5, admin=address, pool="llm")
    samples = (await watched_phases(watching, (), 3, lambda: state.update(ready=3))).samples(0.0)

    assert (samples[0].ready, samples[-1].ready) == (2, 3)
    assert (samples[0].running, samples[0].waiting) == (14, 10)


async def test_without_a_router_those_are_ready_that_answer(
    world: tuple[str, dict[str, int]],
) -> None:
    address, _ = world
    watch = await watched_phases(Watching(every=5), [address, "127.0.0.1:1"], 1)
    away = await watched_phases(Watching(every=5, admin="127.0.0.1:1"), (), 1)

    assert [(sample.ready, sample.running) for sample in watch.samples(0.0)[:1]] == [(1, 7)]
    assert away.samples(0.0)[0].ready == 0
    with pytest.raises(ValueError, match="give its admin"):
        Spec.model_validate({**synthetic.spec().model_dump(), "watch": {"every": 1}})
