"""The page of all runs in a real Chromium; what it makes of a status that somebody edited."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from extproc.bench.measure.words import DASH
from extproc.operator.page import build_runs_page
from extproc.operator.watches import WatchHealth
from extproc.operator.web import find_report
from extproc.router.cluster.kube_api import WatchLost
from tests.operator.statuses import (
    EVIL,
    Body,
    Families,
    body_of,
    everything,
    get,
    nightly,
    scrape,
    served,
)
from tests.slow.browsers.browser import Browser, find

needs_chromium = pytest.mark.skipif(find() is None, reason="needs chromium")


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
@settings(deadline=None)
def test_a_status_that_somebody_edited_is_shown_as_far_as_it_can_be(data: st.DataObject) -> None:
    body = body_of(nightly([10, 9]), "edited")
    written = dict.fromkeys(FIELDS, "x") | body["status"]
    [*_, run] = written["history"]
    runs = st.lists(fields_of(run), max_size=3)
    statuses = st.tuples(fields_of(written), runs).map(
        lambda both: {**both[0], "history": both[1]} if isinstance(both[0], dict) else both[0]
    )
    body["status"] = data.draw(st.one_of(fields_of(written), statuses))
    page = build_runs_page(
        [body], lambda _, run: find_report(Path("/tmp"), body, run, "report.html") is not None
    )
    generate_latest(Families([body]))

    assert page.encode().count(b"default/edited") >= 2


async def test_a_run_without_its_end_is_shown_with_the_rest() -> None:
    body = body_of(nightly([10, 9]), "edited")
    del body["status"]["history"][0]["finishedAt"]
    body["status"] |= {"finishedAt": 5, "verdict": "good\u202edoog\u2066"}
    samples = await scrape({("default", "edited"): body})
    async with served({("default", "edited"): body}) as url:
        status, text = await get(url)

    assert samples["extproc_benchmark_runs", "default", "edited", "Valid"] == 2
    assert ("extproc_benchmark_last_run_finished_timestamp_seconds", "default", "edited") not in samples
    assert (status, text.count("good\ufffddoog\ufffd")) == (200, 2)


async def test_readiness_and_a_metric_say_which_watch_does_not_work() -> None:
    """1. Nothing is listed yet. 2. All is listed. 3. A watch that fails for a moment. 4. And for longer."""
    now_s = [0.0]
    healths = [WatchHealth(name, lambda: now_s[0]) for name in ("benchmarks", "jobs")]
    seen = []

    async def look() -> None:
        async with served({}, None, *healths) as url:
            ready, alive = await get(f"{url}/readyz"), await get(f"{url}/healthz")
        up = (await scrape({}, *healths))["extproc_operator_watch_up", "jobs"]
        seen.append((ready[0], alive[0], up, ready[1].splitlines()[1]))

    await look()
    for health in healths:
        health.succeed(listed=True)
    await look()
    healths[1].fail(WatchLost("forbidden", "403: no watch"))
    await look()
    now_s[0] = 31.0
    await look()
    healths[1].succeed()
    await look()

    assert seen == [
        (503, 200, 0, "jobs: not listed yet"),
        (200, 200, 1, "jobs: followed"),
        (200, 200, 1, "jobs: 403: no watch"),
        (503, 200, 0, "jobs: 403: no watch"),
        (200, 200, 1, "jobs: followed"),
    ]


def test_watch_that_is_silent_on_a_quiet_kind_is_no_fault() -> None:
    health = WatchHealth("benchmarks", has_listed=True)
    health.fail(WatchLost("stalled", "no word from the API server", keeps_version=True))
    health.fail(WatchLost("closed", "the server ended the watch", keeps_version=True))

    assert health.fault == ""


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
    async with served({("default", "b"): body}, tmp_path) as url, aiohttp.ClientSession() as session:
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
        served(known, tmp_path / "reports") as url,
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
    verdicts = {row[0]: row[2] for row in rows}
    assert (verdicts["default/slower"], verdicts["other/cut-short"]) == ("valid", "invalid: partial")
    assert at == "default/slower"
    assert charts >= 6
    assert links == 1
    assert EVIL in text
    assert images == 0
    assert "interrupted after 3.0 s" in text
    assert [asked for asked in visit.requests if not asked.startswith((url, "data:"))] == []
    assert visit.complaints == []
    assert wide <= width
