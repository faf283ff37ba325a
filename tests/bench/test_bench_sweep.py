import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from extproc.bench.experiments import sweep as sweeping
from extproc.bench.experiments import sweep_table
from extproc.bench.experiments.ab import run_tasks
from extproc.bench.experiments.sweep import SweepTask, list_tasks
from extproc.bench.experiments.sweep_rows import SweepRow, build_row
from extproc.bench.judge.verdict import (
    CLIENT_LIMITED,
    FAILED,
    PARTIAL,
    FaultReason,
    VerdictInputs,
    build_verdict,
)
from extproc.bench.measure.stats import ratio_interval
from extproc.bench.report import report
from extproc.bench.spec.tree import Load, Spec
from extproc.errors import SettingsError
from tests.bench.running import call
from tests.bench.synthetic import ScriptedRuns, record, result, spec
from tests.tables import table

ARMS = ["round_robin", "prefix_hash"]


def sweep_spec(ab: Mapping[str, object] | None = None, **fields: object) -> Spec:
    asked = {"concurrency": [100, {"concurrency": 800, "req-rate": "80 qps"}], **fields}
    return Spec.model_validate(
        {**spec().model_dump(), "ab": {"arms": ARMS, "repeats": 2, **(ab or {})}, "sweep": asked}
    )


def sweep_row(
    strategy: str, cap: int = 100, *faults: str, repeat: int = 1, **figures: float
) -> SweepRow:
    usual = {"req_per_s": 100, "in_flight": 50}
    verdict = build_verdict([FaultReason(kind, "") for kind in faults], (), VerdictInputs())
    return SweepRow(strategy, Load(concurrency=cap), {**usual, **figures}, verdict, repeat=repeat)


def spot(sweep: sweep_table.SweepTable, strategy: str) -> sweep_table.Spot:
    return sweep.parts[0].of(strategy)[-1]


def test_sweep_goes_through_all_loads_and_arms_before_the_next_repeat() -> None:
    tasks = list_tasks(sweep_spec())

    assert [
        (task.load.concurrency, task.arm.name, task.repeat, task.spec.seed) for task in tasks
    ] == [
        (100, "round_robin", 0, 0),
        (100, "prefix_hash", 0, 0),
        (800, "round_robin", 0, 0),
        (800, "prefix_hash", 0, 0),
        (100, "prefix_hash", 1, 1),
        (100, "round_robin", 1, 1),
        (800, "prefix_hash", 1, 1),
        (800, "round_robin", 1, 1),
    ]


def test_load_sets_the_cap_and_its_rate_and_is_so_many_users_without_one() -> None:
    low, high = (task.spec.traffic for task in list_tasks(sweep_spec())[1:3])
    shape = {"dataset": "random", "total-prompts": 100}
    tree = {
        "endpoint": "127.0.0.1:1",
        "performance": {"traffic-shape": shape},
        "sweep": {"concurrency": [50]},
    }
    closed = list_tasks(Spec.model_validate(tree))[0].spec.traffic

    assert (low.max_concurrency, low.req_rate, low.vus) == (100, 10, None)
    assert (high.max_concurrency, high.req_rate, high.vus) == (800, 80, None)
    assert (closed.vus, closed.max_concurrency, closed.is_closed) == (50, None, True)


def test_dataset_is_laid_over_the_traffic_shape_and_named() -> None:
    datasets = {"chats": {"preset": "kubeai-8xl4"}, "alone": {"dataset": "random", "think-time": 2}}
    tasks = list_tasks(sweep_spec(datasets=datasets, concurrency=[100]))
    shapes = {task.dataset: task.spec.traffic for task in tasks}

    assert shapes["chats"].dataset.max_prompts == 800
    assert (shapes["chats"].req_rate, shapes["chats"].total_prompts) == (10, 8000)
    assert (shapes["alone"].dataset.name, shapes["alone"].total_prompts) == ("random", 100)
    assert {task.folder for task in tasks} >= {"chats-100-round_robin-1", "alone-100-prefix_hash-2"}


