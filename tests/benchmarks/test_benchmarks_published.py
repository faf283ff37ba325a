import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from extproc.bench.experiments import sweep_table
from extproc.bench.experiments.sweep_rows import build_row, write_rows
from extproc.bench.report.report import build
from extproc.bench.spec.tree import Load
from extproc.simulator.engine.profiles import find_profile
from extproc.simulator.fleet import seed_preset
from extproc.simulator.fleet.chats import Demand
from extproc.simulator.fleet.fleet import Setup, simulate_fleet
from extproc.simulator.fleet.gateway import Routing
from extproc.simulator.fleet.report import write_csv
from extproc.simulator.fleet.seed_preset import PublishedCell, list_rows
from extproc.simulator.fleet.summary import summarize
from extproc.simulator.fleet.traffic import Traffic
from extproc.simulator.fleet.workloads import draw_sessions
from tests.bench.synthetic import record, result
from tests.benchmarks.published import (
    CELLS_8XL4,
    DATA,
    PublishedError,
    draw_tables,
    judge_row,
    on_time_in_flight,
    read_published,
    read_table,
)
from tests.stack.browser import check_file, find_chromium
from tests.tables import table


def test_on_time_client_leaves_nothing_in_flight_below_capacity_and_drains_evenly_above() -> None:
    assert on_time_in_flight(rate=10, cap=100, count=1000, throughput=20) == 0.0
    assert on_time_in_flight(rate=1e9, cap=1e9, count=1000, throughput=10) == pytest.approx(
        500, rel=0.01
    )


@table(
    ("strategy", "in_flight", "verdict"),
    [
        ("prefix_hash", [513, 447, 439, 462], "invalid: client-limited"),
        ("round_robin", [716, 1282, 2141, 3245], "valid"),
    ],
)
def test_published_rows_are_judged_by_littles_law(
    strategy: str, in_flight: list[int], verdict: str
) -> None:
    """KubeAI's 8 x L4: its prefix-hash client had far fewer in flight than one on time would have had."""
    rows = [row for row in read_table(CELLS_8XL4) if row.strategy == strategy]
    verdicts = [judge_row(row) for row in rows]

    assert [row.load.concurrency for row in rows] == [800, 1600, 3200, 8000]
    assert [round(each.figures.in_flight or 0) for each in verdicts] == in_flight
    assert {str(each) for each in verdicts} == {verdict}


@table(
    ("text", "fault"),
    [
        ("strategy,requests\nround_robin,1\n", "lacks columns"),
        ("", "lacks columns"),
        (CELLS_8XL4.read_text().replace("8000.0", "many"), "no number"),
        (
            CELLS_8XL4.read_text().splitlines()[0] + "\n800,800,round_robin\n",
            "lacks duration_s, requests",
        ),
    ],
)
def test_table_without_its_columns_or_numbers_is_refused(text: str, fault: str) -> None:
    with pytest.raises(PublishedError, match=fault):
        read_published(text.splitlines())


def test_published_k6_runs_give_the_published_headlines() -> None:
    """`712.11ms (LeastLoad) --> 469.34ms (PrefixHash)`, 34 % less; on 8 x H100 405.39 --> 361.07 ms."""
    rows = read_table(DATA / "kubeai-k6.csv")
    parts = {part.dataset: part for part in sweep_table.gather("k6", rows).parts}
    small, large = (
        parts[name].of("prefix_hash")[0].ratios["time_per_token_mean_ms"]
        for name in ("2 x L4, 8B", "8 x H100, 70B, second run (warm caches)")
    )
    (alone,) = (one for one in rows if one.figures["endpoints"] == 1)

    assert small.mean == pytest.approx(469.34 / 712.11)
    assert large.mean == pytest.approx(361.07 / 405.39)
    # A cold first run and a warm second one are no repeats: there is no mean of both.
    assert {
        spot.figures["e2e_mean_ms"].count for part in parts.values() for spot in part.spots
    } == {1}
    # The single replica was cut off after ten and a half minutes.
    assert (alone.figures["duration_s"], alone.figures["unfinished"]) == (630, 249)
    assert alone.figures["in_flight"] == pytest.approx(314, abs=1)


def test_published_pairs_that_their_client_limited_have_a_bound_and_no_latency_ratio() -> None:
    pair = read_table(DATA / "kubeai-8xl4-laptop.csv")
    sweep = sweep_table.gather("seed", read_table(CELLS_8XL4))

    assert [(int(one.figures["requests"]), str(one.verdict)) for one in pair] == [
        (4000, "invalid: client-limited")
    ] * 2
    assert "tok/s at least +45%" in sweep_table.sweep_headlines(sweep)[-1]
    assert len(sweep.faults) == 5


def test_simulated_table_is_read_with_its_seeds_as_repeats() -> None:
    """The columns are agreed by name alone: the simulator knows nothing of the benchmark."""
    setup = Setup([find_profile("l4-llama8b-fp8")], 2, Routing("random"), Traffic(rate=5.0), seed=3)
    run = summarize(simulate_fleet(setup, draw_sessions("replay", Demand(40), 3)), is_whole=True)
    rows = list_rows([PublishedCell(seed_preset.read_published_cells()[0], False, run)])
    (one,) = read_published(write_csv(rows).splitlines())

    assert (one.repeat, one.dataset, str(one.verdict), int(one.figures["requests"])) == (
        3,
        "client on time",
        "valid",
        40,
    )
    assert one.figures["hit_rate"] == pytest.approx(run.hit_rate)
    assert one.figures["e2e_mean_ms"] == pytest.approx(run.e2e.mean_ms)


def test_csv_of_a_sweep_gives_the_same_sweep_back() -> None:
    run = result([record(index, index / 10) for index in range(100)], duration_s=11.4)
    load = Load(concurrency=100, req_rate=10)
    rows = [build_row(build(run), "chats", arm, 1, load) for arm in ("least_load", "random")]
    again = read_published(write_rows(rows).splitlines())

    assert [(one.strategy, one.dataset, one.repeat, str(one.verdict)) for one in again] == [
        (arm, "chats", 1, "valid") for arm in ("least_load", "random")
    ]
    assert again[0].figures == pytest.approx(rows[0].figures, rel=1e-6)
    assert sweep_table.sweep_markdown(sweep_table.gather("x", again)) == sweep_table.sweep_markdown(
        sweep_table.gather("x", rows)
    )


def test_published_tables_are_drawn_and_many_datasets_fold_their_figures(tmp_path: Path) -> None:
    pages = draw_tables(tmp_path)
    parts = re.split(r"<details|</details>", (tmp_path / "kubeai-k6.html").read_text())

    assert [page.name for page in pages] == [
        f"{name}.html" for name in ("kubeai-8xl4", "kubeai-8xl4-laptop", "kubeai-k6")
    ]
    # Ratios; the datasets' figures.
    assert ["".join(parts[fold::2]).count("<table") for fold in (0, 1)] == [2, 4]


@pytest.mark.skipif(find_chromium() is None, reason="chromium is not installed")
async def test_command_draws_a_published_table_that_a_browser_opens(tmp_path: Path) -> None:
    path = tmp_path / "new" / "seed.html"
    command = ("-m", "tests.benchmarks.published", str(CELLS_8XL4), "--output", str(path))
    drawn = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, *command, "--baseline", "least_load"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert "prefix_hash against least_load" in drawn.stdout
    await check_file(path, tmp_path, "Mean time to first token by concurrency")
