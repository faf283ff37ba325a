"""The page of all runs: what it makes of a status that somebody edited."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from extproc.operator.page import build_runs_page
from extproc.operator.resource import read_time
from extproc.operator.watches import WatchHealth
from extproc.operator.web import fill_registry, find_report
from extproc.router.cluster.kube_api import WatchLost
from tests.operator.statuses import (
    benchmark_named,
    fetch_text,
    nightly,
    scrape_operator,
    serving_bodies,
    write_report,
)
from tests.operator.world import World, brief_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3)
    ),
    max_leaves=5,
)
FIELDS = (
    *(
        "phase",
        "verdict",
        "progress",
        "report",
        "run",
        "startedAt",
        "finishedAt",
        "nextRunAt",
        "faults",
    ),
    *("regressions", "remarks", "summary", "figures", "history"),
)


def altered_fields(written: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """What somebody may make of an object: fields gone, or of any other kind."""
    known = {name: st.just(value) | JSON for name, value in written.items()}
    return st.fixed_dictionaries({}, optional=known) | JSON


@given(st.data())
def test_a_status_that_somebody_edited_is_shown_as_far_as_it_can_be(data: st.DataObject) -> None:
    body = benchmark_named(nightly([10, 9]), "edited")
    written = dict.fromkeys(FIELDS, "x") | body["status"]
    [*_, run] = written["history"]
    runs = st.lists(altered_fields(run), max_size=3)
    statuses = st.tuples(altered_fields(written), runs).map(
        lambda both: {**both[0], "history": both[1]} if isinstance(both[0], dict) else both[0]
    )
    body["status"] = data.draw(st.one_of(altered_fields(written), statuses))
    page = build_runs_page(
        [body], lambda _, run: find_report(Path("/tmp"), body, run, "report.html") is not None
    )
    generate_latest(fill_registry([body], []))

    assert page.encode().count(b"default/edited") >= 2


async def test_a_run_without_its_end_is_shown_with_the_rest() -> None:
    body = benchmark_named(nightly([10, 9]), "edited")
    del body["status"]["history"][0]["finishedAt"]
    body["status"] |= {"finishedAt": 5, "verdict": "good\u202edoog\u2066"}
    samples = await scrape_operator({("default", "edited"): body})
    async with serving_bodies({("default", "edited"): body}) as url:
        status, text = await fetch_text(url)

    assert samples["extproc_benchmark_runs", "default", "edited", "Valid"] == 2
    assert (
        "extproc_benchmark_last_run_finished_timestamp_seconds",
        "default",
        "edited",
    ) not in samples
    assert (status, text.count("good\ufffddoog\ufffd")) == (200, 2)


async def test_readiness_and_a_metric_say_which_watch_does_not_work() -> None:
    """1. Nothing is listed yet. 2. All is listed. 3. A watch that fails for a moment. 4. And for longer."""
    now_s = [0.0]
    healths = [WatchHealth(name, lambda: now_s[0]) for name in ("benchmarks", "jobs")]
    seen = []

    async def look() -> None:
        async with serving_bodies({}, None, *healths) as url:
            ready, alive = await fetch_text(f"{url}/readyz"), await fetch_text(f"{url}/healthz")
        up = (await scrape_operator({}, *healths))["extproc_operator_watch_up", "jobs"]
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
    for reason in ("silent", "closed"):
        health.fail(WatchLost(reason, "nothing was said", keeps_version=True))

    assert health.fault == ""


async def test_report_of_a_run_is_read_from_its_claim_and_can_do_nothing(tmp_path: Path) -> None:
    body = benchmark_named(nightly([10, 10]), "b")
    run = body["status"]["history"][0]["run"]
    write_report(tmp_path, body, run)
    async with (
        serving_bodies({("default", "b"): body}, tmp_path) as url,
        aiohttp.ClientSession() as session,
    ):
        async with session.get(f"{url}/reports/default/b/{run}/report.html") as answer:
            text, headers = await answer.text(), answer.headers
        _, page = await fetch_text(f"{url}/")

    assert "the report" in text
    assert headers["content-security-policy"].endswith("; sandbox")
    assert "script" not in headers["content-security-policy"]
    assert page.count(f'href="reports/default/b/{run}/report.html"') == 1


def test_nothing_but_reports_of_known_runs_below_the_folder_is_read(tmp_path: Path) -> None:
    root, body = tmp_path / "reports", benchmark_named(nightly([10]), "b")
    run = body["status"]["history"][0]["run"]
    folder = write_report(root, body, run)
    (folder / "other.html").touch()
    (folder / "report.json").symlink_to("/etc/hostname")
    (tmp_path / "default" / "b" / run).mkdir(parents=True)
    (tmp_path / "default" / "b" / run / "report.html").touch()

    assert find_report(root, body, run, "report.html") == folder / "report.html"
    for asked in (
        (run, "other.html"),
        (run, "report.json"),
        (run, "../report.html"),
        ("..", "report.html"),
    ):
        assert find_report(root, body, *asked) is None
    for report in (f"../../{root.parent.name}", "..", None):
        status = body["status"] | {"report": report} if report else {}
        assert find_report(root, body | {"status": status}, run, "report.html") is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inside: (
        st.lists(inside, max_size=2) | st.dictionaries(st.text(max_size=5), inside, max_size=2)
    ),
    max_leaves=4,
)
RUN = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("run", "digest", "phase", "verdict", "finishedAt", "figures"), VALUES),
)
WRITTEN = (
    "conditions",
    "faults",
    "figures",
    "lastScheduledAt",
    "progress",
    "run",
    "soFar",
    "startedAt",
)
ANY_STATUS = st.fixed_dictionaries(
    {}, optional={**dict.fromkeys(WRITTEN, VALUES), "history": VALUES | st.lists(RUN, max_size=2)}
)


@given(ANY_STATUS, st.sampled_from([None, "*/5 * * * *"]))
def test_whatever_somebody_writes_into_a_status_the_run_goes_on(
    status: Any, schedule: str | None
) -> None:
    """Written before it began, it is run all the same; a schedule goes on by the clock that there is."""
    world = World(status=status)
    if schedule:
        world.spec |= {"schedule": schedule}
    world.settle()
    world.after(minutes=5)
    world.settle()
    assert world.active()

    run = world.end(brief_json())
    world.settle()
    assert run in {entry["run"] for entry in world.status["history"]}


def test_what_another_version_wrote_is_written_over_once_and_its_field_ends_the_run() -> None:
    """A field of a status goes with the next one, and does not make every look a write.

    The definition may be newer than the operator: a field of a spec that it does not know may mean
    anything.
    """
    world = World()
    world.settle()
    world.status |= {"fromTheFuture": {"x": 1}}
    world.settle()
    assert "fromTheFuture" not in world.status
    assert world.decide() == []
    world.change(new_field=1)
    world.settle()

    assert (world.status["phase"], world.jobs) == ("Refused", {})
    assert "new-field" in world.status["faults"][0]


def test_time_without_a_zone_is_utc_and_one_with_is_turned_into_it() -> None:
    assert read_time("2026-11-22T12:00:00") == datetime(2026, 11, 22, 12, tzinfo=UTC)
    assert read_time("2026-11-22T12:00:00+02:00").hour == 10