@table(
    ("fields", "processes", "fault"),
    [
        ({"concurrency": []}, 1, "give the numbers of requests in flight"),
        ({"datasets": {"mine": {"req_rat": 3}}}, 1, "mine: "),
        ({"datasets": {"mine": {"preset": "none"}}}, 1, "no preset 'none'"),
        (
            {"datasets": {"mine": {"dataset": "randon"}}},
            1,
            "mine: .*no dataset 'randon'; did you mean random",
        ),
        ({"concurrency": [1]}, 2, "2 processes cannot share a concurrency of 1"),
    ],
)
def test_sweep_that_makes_no_sense_is_refused(
    fields: dict[str, object], processes: int, fault: str
) -> None:
    with pytest.raises(SettingsError, match=fault):
        list_tasks(sweep_spec(None, **fields).model_copy(update={"processes": processes}))


def keep_in(folder: Path, task: SweepTask, said: report.Report) -> None:
    sweeping.append_measured(
        folder / sweeping.CELLS, sweeping.MeasuredRun(task.digest, task.title, said)
    )


async def do_sweep(tasks: Sequence[SweepTask], folder: Path, world: ScriptedRuns) -> list[str]:
    """Does what is missing as the command does it; returns the titles of what was run."""
    async for task, _, said in run_tasks(sweeping.find_missing(tasks, folder), world.run, world):
        keep_in(folder, task, said)
    return world.titles


async def test_sweep_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    tasks = list_tasks(sweep_spec())
    first = await do_sweep(tasks, tmp_path, ScriptedRuns(stop_before=4))
    faults = [*sweeping.find_sweep_faults(tasks, tmp_path)]
    second = await do_sweep(tasks, tmp_path, ScriptedRuns())

    assert faults == ["partial: 5 of 8 runs are missing; the same command goes on"]
    assert [*first, *second] == [task.title for task in tasks]
    assert [*sweeping.find_sweep_faults(tasks, tmp_path)] == []
    assert await do_sweep(tasks, tmp_path, ScriptedRuns()) == []


async def test_run_that_is_broken_off_is_not_kept(tmp_path: Path) -> None:
    world, spec = ScriptedRuns(broken_off=1), sweep_spec({"command": ["true"], "flush": []})
    await sweeping.run_sweep(
        spec, list_tasks(spec), world.run, tmp_path, lambda *_: pytest.fail("was kept")
    )

    assert len(world.titles) == 1
    assert sweeping.read_measured(tmp_path) == {}


async def test_more_repeats_arms_and_loads_add_to_what_is_there_other_prompts_do_not(
    tmp_path: Path,
) -> None:
    await do_sweep(list_tasks(sweep_spec()), tmp_path, ScriptedRuns())
    wider = sweep_spec({"repeats": 3, "arms": [*ARMS, "random"]}, concurrency=[100, 200])
    added = await do_sweep(list_tasks(wider), tmp_path, ScriptedRuns())
    others = list_tasks(sweep_spec().model_copy(update={"seed": 7}))

    # What was done before at 100 in flight, two arms twice, is not done again.
    assert len(added) == 18 - 4
    assert "100 in flight, round_robin, repeat 1" not in added
    assert len(await do_sweep(others, tmp_path, ScriptedRuns())) == 8


async def test_line_that_was_cut_off_is_done_again_and_swallows_nothing(tmp_path: Path) -> None:
    tasks = list_tasks(sweep_spec())
    await do_sweep(tasks, tmp_path, ScriptedRuns(stop_before=3))
    path = tmp_path / sweeping.CELLS
    path.write_bytes(path.read_bytes()[:-30])

    assert len(await do_sweep(tasks, tmp_path, ScriptedRuns())) == 7
    assert len(sweeping.read_measured(tmp_path)) == 8


