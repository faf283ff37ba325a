"""The docs: short pages, links that lead somewhere."""

import os
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from docs.generate import stale

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHERS = [
    *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")),
    ROOT / "extproc/router/README.md",
]


def test_the_reference_is_what_the_code_gives() -> None:
    assert stale() == [], "run `make reference`"


def prose(page: Path) -> str:
    """The text without fenced blocks and code spans, which hold no links."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda span: re.sub(r"[\[\]()]", "", span[0]), text)


@cache
def anchors(page: Path) -> frozenset[str]:
    """A page's anchors, as the site and code hosts make them: for words and hyphens they agree."""
    headings = re.findall(r"^#{1,6} (.*)$", prose(page), re.MULTILINE)
    slugs = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings]
    assert len({*slugs}) == len(slugs), page
    assert not [slug for slug in slugs if "--" in slug], page
    return frozenset(slugs)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = re.findall(r'(?:\]\(|(?:src|srcset|href)=")([^)"\s]+)', prose(page))
    inside = [link for link in links if not re.match(r"https?:", link)]
    broken = []
    for link in inside:
        path, _, anchor = link.partition("#")
        target = Path(os.path.normpath(page.parent / path)) if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)
        # The site has the files of docs/ alone.
        if page.is_relative_to(ROOT / "docs") and not target.is_relative_to(ROOT / "docs"):
            broken.append(link)

    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_short(page: Path) -> None:
    assert len(page.read_text().splitlines()) <= (120 if page.name == "README.md" else 250)


def leaves(tree: object) -> Iterator[str]:
    for each in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from [each] if isinstance(each, str) else leaves(each)


def test_the_sites_menu_has_every_page() -> None:
    menu = [*leaves(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])]

    assert sorted(menu) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES[1:])


def test_every_page_is_reached_from_the_first() -> None:
    seen, ahead = set[Path](), [ROOT / "docs" / "index.md"]
    while ahead:
        page = ahead.pop()
        if page not in seen:
            seen.add(page)
            found = re.findall(r"\]\(([^)#\s]+\.md)", prose(page))
            ahead += [Path(os.path.normpath(page.parent / link)) for link in found]

    assert seen == {*PAGES} - {ROOT / "README.md"}


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_written_as_the_site_reads_it(page: Path) -> None:
    text = page.read_text()

    assert re.findall(r"^ {1,3}```.*", text, re.MULTILINE) == []
    assert re.findall(r"^ {4}.*\n\d+\. .*", text, re.MULTILINE) == []
    # The site shows the backslash.
    assert re.findall(r"^\|.*`[^`]*\\\|[^`]*`.*", text, re.MULTILINE) == []
