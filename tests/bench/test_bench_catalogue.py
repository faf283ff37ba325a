"""What makes runs a catalogue: stack and price, GPUs by a DCGM exporter, vLLM's results, the history."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp.web
import msgspec
import orjson
import pytest
from click.testing import CliRunner

from extproc.bench.commands import bench
from extproc.bench.experiments.gpus import GpuLog, watch_gpus
from extproc.bench.experiments.history import Entry, trace_lines
from extproc.bench.experiments.history_formats import history_html, history_markdown, list_regressions
from extproc.bench.experiments.run import run
from extproc.bench.load.journal import read_journal
from extproc.bench.measure import metrics
from extproc.bench.published.vllm_result import VllmResult, read_vllm_result, rebuild_run
from extproc.bench.record import GpuUse, RunResult
from extproc.bench.report.headline import headlines
from extproc.bench.report.outputs import write_reports
from extproc.bench.report.report import Report, ReportError, build
from extproc.bench.report.serve import serve_json
from extproc.bench.report.vllm import vllm_json
from extproc.bench.spec.serve import translate
from extproc.bench.spec.serve_arguments import parse_arguments
from extproc.bench.spec.tree import Slo, Spec
from tests.bench.synthetic import failed, record, result, steady
from tests.bench.test_bench_runner import Silence, answer, build_spec, serving

STACK = {"accelerator": "nvidia-l4", "count": 2, "engine": "vllm", "version": "0.32.0", "price-per-hour": 3.6}


def exposition(gpu: int, *, busy: float, watts: float, millijoules: float | None) -> str:
    """One GPU in the words of NVIDIA's exporter."""
    labels = f'gpu="{gpu}",UUID="GPU-{gpu}",device="nvidia{gpu}",modelName="NVIDIA L4",Hostname="node"'
    lines = [
        "# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).",
        "# TYPE DCGM_FI_DEV_GPU_UTIL gauge",
        f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {busy}",
        "# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).",
        "# TYPE DCGM_FI_DEV_POWER_USAGE gauge",
        f"DCGM_FI_DEV_POWER_USAGE{{{labels}}} {watts}",
    ]
    if millijoules is not None:
        lines += [
            "# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Total energy consumption since boot (in mJ).",
            "# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter",
            f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{labels}}} {millijoules}",
        ]
    return "\n".join([*lines, ""])


@asynccontextmanager
async def exporting(*texts: str) -> AsyncIterator[str]:
    """An exporter that says one text after the other, and the last one for ever."""
    said = list(texts)

    async def tell(request: aiohttp.web.Request) -> aiohttp.web.Response:
        del request
        return aiohttp.web.Response(text=said.pop(0) if len(said) > 1 else said[0])

    async with serving(metrics=tell) as port:
        yield f"127.0.0.1:{port}"


async def test_energy_is_the_counters_growth_and_utilisation_the_mean() -> None:
    before = exposition(0, busy=20, watts=50, millijoules=1_000_000)
    after = exposition(0, busy=80, watts=70, millijoules=1_450_000)
    async with exporting(before, after) as exporter, watch_gpus([exporter], every_s=60) as log:
        pass

    assert log.list_uses() == (
        GpuUse(exporter, "GPU-0", "NVIDIA L4", samples=2, utilisation=0.5, power_w=60, energy_j=450),
    )


async def test_exporter_is_asked_again_while_the_run_goes() -> None:
    asked, enough = 0, asyncio.Event()

    async def tell(request: aiohttp.web.Request) -> aiohttp.web.Response:
        nonlocal asked
        asked += 1
        if asked == 4:
            enough.set()
        return aiohttp.web.Response(text=exposition(0, busy=20, watts=50, millijoules=1))

    async with serving(metrics=tell) as port, watch_gpus([f"127.0.0.1:{port}"], every_s=0.01) as log:
        await enough.wait()

    assert log.list_uses()[0].samples >= 3