async def test_runs_that_are_not_valid_are_done_again_on_request(tmp_path: Path) -> None:
    tasks, world = list_tasks(sweep_spec()), ScriptedRuns()
    async for task, made, said in run_tasks(tasks, world.run, world):
        empty = report.build(replace(made, records=()))
        keep_in(tmp_path, task, empty if task is tasks[0] else said)

    assert sweeping.find_missing(tasks, tmp_path) == []
    assert sweeping.find_missing(tasks, tmp_path, again=True) == [tasks[0]]


async def test_arms_with_different_schedules_are_told(tmp_path: Path) -> None:
    tasks, world = list_tasks(sweep_spec({"repeats": 1}, concurrency=[100])), ScriptedRuns()
    async for task, _, said in run_tasks(tasks, world.run, world):
        keep_in(tmp_path, task, replace(said, schedule=task.arm.name))

    assert [*sweeping.find_sweep_faults(tasks, tmp_path)] == [
        "100 in flight, repeat 1: the arms' schedules differ"
    ]


def test_ratio_is_the_geometric_mean_of_pairs() -> None:
    """Logarithms to base 2 are 1, 2 and 3: mean 2, deviation 1; t at two degrees 4.303: 2 +- 2.484."""
    ratio = ratio_interval([(2, 1), (4, 1), (8, 1)], 0.95)

    assert ratio
    assert ratio.mean == pytest.approx(4)
    assert ratio.count == 3
    assert math.log2(ratio.high or 0) == pytest.approx(4.484, abs=0.001)
    assert ratio_interval([(0, 1), (1, 0)], 0.95) is None


def test_ratios_are_paired_by_repeat() -> None:
    """Repeats differ a hundredfold, pairs do not: the interval is a point."""
    rows = [
        sweep_row(strategy, repeat=repeat, total_tok_per_s=tokens * 100**repeat)
        for repeat in (1, 2, 3)
        for strategy, tokens in (("round_robin", 10), ("prefix_hash", 15))
    ]
    ratio = spot(sweep_table.gather("x", rows), "prefix_hash").ratios["total_tok_per_s"]

    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))
    assert ratio.excludes(1.0)


def test_client_limited_strategy_has_a_lower_bound_for_throughput_and_no_latency() -> None:
    usual = sweep_row("round_robin", total_tok_per_s=100, ttft_mean_ms=400)
    limited = sweep_row("prefix_hash", 100, CLIENT_LIMITED, total_tok_per_s=145, ttft_mean_ms=2)
    broken = sweep_row("prefix_hash", 100, FAILED, total_tok_per_s=145)
    sweep = sweep_table.gather("x", [usual, limited])
    (line,) = sweep_table.sweep_headlines(sweep)

    assert spot(sweep, "prefix_hash").is_bound
    assert "tok/s at least +45%" in line
    assert "TTFT" not in line
    assert "its client was the limit" in line
    assert sweep.faults == ("prefix_hash, 100 in flight at most: invalid: client-limited",)
    assert sweep.is_client_limited_only
    for worse in (broken, sweep_row("prefix_hash", 100, CLIENT_LIMITED, PARTIAL)):
        named = replace(worse, dataset="invalid: client-limited")
        assert not sweep_table.gather("x", [usual, limited, named]).is_client_limited_only
    assert not sweep_table.gather(
        "x", [limited], faults=["a run is missing"]
    ).is_client_limited_only
    assert 'class="dot' not in sweep_table.sweep_html(sweep)  # one load is drawn as bars
    assert "no ratio" in sweep_table.sweep_headlines(sweep_table.gather("x", [usual, broken]))[0]


