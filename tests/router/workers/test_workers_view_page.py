"""The live page over two workers, in a real Chromium."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.router.workers.crew import working
from tests.slow.browsers.browser import Browser, find
from tests.stack.client import ask

pytestmark = pytest.mark.skipif(find() is None, reason="needs chromium")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as running:
        running.wait_ready()
        yield running


async def test_the_page_shows_two_workers_as_one_service(tmp_path: Path, browser: Browser) -> None:
    async with working(tmp_path) as crew, browser.visit(f"{crew.url}/") as visit:
        await crew.request(0, 2)
        await crew.request(1, 3)
        await visit.until("() => document.querySelectorAll('#decisions tr').length === 5")
        rows = await visit.table("#pools section:nth-of-type(1) table")
        await visit.page.fill("#body", ask("hello").decode())
        await visit.page.click("#explain button")
        await visit.page.wait_for_selector("#told h3")
        await visit.page.click("summary")
        await visit.until("() => document.getElementById('config-text').textContent.includes('prefix_hash')")
        status = await visit.page.locator("#status").inner_text()

        assert sum(int(row[2].partition("/")[0]) for row in rows) == 5
        assert sum(int(row[3].removesuffix(" %")) for row in rows) in range(99, 102)
        assert (status, visit.complaints) == ("ready", [])