async def test_exporter_that_is_away_says_nothing() -> None:
    async with watch_gpus(["127.0.0.1:1"], every_s=60) as log:
        pass

    assert log.list_uses() == ()


def test_energy_without_a_counter_is_power_over_time() -> None:
    log = GpuLog()
    for at_s, watts in ((0.0, 100), (1.0, 100), (3.0, 200)):
        log.add("e", at_s, exposition(0, busy=1, watts=watts, millijoules=None))

    assert log.list_uses()[0].energy_j == pytest.approx(100 + 300)


def test_counter_that_began_anew_is_not_used() -> None:
    log = GpuLog()
    for at_s, millijoules in ((0.0, 5_000.0), (1.0, 1_000.0)):
        log.add("e", at_s, exposition(0, busy=1, watts=10, millijoules=millijoules))

    assert log.list_uses()[0].energy_j == pytest.approx(10)


def test_what_is_no_exposition_says_nothing() -> None:
    log = GpuLog()
    log.add("e", 0.0, "{not an exposition")

    assert log.list_uses() == ()


async def test_run_tells_joules_per_token_of_a_real_exporter(tmp_path: Path) -> None:
    before = exposition(0, busy=10, watts=60, millijoules=0) + exposition(1, busy=30, watts=60, millijoules=0)
    after = exposition(0, busy=10, watts=60, millijoules=4_400) + exposition(
        1, busy=30, watts=60, millijoules=0
    )
    async with serving(chat=answer) as port, exporting(before, after) as exporter:
        spec = build_spec(port, {"req-rate": 20, "total-prompts": 10}, dcgm=[exporter], stack=STACK)
        finished = await run(spec, progress=Silence(), journal=tmp_path / "run.jsonl")
    said = build(finished)

    assert said.spending.energy_j == pytest.approx(4.4)
    # The scripted server counts 7 tokens in and 4 out.
    assert said.spending.joules_per_tok == pytest.approx(4.4 / 110)
    assert said.spending.joules_per_output_tok == pytest.approx(4.4 / 40)
    assert said.spending.gpu_utilisation == pytest.approx(0.2)
    assert build(read_journal(tmp_path / "run.jsonl")).gpus == said.gpus


def priced(run: RunResult, **fields: Any) -> RunResult:
    tree = run.info.spec.model_dump(by_alias=True, exclude_defaults=True)
    spec = Spec.model_validate({**tree, "stack": STACK, "labels": {"team": "blue"}, **fields})
    return replace(run, info=replace(run.info, spec=spec))


def test_tokens_per_dollar_are_throughput_over_price() -> None:
    """A tenth of a cent a second: 3.60 dollars an hour."""
    said = build(priced(steady(100)))

    assert said.spending.total_tok_per_dollar == pytest.approx(said.measured.throughput.total_tps * 1000)
    assert said.spending.dollars == pytest.approx(said.whole.window.end_s / 1000, rel=1e-3)
    assert headlines(said)["tok/$"] == f"{said.measured.throughput.total_tps * 1000:,.0f}"
    assert (said.labels, said.stack["accelerator"]) == ({"team": "blue"}, "nvidia-l4")


def test_without_price_and_exporter_nothing_is_said_of_either() -> None:
    shown = headlines(build(steady(10)))

    assert not {"tok/$", "J/tok", "GPUs busy"} & set(shown)


def test_report_names_stack_price_and_gpus(tmp_path: Path) -> None:
    used = GpuUse("node:9400", "GPU-7", "NVIDIA L4", 3, 0.5, 60, 450)
    made = priced(steady(10))
    made = replace(made, info=replace(made.info, gpus=(used,)))
    write_reports(made, build(made), tmp_path, {})
    page, prom = (tmp_path / "report.html").read_text(), (tmp_path / "metrics.prom").read_text()

    for part in ("nvidia-l4", "0.32.0", "blue", "GPU-7", "50.0 %", "450.0"):
        assert part in page
    assert "extproc_bench_joules_per_token" in prom