def test_headline_is_of_the_highest_load_that_compares() -> None:
    rows = [
        sweep_row("round_robin", 100, ttft_mean_ms=400),
        sweep_row("prefix_hash", 100, ttft_mean_ms=200),
        sweep_row("round_robin", 800, ttft_mean_ms=4000),
        sweep_row("prefix_hash", 800, ttft_mean_ms=1000),
        sweep_row("round_robin", 1600, PARTIAL, ttft_mean_ms=8000),
        sweep_row("prefix_hash", 1600, ttft_mean_ms=1000),
    ]
    sweep = sweep_table.gather("x", rows)

    assert sweep_table.sweep_headlines(sweep) == [
        "prefix_hash against round_robin, 800 in flight at most: TTFT mean 4.00x lower."
    ]
    assert sweep_table.sweep_html(sweep).count('class="dot s0 hollow"') == 1
    assert sweep_table.sweep_html(sweep).count('class="dot s1"') == 3


def test_single_runs_have_no_interval_and_unequal_rates_are_remarked() -> None:
    sweep = sweep_table.gather(
        "x", [sweep_row("a", total_tok_per_s=1), sweep_row("b", total_tok_per_s=2)]
    )
    uneven = sweep_table.gather("x", [sweep_row("a", req_per_s=50), sweep_row("b", req_per_s=100)])

    assert "too few for an interval" in sweep_table.how(sweep)
    assert "b |  2.00 |" in sweep_table.sweep_markdown(sweep)
    assert sweep.remarks == ()
    assert "2.00 times at 100 in flight at most" in uneven.remarks[0]
    with pytest.raises(SettingsError, match="none of the strategies a"):
        sweep_table.gather("x", [sweep_row("a")], baseline="b")
    with pytest.raises(SettingsError, match="there is no run"):
        sweep_table.gather("x", [])


def test_row_counts_latencies_from_the_sending() -> None:
    """Held at the cap for 2 s: a published table would not know."""
    records = [record(0, 0.0, sent_s=2.0, first_token_s=2.5, end_s=3.5, chunk_s=[2.5, 3.5])]
    built = build_row(report.build(result(records)), "", "a", 1, Load(concurrency=1))

    assert built.figures["ttft_mean_ms"] == pytest.approx(500)
    assert built.figures["time_per_token_mean_ms"] == pytest.approx(1500 / 11)
    assert built.load.req_rate is None


def sweep_file(folder: Path, port: int, **ab: object) -> Path:
    dataset = {"name": "random", "input_tokens": 8}
    command = ["sh", "-c", f"echo {{strategy}} >> {folder}/asked"]
    tree = {
        "endpoint": f"127.0.0.1:{port}",
        "target": {"model": "m"},
        "performance": {"traffic-shape": {"dataset": dataset, "total-prompts": 40, "vus": 1}},
        "limits": {"lag-p99": "10s", "loop-lag-p99": "10s", "cpu": 100, "latencies": 0},
        "ab": {
            "arms": ["random", "least_load"],
            "command": command,
            "flush": [],
            "repeats": 1,
            **ab,
        },
        "sweep": {"concurrency": [1, 4]},
    }
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


@pytest.mark.slow
def test_sweep_command_writes_a_page_and_does_only_what_is_missing(
    null_server: int, tmp_path: Path
) -> None:
    """1. Two arms at two loads. 2. The same again: nothing to do. 3. A second repeat: the other half."""
    out = tmp_path / "out"
    command = ("sweep", sweep_file(tmp_path, null_server), "--output", out, "--quiet")
    first = call(*command)
    asked = (tmp_path / "asked").read_text().split()
    again = call(*command)
    still = (tmp_path / "asked").read_text().split()
    sweep_file(tmp_path, null_server, repeats=2)
    third = call(*command)

    assert (first.exit_code, again.exit_code, third.exit_code) == (0, 0, 0), first.output
    assert asked == still == ["random", "least_load"] * 2
    assert len((tmp_path / "asked").read_text().split()) == 8
    assert "run 4 of 4, 100%: 4 in flight, least_load, repeat 1: valid" in first.stderr
    assert "least_load against random, 4 in flight at most" in third.stdout
    assert "Two runs of each: too few for an interval" in (out / "sweep.md").read_text()
    assert (out / "4-least_load-2" / "requests.csv").exists()
    assert len((out / "sweep.csv").read_text().splitlines()) == 1 + 8
