"""The page on the admin port, in a real Chromium: a whole service, looked at."""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import pytest
import yaml

from extproc.router.feedback.outcome import Verdict
from extproc.router.routing.picker import Query
from extproc.router.routing.signals import EndpointSignals
from extproc.router.service.live.page import build_page
from tests.router.lint.planted import PATHS, plant_fault
from tests.router.service.live_service import Live, serving_live
from tests.stack.browser import Browser, Visit, find_chromium
from tests.stack.client import chat_about
from tests.stack.service import Pool, pool
from tests.waiting import until

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs chromium")

# The second half turns what follows it around, where it can.
EVIL = "<img src=x onerror=alert(1)>\u202e"
SHOWN = EVIL.replace("\u202e", "\ufffd")
ROWS = "#pools section:nth-of-type({}) table"


DECIDED = "count => document.querySelectorAll('#decisions tr').length === count"


async def explain(visit: Visit, body: bytes, selector: str = "#told h3") -> str:
    """Asks the page's box; returns what it says."""
    await visit.page.fill("#body", body.decode())
    await visit.page.click("#explain button")
    await visit.page.wait_for_selector(selector)
    return str(await visit.text(selector))


def write_pool_file(folder: Path, endpoints: Mapping[str, int], name: str = "a") -> list[Pool]:
    """Writes a list of endpoints by their names and ports, in one step; returns the pool that follows it."""
    rows = [{"address": "10.0.0.1", "port": port, "name": each} for each, port in endpoints.items()]
    draft = folder / "endpoints.draft"
    draft.write_text(yaml.safe_dump(rows))
    draft.replace(folder / "endpoints.yaml")
    return [{"name": name, "endpoints": {"file": "endpoints.yaml"}, "probe": False}]


def spread_picks(live: Live, name: str = "a") -> None:
    """Some requests, and what endpoints say of their first tokens."""
    for number in range(8):
        decision = live.request(f"what is {number}?", name)
        fed = live.app.pools[name].feedback.signals
        fed[decision.pick.endpoint.name] = EndpointSignals(first_tokens=4, first_token_s=1.0)