def test_result_of_our_own_comes_back_with_the_same_figures(tmp_path: Path) -> None:
    """Written in vLLM's format and read back: times, gaps, counts and failures are the same."""
    ours = result([record(0, 0.0), record(1, 0.5), failed(2, 1.0)], duration_s=3.0)
    path = tmp_path / "vllm.json"
    path.write_text(vllm_json(ours, metrics.measure(ours.records, metrics.whole_run(ours), Slo())))

    theirs = rebuild_run(read_vllm_result(path), "x")
    a, b = build(ours).whole, build(theirs).whole

    for name in ("ttft_sent", "tpot", "itl"):
        assert b.latency_ms[name].mean == pytest.approx(a.latency_ms[name].mean)
    assert (b.tokens.input, b.tokens.output, b.counts.completed, b.counts.failed) == (200, 22, 2, 1)
    assert b.throughput.requests_rps == pytest.approx(a.throughput.requests_rps)


def test_result_of_vllm_is_measured_as_vllm_measured_it(tmp_path: Path) -> None:
    """A file with vLLM's absolute times, queues and its zeros for a failed request."""
    said = {
        "date": "20261122-101112",
        "backend": "openai",
        "label": None,
        "model_id": "m",
        "num_prompts": 2,
        "request_rate": "inf",
        "max_concurrency": 1,
        "duration": 2.5,
        "completed": 1,
        "failed": 1,
        "start_times": [5000.0, 5001.0],
        "queue_times": [0.0, 1.0],
        "ttfts": [0.25, 0.0],
        "itls": [[0.5, 0.25], []],
        "latencies": [1.0, 0.0],
        "input_lens": [7, 9],
        "output_lens": [3, 0],
        "errors": ["", "Traceback\nValueError: no"],
    }
    path = tmp_path / "r.json"
    path.write_bytes(orjson.dumps(said))
    first, second = rebuild_run(read_vllm_result(path), "r").records

    assert (first.sent_s, first.first_token_s, first.chunk_s, first.end_s) == (
        0.0,
        0.25,
        [0.25, 0.75, 1.0],
        1.0,
    )
    assert (second.intended_s, second.sent_s, second.failure_detail) == (0.0, 1.0, "ValueError: no")
    done = CliRunner().invoke(bench, ["import", str(path), "--output", str(tmp_path / "all")])
    assert done.exit_code == 0, done.output
    assert "invalid: requests failed" in done.stdout
    assert (tmp_path / "all/report.html").exists()


def test_result_without_requests_is_refused_by_import() -> None:
    said = VllmResult("20261122-101112", "openai", "m", 1, "inf", 1.0, 1)

    with pytest.raises(ReportError, match="--save-detailed"):
        rebuild_run(said, "x")


def entry(number: int, *, at: str = "", is_valid: bool = True, kind: str = "k", **figures: float) -> Entry:
    told = {"req_per_s": 10.0, "ttft_median_ms": 100.0, **figures}
    return Entry(
        f"{number}", kind, "n", "m", at or f"2026-11-{number:02}", is_valid, "valid", "", {}, {}, dict(told)
    )


def regressions(*entries: Entry) -> list[str]:
    (line,) = trace_lines(entries, tolerance=0.05, runs=5)
    return [drift.figure for drift in line.regressions]


def test_last_run_is_held_against_the_median_of_those_before() -> None:
    steady_runs = [entry(i) for i in range(1, 5)]

    assert regressions(*steady_runs, entry(5, req_per_s=9.4)) == ["req_per_s"]
    assert regressions(*steady_runs, entry(5, req_per_s=9.6)) == []
    assert regressions(*steady_runs, entry(5, ttft_median_ms=106.0)) == ["ttft_median_ms"]
    assert regressions(*steady_runs, entry(5, ttft_median_ms=50.0, req_per_s=20.0)) == []


