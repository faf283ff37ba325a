"""Pages in a real Chromium, over Playwright: what they fetched and what their console said are kept."""

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from playwright.async_api import Page, async_playwright

from tests.stack.fetch import answers
from tests.stack.ports import free_ports
from tests.stack.process import Process

# The machine may be busy.
PATIENCE_MS = 60_000


def find_chromium() -> str | None:
    return shutil.which("chromium")


@dataclass
class Visit:
    """An open page. `requests` are the URLs it requested, `complaints` what its console said."""

    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    async def table(self, selector: str) -> list[list[str]]:
        """The cells of a table's body, as text."""
        script = "rows => rows.map(row => [...row.children].map(cell => cell.innerText.trim()))"
        cells: list[list[str]] = await self.page.locator(f"{selector} tbody tr").evaluate_all(
            script
        )
        return cells

    async def text(self, selector: str = "body") -> str:
        return await self.page.locator(selector).inner_text()

    async def until(self, claim: str, argument: Any = None) -> None:
        """Waits until an expression over the document holds."""
        await self.page.wait_for_function(claim, arg=argument, timeout=PATIENCE_MS)


class Browser(Process):
    """A headless Chromium that many tests share: to start one takes longer than a test."""

    def __init__(self, directory: Path) -> None:
        [port] = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        options = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-sync",
        )
        quiet = ("--disable-background-networking", "--disable-component-update")
        own = (f"--remote-debugging-port={port}", f"--user-data-dir={directory / 'profile'}")
        super().__init__(
            "chromium", [find_chromium() or "chromium", *options, *quiet, *own], directory
        )

    def is_ready(self) -> bool:
        return answers(f"{self.url}/json/version")

    @asynccontextmanager
    async def visit(
        self,
        url: str,
        *,
        width: int = 1200,
        height: int = 900,
        scheme: Literal["light", "dark"] = "light",
        ready: str = "#status:not([data-state=wait])",
    ) -> AsyncGenerator[Visit]:
        """Opens a page in a profile of its own, and waits until it says how the service is."""
        async with async_playwright() as playwright:
            browser = await playwright.chromium.connect_over_cdp(self.url, timeout=PATIENCE_MS)
            size: Any = {"width": width, "height": height}
            context = await browser.new_context(viewport=size, color_scheme=scheme)
            try:
                page = await context.new_page()
                page.set_default_timeout(PATIENCE_MS)
                visit = Visit(page)
                page.on("request", lambda request: visit.requests.append(request.url))
                page.on("console", lambda message: visit.complaints.append(message.text))
                page.on("pageerror", lambda error: visit.complaints.append(str(error)))
                await page.goto(url)
                await page.wait_for_selector(ready)
                yield visit
            finally:
                await context.close()


async def check_file(path: Path, folder: Path, words: str) -> None:
    """Opens a local page: it shows `words`, fetches nothing, and its console has nothing to say."""
    with Browser(folder) as browser:
        browser.wait_ready()
        async with browser.visit(path.as_uri(), ready="body") as visit:
            text = await visit.text()

    assert words in text
    assert [url for url in visit.requests if not url.startswith("data:")] == [path.as_uri()]
    assert visit.complaints == []