async def test_a_card_says_where_prompts_part(tmp_path: Path, browser: Browser) -> None:
    pools = [pool(["127.0.0.1:1"], {"name": "prefix_cache"}, name="llama", probe=False, lint=True)]
    async with serving_live(tmp_path, pools) as live:
        for n in range(400):
            query = Query("POST", PATHS[0], {}, plant_fault("time", PATHS[0], n // 50))
            live.app.pools.picker.pick(query)
        async with browser.visit(live.url) as visit:
            await visit.until("!document.querySelector('#lint').hidden")
            await visit.page.screenshot(path=tmp_path / "lint.png", full_page=True)

            assert "8 sampled prompts part at byte 26" in await visit.text("#lint")


async def test_the_page_shows_what_pools_shows(tmp_path: Path, browser: Browser) -> None:
    """Names, states and loads of every endpoint of every pool; the decisions; the configuration."""
    pools = [
        pool(["127.0.0.1:8001", "127.0.0.1:8002"], name="a", models=["m"], probe=False),
        pool(["127.0.0.1:8003"], {"name": "least_load"}, name="b", probe=False),
    ]
    async with serving_live(tmp_path, pools) as live, browser.visit(f"{live.url}/") as visit:
        spread_picks(live)
        await visit.until(DECIDED, 8)
        live_pools = await live.pools()
        for number, in_pools in enumerate(live_pools, 1):
            rows = await visit.table(ROWS.format(number))
            loads = [int(row[2].partition("/")[0]) for row in rows]

            heading = visit.page.locator(f"#pools section:nth-of-type({number}) h2")
            assert await heading.inner_text() == f"pool {in_pools['name']}"
            assert [row[:2] for row in rows] == [
                [row["name"], row["state"]] for row in in_pools["endpoints"]
            ]
            assert loads == [row["in_flight"] for row in in_pools["endpoints"]]
        rows = await visit.table(ROWS.format(1))
        assert sum(int(row[3].removesuffix(" %")) for row in rows) in range(99, 102)
        assert {row[4] for row in rows if row[3] != "0 %"} == {"250 ms"}
        decided = [(row[0], row[1], row[2]) for row in await visit.table(".decisions")]
        assert {pool_name for _, _, pool_name in decided} == {"a"}
        assert {reason for _, reason, _ in decided} <= {"home", "spill"}
        assert str(tmp_path) in await visit.text("#config-facts")
        assert "home" in str(await visit.page.locator("#chart").get_attribute("aria-label"))


async def test_the_page_follows_endpoints_that_come_and_cool_and_go(
    tmp_path: Path, browser: Browser
) -> None:
    pools = write_pool_file(tmp_path, {"e1": 1, "e2": 2})
    names = "wanted => [...document.querySelectorAll('#pools tbody th span')]"
    names += ".map(name => name.textContent).join() === wanted"
    state = "wanted => document.querySelectorAll('#pools .state')[1].textContent.startsWith(wanted)"
    async with serving_live(tmp_path, pools) as live, browser.visit(f"{live.url}/") as visit:
        await visit.until(names, "e1,e2")
        write_pool_file(tmp_path, {"e1": 1, "e2": 2, "e3": 3})
        await visit.until(names, "e1,e2,e3")
        live.fail("a", "10.0.0.1:2")
        await visit.until(state, "cooling, ")
        await visit.until(state, "on trial")
        live.outcome("a", "10.0.0.1:2", Verdict.ANSWERED)
        write_pool_file(tmp_path, {"e3": 3})
        await visit.until(names, "e3")

        assert visit.complaints == []


async def test_the_page_fetches_nothing_from_elsewhere_and_has_nothing_to_complain_of(
    tmp_path: Path, browser: Browser
) -> None:
    async with serving_live(tmp_path) as live, browser.visit(f"{live.url}/") as visit:
        spread_picks(live, "vllm")
        await visit.until("() => document.querySelectorAll('#decisions tr').length > 0")
        await explain(visit, chat_about("hello"))
        await visit.page.click("summary")
        await visit.until(
            "() => document.getElementById('config-text').textContent.includes('prefix_hash')"
        )
        asked = [urlsplit(url) for url in visit.requests]
        complaints = list(visit.complaints)

        # What it may not do it cannot do: the policy stops what a script or a style from elsewhere
        # would be.
        with pytest.raises(Exception, match=r"Content Security Policy|Failed to fetch"):
            await visit.page.evaluate("() => fetch('http://127.0.0.1:1/')")
        await visit.page.evaluate(
            "() => { const s = document.createElement('script'); s.textContent = 'window.evil = 1';"
            " document.body.append(s); }"
        )
        assert await visit.page.evaluate("() => window.evil") is None

    assert complaints == []
    assert {f"{url.scheme}://{url.netloc}" for url in asked if url.scheme != "data"} == {live.url}
    assert {url.path for url in asked if url.scheme != "data"} == {
        "/",
        "/live",
        "/explain",
        "/config",
    }


async def test_a_refused_configuration_is_reported_at_the_top_and_by_the_status(
    tmp_path: Path, browser: Browser
) -> None:
    """1. Nothing is wrong. 2. A bad file is refused, what was before stays. 3. A good one takes its place."""
    async with (
        serving_live(tmp_path) as live,
        live.watching(),
        browser.visit(f"{live.url}/") as visit,
    ):
        refusal = visit.page.locator("#refusal")
        assert not await refusal.is_visible()
        live.configure((), "pools: [{name: a, endpionts: {}}]")
        await refusal.wait_for()
        shown = await refusal.inner_text()
        status = await visit.text("#status")
        box, first = await refusal.bounding_box(), await visit.page.locator("#tiles").bounding_box()
        live.configure([pool(["127.0.0.1:8001"], probe=False)])
        await refusal.wait_for(state="hidden")
        await visit.until("() => document.getElementById('status').textContent === 'ready'")

    assert "endpionts: there is no such setting" in shown
    assert status == "ready, a change refused"
    assert box is not None
    assert first is not None
    assert box["y"] < first["y"]


async def test_a_service_that_is_not_ready_says_why(tmp_path: Path, browser: Browser) -> None:
    """No list of endpoints has come: the page is there all the same."""
    pools = [{"name": "a", "endpoints": {"file": "missing.yaml"}, "probe": False}]
    async with (
        serving_live(tmp_path, pools, is_ready=False) as live,
        browser.visit(f"{live.url}/") as visit,
        live.session.get("/readyz") as answer,
    ):
        shown = await visit.text("#trouble")
        status = await visit.text("#status")
        nothing = await visit.text("#pools .nothing")
        [reason] = (await answer.text()).strip().splitlines()
        (tmp_path / "missing.yaml").write_text("[{address: 10.0.0.1, port: 1, name: e1}]")
        await visit.page.wait_for_selector("#status[data-state=ready]")

    assert (answer.status, status, nothing) == (503, "not ready", "No endpoint is known.")
    assert shown == f"Not ready\n{reason}"


async def test_an_endpoints_load_is_shown_against_what_limits_it(
    tmp_path: Path, browser: Browser
) -> None:
    """The strategy's bound, else the pool's; where there is none, that is said."""
    pools = [
        pool(["127.0.0.1:1"], {"name": "prefix_hash"}, name="bound", probe=False),
        pool(["127.0.0.1:2"], {"name": "prefix_cache"}, name="limited", probe=False)
        | {"max_in_flight": 7},
        pool(["127.0.0.1:3"], {"name": "prefix_cache"}, name="free", probe=False),
    ]
    pools = [each | {"models": [each["name"]]} for each in pools]
    async with serving_live(tmp_path, pools) as live, browser.visit(f"{live.url}/") as visit:
        for each in pools:
            live.request(pool_name=each["name"])
        await visit.until(DECIDED, 3)
        loads = [(await visit.table(ROWS.format(number)))[0][2] for number in (1, 2, 3)]
        facts = await visit.page.locator("#pools .facts").all_inner_texts()

    unlimited = [
        "no limit on the requests of an endpoint" in " ".join(each.split()) for each in facts
    ]
    assert (loads, unlimited) == (["1 / 4", "1 / 7", "1"], [False, False, True])


async def test_hits_are_shown_by_endpoint_and_by_pool_and_the_explain_box_says_which_and_why(
    tmp_path: Path, browser: Browser
) -> None:
    endpoints = ["127.0.0.1:1", "127.0.0.1:2"]
    pools = [pool(endpoints, {"name": "prefix_cache"}, probe=False, shadow={})]
    text = "The same long question. " * 50
    async with serving_live(tmp_path, pools) as live, browser.visit(f"{live.url}/") as visit:
        [feedback] = [each.feedback for each in live.app.pools]
        warm = {live.request(text).pick.endpoint.name}
        await asyncio.sleep(0.3)  # until the prompt is read, an idle endpoint is as good
        warm.add(live.request(text).pick.endpoint.name)
        for endpoint in feedback.pool.snapshot.ready.values():
            found = 400.0 if endpoint.name in warm else 0.0
            feedback.apply_signals(
                endpoint, EndpointSignals(queried_tokens=1_000.0, hit_tokens=found)
            )
        await visit.until(DECIDED, 2)
        rows = {row[0]: row[5:7] for row in await visit.table(ROWS.format(1))}
        facts = " ".join((await visit.text("#pools .facts")).split())
        tiles = " ".join((await visit.text("#tiles")).split())
        forecast = await visit.text("#forecast")
        await visit.page.fill("#body", chat_about(text).decode())
        await visit.page.focus("#explain button")
        await visit.page.keyboard.press("Enter")
        await visit.page.wait_for_selector("#told table")
        title = await visit.text("#told h3")
        candidates = await visit.table("#told .wide:last-child table")
        heads = await visit.page.locator("#told .wide:last-child th").all_inner_texts()
        tree = await visit.page.locator("#explain").aria_snapshot()
        # Asked, not sent: the decisions know of two requests.
        await visit.until(DECIDED, 2)

    [name] = warm
    assert title.startswith(f"{name} would get it")
    assert candidates[0][0] == f"{name} ✓"
    assert heads[:3] == ["endpoint", "cost ms", "match tokens"]
    assert int(candidates[0][2]) > 200
    # What is said aloud is the verdict alone.
    assert re.findall(r"- status:((?:\n +.*heading.*)+)\n *- term", tree) != []
    assert rows == {
        name: ["50 %", "40 %"] if name in warm else ["\N{EN DASH}", "0 %"] for name in rows
    }
    # Of a single pool the tiles say it, and its line does not say it again.
    assert "50 % of prompts predicted to be cached" in tiles
    assert "20 % of prompt tokens found in caches" in tiles
    assert "predicted" not in facts
    assert re.match(r"Too early to say: .* Watch for 60 more minutes\. Watched for", forecast)


async def test_the_explain_box_begins_with_a_model_that_is_served_and_says_first_what_is_broken(
    tmp_path: Path, browser: Browser
) -> None:
    pools = [pool(["127.0.0.1:1"], {"name": "prefix_cache"}, models=["llama"], probe=False)]
    async with serving_live(tmp_path, pools) as live, browser.visit(f"{live.url}/") as visit:
        example = await visit.page.input_value("#body")
        broken = await explain(visit, b"{", "#told h3.bad")

    assert '"model": "llama"' in example
    assert "would get it: the body cannot be read: " in broken


async def test_an_endpoint_that_gets_nothing_has_no_bars_of_the_past(
    tmp_path: Path, browser: Browser
) -> None:
    pools = [pool(["127.0.0.1:1", "127.0.0.1:2"], {"name": "prefix_cache"}, probe=False)]
    bar = "wanted => document.querySelector('#pools .gauge.warm i').dataset.v === wanted"
    async with serving_live(tmp_path, pools) as live, browser.visit(f"{live.url}/") as visit:
        [feedback] = [each.feedback for each in live.app.pools]
        endpoint = next(iter(feedback.pool.snapshot.ready.values()))
        feedback.apply_signals(endpoint, EndpointSignals(queried_tokens=10.0, hit_tokens=5.0))
        await visit.until(bar, "0.500")
        live.fail(feedback.pool.name, endpoint.address)
        await visit.until(bar, "0.000")


async def test_hostile_names_are_text(tmp_path: Path, browser: Browser) -> None:
    """An endpoint's name is whoever's names Pods; a refusal quotes a file, an answer a body."""
    pools = [each | {"models": ["simulated"]} for each in write_pool_file(tmp_path, {EVIL: 1})]
    async with serving_live(tmp_path, pools) as live, browser.visit(f"{live.url}/") as visit:
        async with live.watching():
            live.configure((), f"pools: [{{name: '{EVIL}'}}]\n{EVIL}: 1")
            await visit.page.wait_for_selector("#refusal:not([hidden])")
        live.request()
        await visit.page.wait_for_selector("#decisions tr")
        explained = await explain(visit, chat_about("hello"))
        refused = await explain(
            visit, chat_about("hello").replace(b"simulated", EVIL.encode()), "#told .bad"
        )
        texts = await visit.page.locator(
            "#pools tbody th, #decisions th, #refusal"
        ).all_inner_texts()

        assert all(SHOWN in text for text in texts)
        assert len(texts) == 3
        assert SHOWN in explained
        assert SHOWN in refused
        assert await visit.page.locator("img, iframe, object, embed").count() == 0
        # Chromium's own line for an answer of 404: the model that there is not.
        assert [line for line in visit.complaints if "404 (Not Found)" not in line] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_is_read_at_420_pixels_and_its_text_has_contrast(
    tmp_path: Path, browser: Browser, scheme: Literal["light", "dark"]
) -> None:
    pools = write_pool_file(
        tmp_path, {"a-pod-with-a-very-long-name-" + "x" * 60: 1, "b" * 120: 2}, "p" * 60
    )
    async with (
        serving_live(tmp_path, pools) as live,
        browser.visit(f"{live.url}/", width=420, scheme=scheme) as visit,
    ):
        live.request()
        live.fail("p" * 60, "10.0.0.1:1")
        await visit.page.wait_for_selector(".state[data-state=cooling]")
        await visit.page.wait_for_selector("#decisions tr")
        await explain(visit, chat_about("hello " * 99))
        width = await visit.page.evaluate("() => document.documentElement.scrollWidth")
        wide = await visit.page.evaluate(WIDE)
        poor = await visit.page.evaluate(CONTRAST)
        background = await visit.page.evaluate(
            "() => getComputedStyle(document.body).backgroundColor"
        )

    assert width <= 420
    assert (wide, poor) == ([], [])
    assert (sum(map(int, re.findall(r"\d+", background))) > 384) == (scheme == "light")


# Whatever reaches beyond the window, but for what scrolls by itself.
WIDE = """() => [...document.querySelectorAll("body *")]
  .filter((node) => node.getBoundingClientRect().right > innerWidth && !node.closest(".wide, pre"))
  .map((node) => `${node.tagName}.${node.className}`)"""

# Every text with less contrast to what is behind it than WCAG's AA asks for: 4.5.
CONTRAST = Path(__file__).with_name("contrast.js").read_text()


async def test_the_page_has_landmarks_and_headers_and_is_walked_by_keys(
    tmp_path: Path, browser: Browser
) -> None:
    """What a screen reader is told, also where rows are stacked."""
    async with serving_live(tmp_path) as live, browser.visit(f"{live.url}/", width=420) as visit:
        live.request()
        await visit.page.wait_for_selector("#decisions tr")
        tree = await visit.page.locator("body").aria_snapshot()
        focused = []
        for _ in range(9):
            await visit.page.keyboard.press("Tab")
            script = "() => { const e = document.activeElement, s = getComputedStyle(e);"
            script += (
                " return [e.id || e.className || e.tagName, s.outlineStyle + s.outlineWidth]; }"
            )
            focused.append(await visit.page.evaluate(script))
        await visit.page.keyboard.press("Home")

    for landmark in (
        "banner:",
        "main:",
        "contentinfo:",
        'region "All pools together"',
        "status: ready",
    ):
        assert landmark in tree
    figures = ("In flight", "Share of picks")
    for header in ("Endpoint", "State", *figures):
        assert f'columnheader "{header}"' in tree
    assert 'rowheader "127.0.0.1:8001"' in tree
    assert 'table "Endpoints of vllm"' in tree
    assert [name for name, _ in focused[:2]] == ["skip", "pause"]
    assert {"path", "pool", "body"} <= {name for name, _ in focused}
    assert {outline for _, outline in focused} == {"solid3px"}


async def test_a_pause_holds_the_page_still_and_a_hidden_page_does_not_look(
    tmp_path: Path, browser: Browser
) -> None:
    async with serving_live(tmp_path) as live, browser.visit(f"{live.url}/") as visit:
        await visit.page.click("#pause")
        await visit.until("() => document.getElementById('status').textContent === 'paused'")
        live.request()
        # The script has heard of the request, and shows nothing of it.
        await visit.until("() => Object.keys(history.at(-1) || {}).length === 1")
        assert await visit.page.locator("#decisions tr").count() == 0
        assert await visit.text("#pause") == "Resume"
        await visit.page.click("#pause")
        await visit.page.wait_for_selector("#decisions tr")
        recorder = live.app.processor.observer
        await visit.page.evaluate(
            "() => { Object.defineProperty(document, 'hidden', { get: () => true });"
            " document.dispatchEvent(new Event('visibilitychange')); }"
        )
        await until(lambda: live.app.processor.observer is not recorder)

        assert live.app.processor.observer is live.app.metrics


async def test_of_a_thousand_endpoints_those_in_trouble_and_the_busiest_are_shown_first(
    tmp_path: Path, browser: Browser
) -> None:
    addresses = [f"10.{n // 250}.0.{n % 250}:80" for n in range(1_000)]
    pools = [pool(addresses, {"name": "round_robin"}, probe=False)]
    async with serving_live(tmp_path, pools) as live, browser.visit(f"{live.url}/") as visit:
        busy = [live.request().pick.endpoint.name for _ in range(3)]
        live.fail("vllm", addresses[-1])
        await visit.page.wait_for_selector(".state[data-state=cooling]")
        await visit.until(DECIDED, 3)
        first = [row[0] for row in await visit.table("#pools")][:4]
        await visit.page.click("#pools .more")

        assert first == [addresses[-1], *busy]
        await visit.until("() => document.querySelectorAll('#pools tbody tr').length === 1000")
        assert visit.complaints == []


def test_the_page_is_one_file_that_may_do_nothing_but_ask_who_served_it() -> None:
    page = build_page()

    assert page.headers["content-security-policy"].startswith(
        "default-src 'none'; script-src 'sha256-"
    )
    assert "unsafe" not in page.headers["content-security-policy"]
    assert re.findall(r"""\b(?:on[a-z]+|style)=["']""", page.html) == []
    assert re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page.html) == []
    assert "innerHTML" not in page.html
    assert len(page.html) < 60_000
