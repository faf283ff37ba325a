"""What the operator shows: Benchmarks as metrics and as a page, in a real Prometheus and a real Chromium."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from extproc.bench.board import Notice
from extproc.bench.measure.words import DASH
from extproc.controller.metrics import PHASES, describe_benchmarks
from extproc.controller.page import build_page
from extproc.controller.status_schema import build_status_schema
from extproc.controller.web import build_web, find_report
from tests.controller.world import SPEC, World, brief
from tests.monitoring.prometheus import Prometheus, needs_prometheus
from tests.service.browser import Browser, find

Body = dict[str, Any]
EVIL = "<img src=x onerror=alert(1)>\"'&"
ORDER = ("namespace", "benchmark", "mode", "model", "phase", "figure")
needs_chromium = pytest.mark.skipif(find() is None, reason="needs chromium")


class Families(Collector):
    """The metrics of some Benchmarks."""

    def __init__(self, bodies: list[Body]) -> None:
        self._bodies = bodies

    def collect(self) -> Iterator[Metric]:
        return describe_benchmarks(self._bodies)


@dataclass
class Told:
    """What a desk knows."""

    known: Mapping[tuple[str, str], Body]
    has_listed: bool = True
    is_leading: asyncio.Event = field(default_factory=asyncio.Event)


def body_of(world: World, name: str, namespace: str = "default") -> Body:
    body = world.body()
    return body | {"metadata": body["metadata"] | {"name": name, "namespace": namespace}}


def nightly(rates: list[float], *, words: str = "", model: str = "llama") -> World:
    """A Benchmark that ran once for each rate, an hour apart; then, with `words`, once more to that end."""
    spec = {**SPEC, "schedule": "0 * * * *", "target": {"model": model}}
    world = World(spec=spec)
    ends = [brief(req_per_s=r, ttft_median_ms=2000 / r, ttft_p95_ms=5000 / r, failed=0) for r in rates]
    for said in [*ends, *([words] if words else [])]:
        world.after(hours=1)
        world.settle()
        world.end(said)
        world.settle()
    return world


def running() -> World:
    world = World()
    world.settle()
    (leader,) = world.active()
    world.notices[leader.run] = Notice("b", "45%", 450, 1000)
    world.settle()
    return world


def searching() -> World:
    world = running()
    (leader,) = world.active()
    world.notices[leader.run] = Notice("3.38 req/s", "run 3 of at most 12")
    world.settle()
    return world


def everything() -> dict[tuple[str, str], Body]:
    """A Benchmark in every way to be; two of one name; one that nobody has looked at."""
    refused = World(spec={**SPEC, "schedule": "never"})
    refused.settle()
    invalid = brief(is_good=False, title="invalid: partial", faults=["interrupted after 3.0 s"])
    bodies = [
        body_of(nightly([10, 10.2, 9.9, 10.1]), "chat"),
        body_of(nightly([10, 10.2, 9.9, 5]), "slower"),
        body_of(nightly([9], words=invalid), "cut-short", "other"),
        body_of(nightly([8, 8], model=EVIL, words=brief(title=EVIL, faults=[EVIL])), "hostile"),
        body_of(running(), "chat", "other"),
        body_of(refused, "refused"),
        body_of(World(), "new"),
    ]
    return {(body["metadata"]["namespace"], body["metadata"]["name"]): body for body in bodies}


@asynccontextmanager
async def served(told: Told, reports: Path | None = None) -> AsyncIterator[str]:
    runner = web.AppRunner(build_web(told, reports), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


def leading(known: Mapping[tuple[str, str], Body]) -> Told:
    told = Told(known)
    told.is_leading.set()
    return told


async def scrape(told: Told) -> dict[tuple[str, ...], float]:
    """Every sample, by its name and its labels' values."""
    async with served(told) as url:
        _, text = await get(f"{url}/metrics")
    return {
        (sample.name, *(sample.labels[name] for name in ORDER if name in sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics_say_what_the_statuses_say() -> None:
    samples = await scrape(leading(everything()))
    slower = "default", "slower"

    assert samples["extproc_operator_leading",] == 1
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


def test_phases_are_those_of_the_status() -> None:
    said = build_status_schema()["properties"]["phase"]["description"]

    assert said.removesuffix(".").replace(" or ", ", ").split(", ") == list(PHASES)


async def test_only_the_replica_that_acts_tells_of_benchmarks() -> None:
    assert await scrape(Told(everything())) == {("extproc_operator_leading",): 0}


async def test_figures_of_a_benchmark_are_bounded() -> None:
    body = body_of(nightly([10]), "b")
    body["status"]["figures"] = {f"f{number}": number for number in range(1000)}
    samples = await scrape(leading({("default", "b"): body}))

    assert sum(key[0] == "extproc_benchmark_figure" for key in samples) == 50


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=5,
)
FIELDS = (
    *("phase", "verdict", "progress", "report", "run", "startedAt", "finishedAt", "nextRunAt", "faults"),
    *("regressions", "remarks", "summary", "figures", "history"),
)


def fields_of(written: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """What somebody may make of an object: fields gone, or of any other kind."""
    known = {name: st.just(value) | JSON for name, value in written.items()}
    return st.fixed_dictionaries({}, optional=known) | JSON


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_a_status_that_somebody_edited_is_shown_as_far_as_it_can_be(data: st.DataObject) -> None:
    body = body_of(nightly([10, 9]), "edited")
    written = dict.fromkeys(FIELDS, "x") | body["status"]
    [*_, run] = written["history"]
    runs = st.lists(fields_of(run), max_size=3)
    statuses = st.tuples(fields_of(written), runs).map(
        lambda both: {**both[0], "history": both[1]} if isinstance(both[0], dict) else both[0]
    )
    body["status"] = data.draw(st.one_of(fields_of(written), statuses))
    page = build_page([body], lambda _, run: find_report(Path("/tmp"), body, run, "report.html") is not None)
    generate_latest(Families([body]))

    assert page.encode().count(b"default/edited") >= 2


async def test_a_run_without_its_end_is_shown_with_the_rest() -> None:
    body = body_of(nightly([10, 9]), "edited")
    del body["status"]["history"][0]["finishedAt"]
    body["status"] |= {"finishedAt": 5, "verdict": "good\u202edoog\u2066"}
    samples = await scrape(leading({("default", "edited"): body}))
    async with served(leading({("default", "edited"): body})) as url:
        status, text = await get(url)

    assert samples["extproc_benchmark_runs", "default", "edited", "Valid"] == 2
    assert ("extproc_benchmark_last_run_finished_timestamp_seconds", "default", "edited") not in samples
    assert (status, text.count("good\ufffddoog\ufffd")) == (200, 2)


@needs_prometheus
async def test_prometheus_has_nothing_to_say_against_the_metrics_and_takes_them(tmp_path: Path) -> None:
    async with served(leading(everything())) as url:
        _, text = await get(f"{url}/metrics")
        command = ["promtool", "check", "metrics"]
        checked = await asyncio.to_thread(subprocess.run, command, input=text.encode(), capture_output=True)
        with Prometheus(tmp_path, {"operator": f"{url}/metrics".removeprefix("http://")}, []) as prometheus:
            await asyncio.to_thread(prometheus.wait_ready)
            query = 'extproc_benchmark_figure{benchmark="slower",figure="req_per_s"}'
            await asyncio.to_thread(prometheus.wait_until, lambda: bool(prometheus.query(query)))
            [found] = prometheus.query(query)

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
    assert found["value"][1] == "5"
    assert found["metric"]["namespace"] == "default"


async def test_progress_of_a_search_is_no_number() -> None:
    body = body_of(searching(), "search")
    samples = await scrape(leading({("default", "search"): body}))

    assert body["status"]["progress"] == "run 3 of at most 12"
    assert [key for key in samples if key[0] == "extproc_benchmark_progress_ratio"] == []


async def test_readiness_waits_for_the_first_list() -> None:
    told = Told({}, has_listed=False)
    async with served(told) as url:
        before, alive = await get(f"{url}/readyz"), await get(f"{url}/healthz")
        told.has_listed = True
        after = await get(f"{url}/readyz")

    assert (before[0], alive[0], after[0]) == (503, 200, 200)


def write_report(root: Path, body: Body, run: str) -> Path:
    metadata = body["metadata"]
    claim = body["status"]["report"].partition("/")[0]
    folder = root.joinpath(metadata["namespace"], claim, metadata["name"], run)
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<h1>the report</h1><script>alert(1)</script>")
    return folder


async def test_report_of_a_run_is_read_from_its_claim_and_can_do_nothing(tmp_path: Path) -> None:
    body = body_of(nightly([10, 10]), "b")
    run = body["status"]["history"][0]["run"]
    write_report(tmp_path, body, run)
    async with served(Told({("default", "b"): body}), tmp_path) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/reports/default/b/{run}/report.html") as answer:
            text, headers = await answer.text(), answer.headers
        _, page = await get(f"{url}/")

    assert "the report" in text
    assert headers["content-security-policy"].endswith("; sandbox")
    assert "script" not in headers["content-security-policy"]
    assert page.count(f'href="reports/default/b/{run}/report.html"') == 1


def test_nothing_but_reports_of_known_runs_below_the_folder_is_read(tmp_path: Path) -> None:
    root, body = tmp_path / "reports", body_of(nightly([10]), "b")
    run = body["status"]["history"][0]["run"]
    folder = write_report(root, body, run)
    (folder / "other.html").touch()
    (folder / "report.json").symlink_to("/etc/hostname")
    (tmp_path / "default" / "b" / run).mkdir(parents=True)
    (tmp_path / "default" / "b" / run / "report.html").touch()
    outside = body | {"status": body["status"] | {"report": f"../../{root.parent.name}"}}

    assert find_report(root, body, run, "report.html") == folder / "report.html"
    for asked in ((run, "other.html"), (run, "report.json"), (run, "../report.html"), ("..", "report.html")):
        assert find_report(root, body, *asked) is None
    assert (
        find_report(root, outside | {"status": outside["status"] | {"report": ".."}}, run, "report.html")
        is None
    )
    assert find_report(root, body | {"status": {}}, run, "report.html") is None


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        running.wait_ready()
        yield running


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(420, "dark"), (1200, "light")])
async def test_page_of_all_runs_is_read_on_a_desk_and_on_a_telephone(
    browser: Browser, tmp_path: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    """A real Chromium.

    1. Every Benchmark is in the list, with its phase; a row leads to its runs.
    2. Figures over time are drawn; a report that can be read is linked.
    3. Nothing is fetched from elsewhere, nothing runs, nothing is complained of; hostile words are words.
    4. The page is as wide as the window.
    """
    known = everything()
    run = known["default", "chat"]["status"]["history"][0]["run"]
    write_report(tmp_path / "reports", known["default", "chat"], run)
    async with (
        served(leading(known), tmp_path / "reports") as url,
        browser.visit(f"{url}/", width=width, scheme=scheme, ready="h1") as visit,
    ):
        rows = await visit.table(".table:first-of-type")
        text = await visit.page.locator("body").inner_text()
        charts = await visit.page.locator("svg").count()
        images = await visit.page.locator("img").count()
        wide = await visit.page.evaluate("document.documentElement.scrollWidth")
        await visit.page.screenshot(path=tmp_path / f"runs-{width}-{scheme}.png", full_page=True)
        await visit.page.get_by_role("link", name="default/slower").click()
        at = await visit.page.evaluate("document.querySelector(':target').textContent")
        links = await visit.page.get_by_role("link", name="report", exact=True).count()

    assert [row[:2] for row in rows][:7] == [
        ["default/chat", "Valid"],
        ["default/hostile", "Valid"],
        ["default/new", DASH],
        ["default/refused", "Refused"],
        ["default/slower", "Valid"],
        ["other/chat", "Running"],
        ["other/cut-short", "Invalid"],
    ]
    assert at == "default/slower"
    assert charts >= 6
    assert links == 1
    assert EVIL in text
    assert images == 0
    assert "interrupted after 3.0 s" in text
    assert [asked for asked in visit.requests if not asked.startswith((url, "data:"))] == []
    assert visit.complaints == []
    assert wide <= width
