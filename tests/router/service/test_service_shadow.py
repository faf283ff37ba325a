"""What is foretold, where operators see it: the admin port, the command, metrics."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.cli import cli
from extproc.router.feedback.outcome import Exchange
from extproc.router.routing.picker import Query
from extproc.router.service.shadow_report import as_json, write_page, write_text
from extproc.router.shadow.forecast import foretell
from tests.router.service.live_service import CHAT, serving_live
from tests.router.shadow.watched import WatchedFleet
from tests.stack.client import chat_about
from tests.stack.service import pool
from tests.waiting import until

POOLS = [
    pool(["127.0.0.1:1"], {"name": "prefix_cache"}, name="watched", probe=False, shadow={}),
    pool(["127.0.0.1:2"], name="other", probe=False, models=["other"]),
]


@pytest.fixture(scope="module")
def fleet_told() -> WatchedFleet:
    fleet = WatchedFleet()
    fleet.show_chats(minutes=65)
    return fleet


def test_report_has_a_sentence_the_figures_and_two_charts(fleet_told: WatchedFleet) -> None:
    told = foretell(fleet_told.shadow, fleet_told.clock.now_s)
    text, page = write_text([told]), write_page([told])

    assert text.startswith("pool llama: Switching pays: 53% of the prompt tokens")
    assert re.search(r"prompt tokens found in caches +0 % \(0-0\) +53\.\d % \(5\d\.?\d*-5\d", text)
    assert "busiest endpoint's share of prefill" in text
    assert page.count("<svg") == 2
    assert json.loads(as_json([told]))[0]["verdict"] == "pays"


async def test_an_access_log_names_who_served_and_a_reload_begins_anew(tmp_path: Path) -> None:
    async with serving_live(tmp_path, POOLS) as live:
        running = live.app.pools["watched"]
        shadow = running.shadow
        assert shadow
        query = Query("POST", CHAT, {}, chat_about("hello " * 300), pool="watched")
        reading = live.app.pools.picker.find(query).reading
        shadow.arrived(reading)
        shadow.nameless(reading, "", "id")
        live.app.pools.feedback.note(Exchange("127.0.0.1:1", 200, 1.0, request_id="other"))
        assert shadow.seen.nameless == 1
        live.app.pools.feedback.note(Exchange("127.0.0.1:1", 200, 1.0, request_id="id"))
        assert shadow.seen.nameless == 0
        async with live.watching():
            live.configure([{**POOLS[0], "shadow": {"deferred_close_s": 5}}, POOLS[1]])
            await until(lambda: running.shadow is not shadow)
            live.configure([{**POOLS[0], "shadow": None}, POOLS[1]])
            await until(lambda: running.pool.watcher is None)

    assert running.foretell() is None


async def test_the_admin_port_says_what_is_foretold_and_begins_anew(tmp_path: Path) -> None:
    async with serving_live(tmp_path, POOLS) as live:
        shadow = live.app.pools["watched"].shadow
        assert shadow
        since_s = shadow.since_s
        run = CliRunner().invoke
        report = ["shadow", "report", "--url", live.url]
        said = await asyncio.to_thread(run, cli, report)
        paged = await asyncio.to_thread(run, cli, [*report, "--page", "/absent/page.html"])
        done = await asyncio.to_thread(run, cli, ["shadow", "reset", "watched", "--url", live.url])
        wrong = await asyncio.to_thread(run, cli, ["shadow", "reset", "other", "--url", live.url])
        async with live.session.post(f"{live.url}/shadow/reset?pool=watched", data="{}") as foreign:
            refused = foreign.status
        async with live.session.get(f"{live.url}/metrics") as metrics:
            samples = await metrics.text()

    assert said.output.startswith("pool watched: Too early to say: no request has come.")
    assert "'/absent/page.html': No such file" in paged.output
    assert (done.exit_code, wrong.exit_code, refused) == (0, 1, 415)
    assert shadow.since_s > since_s
    assert 'extproc_shadow_verdict{pool="watched",verdict="too_early"} 1.0' in samples
    assert 'extproc_shadow_verdict{pool="other"' not in samples
