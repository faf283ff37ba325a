"""The docs: short pages, links that lead somewhere."""

import os
import re
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml

from docs.generate import stale
from extproc.router.settings.reading import parse_settings

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
OTHERS = [
    *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")),
    ROOT / "extproc/router/README.md",
    *sorted((ROOT / "examples").rglob("*.md")),
]


def test_the_reference_is_what_the_code_gives() -> None:
    assert stale() == [], "run `make reference`"


def test_nothing_advises_to_install_what_no_index_has() -> None:
    texts = [*PAGES, *OTHERS, *(ROOT / "envoy").rglob("*.py"), *(ROOT / "extproc").rglob("*.py")]
    assert [path for path in texts if re.search("pip install '?extproc", path.read_text())] == []


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


def broken(page: Path) -> Iterator[str]:
    """The links of a page that lead nowhere; the site has the files of docs/ alone."""
    for link in re.findall(r'(?:\]\(|(?:src|srcset|href)=")([^)"\s]+)', prose(page)):
        path, _, anchor = link.partition("#")
        target = Path(os.path.normpath(page.parent / path)) if path else page
        is_outside = page.is_relative_to(DOCS) and not target.is_relative_to(DOCS)
        if not re.match(r"https?:", link) and (
            is_outside or not target.is_file() or (anchor and anchor not in anchors(target))
        ):
            yield f"{page.relative_to(ROOT)}: {link}"


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    assert [link for page in [*PAGES, *OTHERS] for link in broken(page)] == []


def test_pages_are_short() -> None:
    lengths = {str(page.relative_to(ROOT)): len(page.read_text().splitlines()) for page in PAGES}

    assert lengths.pop("README.md") <= 120
    assert {page: length for page, length in lengths.items() if length > 250} == {}


def test_the_map_names_every_house_and_every_file_of_the_ground_floor() -> None:
    package = ROOT / "extproc"
    plan = (DOCS / "maintaining.md").read_text().partition("## The map")[2].partition("```\n\n")[0]
    files = {path.name for path in package.glob("*.py") if not path.name.startswith("__")}
    houses = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}

    assert {name for name in files | houses if name not in plan.split()} == set()


def leaves(tree: object) -> Iterator[str]:
    for each in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from [each] if isinstance(each, str) else leaves(each)


def test_the_sites_menu_has_every_page() -> None:
    menu = [*leaves(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"])]

    assert sorted(menu) == sorted(str(page.relative_to(DOCS)) for page in PAGES[1:])


def test_every_page_is_reached_from_the_first() -> None:
    seen, ahead = set[Path](), [DOCS / "index.md"]
    while ahead:
        page = ahead.pop()
        if page not in seen:
            seen.add(page)
            found = re.findall(r"\]\(([^)#\s]+\.md)", prose(page))
            ahead += [Path(os.path.normpath(page.parent / link)) for link in found]

    assert seen == {*PAGES} - {ROOT / "README.md"}


def test_pages_are_written_as_the_site_reads_them() -> None:
    """Blocks in lists stand four spaces in, an empty line is behind them; no pipe is in a table's code."""
    wrong = (r"^ {1,3}```.*", r"^ {4}.*\n\d+\. .*", r"^\|.*`[^`]*\\\|[^`]*`.*")
    text = "\n".join(page.read_text() for page in PAGES[1:])

    assert [found for form in wrong for found in re.findall(form, text, re.MULTILINE)] == []


def test_every_configuration_can_be_used() -> None:
    found = 0
    for page in PAGES:
        for block in re.findall(
            r"^ *```yaml\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE
        ):
            [tree, *_] = yaml.safe_load_all(textwrap.dedent(block))
            if isinstance(tree, dict) and tree.keys() <= {"server", "pools", "share"}:
                whole = {
                    "pools": [{"name": "a", "endpoints": {"static": ["10.0.0.1:8000"]}}],
                    **tree,
                }
                assert parse_settings(yaml.safe_dump(whole), {}).pools, page
                found += 1
    for path in ROOT.glob("examples/*/*.yaml"):
        if "pools:" in path.read_text():
            assert parse_settings(path.read_bytes(), {}).pools, path

    assert found > 6
