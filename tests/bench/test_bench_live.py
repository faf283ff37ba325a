"""Live metrics of a run: complete, kept up for a while, pushed; and who answered where no header says it."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiohttp.web
import pytest
import yaml
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.bench.commands import bench
from extproc.bench.experiments.run import run
from extproc.bench.progress import GAP_BUCKETS_S, Exporter, LoadWatch, exporting
from extproc.bench.record import Record
from extproc.bench.report.outputs import OutputError, push_report
from extproc.bench.report.report import build
from tests.bench.running import Silence, build_spec, serving
from tests.bench.scripted import DONE, USAGE, chunk
from tests.bench.synthetic import failed, record, steady
from tests.stack.ports import free_ports


class Work:
    """What a load process has done so far."""

    in_flight = 0

    def __init__(self, *records: Record) -> None:
        self.records = list(records)


def read(registry: CollectorRegistry) -> dict[str, float]:
    """Every sample by its name and labels."""
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_exporter_tells_tokens_gaps_and_every_latency() -> None:
    """Two requests of ten gaps of 0.1 s, and one that failed; told in two parts."""
    registry = CollectorRegistry()
    exporter, work = Exporter(registry), Work(record(0, 0.0), failed(1, 0.0))
    watch = LoadWatch(work, lambda: 5.0)
    exporter.update(watch.snapshot())
    work.records.append(record(2, 1.0))
    exporter.update(watch.snapshot())
    said = read(registry)

    assert (said["extproc_bench_tokens{input}"], said["extproc_bench_tokens{output}"]) == (200, 22)
    assert said["extproc_bench_itl_seconds_count"] == 20
    assert said["extproc_bench_itl_seconds_sum"] == pytest.approx(2.0)
    assert said["extproc_bench_itl_seconds_bucket{0.075}"] == 0
    assert said["extproc_bench_itl_seconds_bucket{0.15}"] == 20
    assert said["extproc_bench_e2e_seconds_sum"] == pytest.approx(3.0)
    assert said["extproc_bench_tpot_seconds_sum"] == pytest.approx(0.2)
    assert said["extproc_bench_ttft_seconds_count"] == 2


@pytest.mark.parametrize("bound", GAP_BUCKETS_S)
def test_gap_as_long_as_a_bound_is_within_it(bound: float) -> None:
    registry = CollectorRegistry()
    exporter = Exporter(registry)
    exporter.update(LoadWatch(Work(record(0, 0.0, chunk_s=[0.0, bound])), lambda: 5.0).snapshot())

    assert read(registry)[f"extproc_bench_itl_seconds_bucket{{{float(bound)}}}"] == 1


def test_metrics_stay_up_while_they_linger_and_a_signal_ends_that() -> None:
    """1. The run is over. 2. Its last state can be scraped. 3. A signal ends the wait of an hour."""
    (port,) = free_ports(1)
    scraped = []

    def scrape_and_end() -> None:
        time.sleep(0.3)
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            scraped.append(answer.read().decode())
        signal.raise_signal(signal.SIGTERM)

    with exporting(port, 3600) as exporter:
        assert exporter is not None
        exporter.update(LoadWatch(Work(record(0, 0.0)), lambda: 5.0).snapshot())
        helper = threading.Thread(target=scrape_and_end)
        helper.start()
    helper.join()

    assert "extproc_bench_e2e_seconds_count 1.0" in scraped[0]


class _Gateway(BaseHTTPRequestHandler):
    """As much of a Pushgateway as a push sees."""

    pushed: list[tuple[str, str, str]]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.pushed.append((self.command, self.path, body))
        self.send_response(200 if self.path.startswith("/metrics/job/") else 400)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@contextmanager
def pushgateway() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    handler = type("Gateway", (_Gateway,), {"pushed": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", handler.pushed  # type: ignore[attr-defined]
        finally:
            server.shutdown()
            thread.join()


def test_final_figures_are_pushed_under_the_benchmarks_name() -> None:
    said = build(steady(10))
    with pushgateway() as (url, pushed):
        push_report(said, url)
    ((method, path, body),) = pushed

    assert (method, path) == ("PUT", "/metrics/job/benchmark")
    assert 'extproc_bench_completed_requests_per_second{benchmark="benchmark",model="llama"}' in body


def test_pushgateway_that_is_away_is_named() -> None:
    with pytest.raises(OutputError, match=r"pushgateway http://127\.0\.0\.1:1: "):
        push_report(build(steady(10)), "http://127.0.0.1:1")


def test_run_pushes_what_it_found(null_server: int, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    shape = {"req-rate": 50, "total-prompts": 10, "dataset": {"name": "random", "input-tokens": 4}}
    tree = {"name": "pushed", "endpoint": "127.0.0.1", "port": null_server, "target": {"model": "m"}}
    spec.write_text(
        yaml.safe_dump({**tree, "labels": {"team": "blue"}, "performance": {"traffic-shape": shape}})
    )
    with pushgateway() as (url, pushed):
        done = CliRunner().invoke(
            bench,
            ["run", str(spec), "--quiet", "--pushgateway", url, "--allow-client-limited", "--linger", "1s"],
        )

    assert done.exit_code == 0, done.output
    assert pushed[0][1] == "/metrics/job/pushed/team/blue"


async def answer_plainly(request: aiohttp.web.Request) -> aiohttp.web.Response:
    await request.read()
    return aiohttp.web.Response(body=chunk("bab ") + USAGE + DONE)


async def tell_counters(request: aiohttp.web.Request) -> aiohttp.web.Response:
    del request
    return aiohttp.web.Response(text="vllm:prefix_cache_queries_total 1\nvllm:prefix_cache_hits_total 1\n")


async def test_server_that_is_a_vllm_itself_is_the_endpoint() -> None:
    async with serving(chat=answer_plainly, metrics=tell_counters) as port:
        result = await run(build_spec(port, {"req-rate": 20, "total-prompts": 3}), progress=Silence())

    assert {record.endpoint for record in result.records} == {f"127.0.0.1:{port}"}


async def test_gateway_without_a_header_leaves_the_endpoint_unknown() -> None:
    async with serving(chat=answer_plainly) as port:
        result = await run(build_spec(port, {"req-rate": 20, "total-prompts": 3}), progress=Silence())

    assert {record.endpoint for record in result.records} == {None}


async def test_header_wins_over_the_address_that_was_asked() -> None:
    async def answer(request: aiohttp.web.Request) -> aiohttp.web.Response:
        plain = await answer_plainly(request)
        plain.headers["x-served-by"] = "10.0.0.1:8000"
        return plain

    async with serving(chat=answer, metrics=tell_counters) as port:
        result = await run(build_spec(port, {"req-rate": 20, "total-prompts": 3}), progress=Silence())

    assert {record.endpoint for record in result.records} == {"10.0.0.1:8000"}
