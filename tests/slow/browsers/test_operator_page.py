"""The page of all runs in a real Chromium."""

from pathlib import Path
from typing import Literal

import pytest

from extproc.bench.measure.words import DASH
from tests.operator.statuses import EVIL, everything, serving_bodies, write_report
from tests.stack.browser import Browser, find_chromium

pytestmark = pytest.mark.skipif(find_chromium() is None, reason="needs chromium")


@pytest.mark.parametrize(("width", "scheme"), [(420, "dark"), (1200, "light")])
async def test_page_of_all_runs_is_read_on_a_desk_and_on_a_telephone(
    browser: Browser, tmp_path: Path, width: int, scheme: Literal["light", "dark"]
) -> None:
    """Rows lead to runs, figures are drawn, reports linked; nothing is fetched, runs or complains."""
    known = everything()
    run = known["default", "chat"]["status"]["history"][0]["run"]
    write_report(tmp_path / "reports", known["default", "chat"], run)
    async with (
        serving_bodies(known, tmp_path / "reports") as url,
        browser.visit(f"{url}/", width=width, scheme=scheme, ready="h1") as visit,
    ):
        rows = await visit.table(".table:first-of-type")
        text = await visit.text()
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
    assert (verdicts["default/slower"], verdicts["other/cut-short"]) == (
        "valid",
        "invalid: partial",
    )
    assert at == "default/slower"
    assert charts >= 6
    assert links == 1
    assert EVIL in text
    assert images == 0
    assert "interrupted after 3.0 s" in text
    assert [asked for asked in visit.requests if not asked.startswith((url, "data:"))] == []
    assert visit.complaints == []
    assert wide <= width
