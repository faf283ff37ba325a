"""Live metrics of a run, and its status server; and who answered where no header says it."""

import signal
import threading
from urllib.request import urlopen

import aiohttp
import aiohttp.web
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.bench.experiments.run import run
from extproc.bench.load.process import LoadWatch
from extproc.bench.progress import Exporter, Goal, Pace, RunSnapshot, exporting
from extproc.bench.record import Record
from extproc.bench.status_server import RunStatus, StatusServer, decode_status
from extproc.errors import SettingsError
from tests.bench.running import Silence, build_spec, serving_null
from tests.bench.scripted import DONE, USAGE, chunk
from tests.bench.synthetic import failed, record
from tests.stack.ports import free_ports
from tests.tables import table
from tests.waiting import wait_until


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


def test_exporter_tells_tokens_and_every_latency() -> None:
    """Two requests of ten gaps of 0.1 s, and one that failed; sent in two parts."""
    registry = CollectorRegistry()
    exporter, work = Exporter(registry), Work(record(0, 0.0), failed(1, 0.0))
    watch = LoadWatch(work, lambda: 5.0)
    exporter.update(watch.snapshot())
    work.records.append(record(2, 1.0))
    exporter.update(watch.snapshot())
    said = read(registry)

    assert (said["extproc_bench_tokens{input}"], said["extproc_bench_tokens{output}"]) == (200, 22)
    assert said["extproc_bench_e2e_seconds_sum"] == pytest.approx(3.0)
    assert said["extproc_bench_tpot_seconds_sum"] == pytest.approx(0.2)
    assert said["extproc_bench_ttft_seconds_count"] == 2


def test_metrics_stay_up_while_they_linger_and_a_signal_ends_that() -> None:
    """1. The run is over. 2. Its last state can be scraped. 3. A signal ends the wait of an hour."""
    (port,) = free_ports(1)
    scraped, before = [], signal.getsignal(signal.SIGTERM)

    def scrape_and_end() -> None:
        wait_until(lambda: signal.getsignal(signal.SIGTERM) is not before)
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


async def tell_counters(request: aiohttp.web.Request) -> aiohttp.web.Response:
    del request
    return aiohttp.web.Response(
        text="vllm:prefix_cache_queries_total 1\nvllm:prefix_cache_hits_total 1\n"
    )


@pytest.mark.slow
@table("header", [None, "10.0.0.1:8000"])
async def test_server_that_is_a_vllm_itself_is_the_endpoint_unless_a_header_says(
    header: str | None,
) -> None:
    async def answer(request: aiohttp.web.Request) -> aiohttp.web.Response:
        await request.read()
        headers = {"x-served-by": header} if header else {}
        return aiohttp.web.Response(body=chunk("bab ") + USAGE + DONE, headers=headers)

    async with serving_null(chat=answer, metrics=tell_counters) as port:
        result = await run(
            build_spec(port, {"req-rate": 20, "total-prompts": 3}), progress=Silence()
        )

    assert {record.endpoint for record in result.records} == {header or f"127.0.0.1:{port}"}


def standing(
    finished: int, at_s: float = 10.0, ttft_s: tuple[float, ...] = (), failed: int = 0
) -> RunSnapshot:
    failures = {"status 500": failed} if failed else {}
    return RunSnapshot(at_s, finished, 0, finished, failures, ttft_s, (), goal=Goal(requests=200))


def test_board_tells_requests_over_planned_ones_and_the_figures_of_all_so_far() -> None:
    board = StatusServer()
    board.begin("chat")
    assert board.notice() == RunStatus(doing="chat")
    board.update(standing(50, 5.0, tuple(0.001 * i for i in range(1, 51))))
    board.update(standing(100, 10.0, tuple(0.001 * i for i in range(51, 101)), failed=10))
    figures = {"req_per_s": 9.0, "failed": 0.1, "ttft_median_ms": 50.5, "ttft_p95_ms": 95.05}

    assert board.notice() == RunStatus(
        doing="chat", progress="50%", finished=100, planned=200, figures=figures
    )


def test_board_of_an_experiment_tells_how_much_of_all_its_runs_is_done() -> None:
    """The second of four runs, a half of it: three eighths; figures are of the run that goes."""
    board, pace = StatusServer(), Pace(4)
    for title in ("least_load, repeat 1 of 2", "prefix_hash, repeat 1 of 2"):
        pace.begin()
        board.begin(title, pace)
        board.update(standing(100, ttft_s=(0.1 * len(title),)))
    notice = board.notice()

    assert (notice.doing, notice.progress) == ("prefix_hash, repeat 1 of 2", "37%")
    assert notice.figures["ttft_median_ms"] == pytest.approx(2600)


@table(
    ("pace", "share", "shown"),
    [
        (Pace(1), None, ""),
        (Pace(1), 1.0, "99%"),
        (Pace(12, is_known=False), 0.5, "run 1 of at most 12"),
        (Pace(4), None, "0%"),
    ],
)
def test_progress_is_what_is_known_and_never_all_of_it(
    pace: Pace, share: float | None, shown: str
) -> None:
    pace.begin()

    assert pace.show(share) == shown


async def test_board_is_read_over_http() -> None:
    (port,) = free_ports(1)
    board = StatusServer()
    board.want({"name": "prefix_hash", "load_factor": 1.5})
    async with (
        board.serving("127.0.0.1", port),
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{port}/") as answer,
    ):
        told = decode_status(await answer.read())
        with pytest.raises(SettingsError, match="in use"):
            async with StatusServer().serving("127.0.0.1", port):
                pass

    assert told == board.notice()
    # What else somebody says is no notice.
    for text in (b"", b"<html>", b"[1]", b'{"finished": "many"}'):
        assert decode_status(text) is None
