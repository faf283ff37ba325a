"""Benchmarks as metrics."""

from extproc.operator.web import PHASES
from tests.operator.statuses import body_of, everything, scrape, searching


async def test_metrics_say_what_the_statuses_say() -> None:
    samples = await scrape(everything())
    slower = "default", "slower"

    assert samples["extproc_benchmark_info", *slower, "run", "llama"] == 1
    assert samples["extproc_benchmark_figure", *slower, "req_per_s"] == 5
    assert samples["extproc_benchmark_figure", *slower, "ttft_p95_ms"] == 1000
    assert samples["extproc_benchmark_runs", *slower, "Valid"] == 4
    assert samples["extproc_benchmark_regressions", *slower] == 2
    assert samples["extproc_benchmark_last_run_finished_timestamp_seconds", *slower] == 1795363200
    assert samples["extproc_benchmark_next_run_timestamp_seconds", *slower] == 1795366800
    assert samples["extproc_benchmark_runs", "other", "cut-short", "Invalid"] == 1
    assert samples["extproc_benchmark_progress_ratio", "other", "chat"] == 0.45
    phases = {key[1:]: value for key, value in samples.items() if key[0] == "extproc_benchmark_phase"}
    assert len(phases) == 7 * len(PHASES)
    assert sorted(key for key, value in phases.items() if value) == [
        ("default", "chat", "Valid"),
        ("default", "hostile", "Valid"),
        ("default", "refused", "Refused"),
        ("default", "slower", "Valid"),
        ("other", "chat", "Running"),
        ("other", "cut-short", "Invalid"),
    ]


async def test_figures_of_a_benchmark_are_bounded_and_progress_of_a_search_is_no_number() -> None:
    body = body_of(searching(), "search")
    body["status"]["figures"] = {f"f{number}": number for number in range(1000)}
    names = [key[0] for key in await scrape({("default", "search"): body})]

    assert names.count("extproc_benchmark_figure") == 50
    assert body["status"]["progress"] == "run 3 of at most 12"
    assert "extproc_benchmark_progress_ratio" not in names