def test_noise_of_earlier_runs_widens_what_is_allowed() -> None:
    """Median deviation 10 of 100: three robust deviations are 44."""
    noisy = [entry(i + 1, ttft_median_ms=value) for i, value in enumerate((80.0, 90.0, 100.0, 110.0, 120.0))]

    assert regressions(*noisy, entry(6, ttft_median_ms=140.0)) == []
    assert regressions(*noisy, entry(6, ttft_median_ms=150.0)) == ["ttft_median_ms"]


def test_only_valid_runs_of_the_kind_count_and_only_the_last_few() -> None:
    old = [entry(i, req_per_s=100.0) for i in range(1, 4)]
    recent = [entry(i) for i in range(4, 9)]

    assert regressions(*old, *recent, entry(9, req_per_s=1.0, is_valid=False)) == []
    assert regressions(*old, *recent, entry(9)) == []
    assert len(trace_lines([entry(1), entry(2, kind="other", req_per_s=1.0)], tolerance=0.05, runs=5)) == 2


def test_order_is_that_of_time_not_of_files() -> None:
    assert regressions(entry(9, at="2026-11-09", req_per_s=1.0), entry(1, at="2026-11-01")) == ["req_per_s"]


def save(folder: Path, run: RunResult, day: int) -> Report:
    at = run.info.started_at.replace(day=day)
    run = replace(run, info=replace(run.info, started_at=at))
    said = build(run)
    write_reports(run, said, folder / f"day-{day}", {})
    return said


def test_history_finds_a_new_version_that_is_slower(tmp_path: Path) -> None:
    """Three nights of one version, then one of the next that answers half a second later."""
    for day in (1, 2, 3):
        save(tmp_path, priced(steady(200)), day)
    slower = priced(
        steady(200, first_token_s=None, chunk_s=[]),
        stack={**STACK, "version": "0.33.0", "price-per-hour": 3.6},
    )
    late = [
        record(i, i / 10, first_token_s=i / 10 + 1.0, chunk_s=[i / 10 + 1.0 + s / 10 for s in range(11)])
        for i in range(200)
    ]
    save(tmp_path, replace(slower, records=tuple(late)), 4)

    done = CliRunner().invoke(bench, ["history", str(tmp_path), "--output", str(tmp_path / "out")])

    assert done.exit_code == 4
    assert "TTFT median" in done.stdout
    assert "WORSE" in done.stdout
    page = (tmp_path / "out/history.html").read_text()
    assert "0.33.0" in page
    assert page.count("<svg") >= 3


def test_history_of_equal_runs_is_good_and_reads_vllms_results_too(tmp_path: Path) -> None:
    ours = steady(200)
    whole = metrics.measure(ours.records, metrics.whole_run(ours), Slo())
    telling = translate(parse_arguments(["--label", "nightly"]), {}).telling
    for day in (1, 2):
        save(tmp_path, ours, day)
        (tmp_path / f"v{day}.json").write_text(serve_json(ours, whole, telling))

    done = CliRunner().invoke(bench, ["history", str(tmp_path)])

    assert done.exit_code == 0, done.output
    assert "nightly" in done.stdout
    assert "benchmark, llama" in done.stdout


def test_history_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    done = CliRunner().invoke(bench, ["history", str(tmp_path)])

    assert isinstance(done.exception, ReportError)


def test_invalid_and_lonely_runs_are_named() -> None:
    history = trace_lines([entry(1), entry(2, is_valid=False)], tolerance=0.05, runs=5)

    assert list_regressions(history) == []
    assert "1 of 2 runs are not valid" in history_html(history, tolerance=0.05, runs=5)
    assert "up to 5 valid ones" in history_markdown(history, tolerance=0.05, runs=5)


def test_report_is_read_back_with_stack_and_gpus() -> None:
    said = build(priced(steady(10)))

    assert msgspec.json.decode(msgspec.json.encode(said), type=Report) == said
