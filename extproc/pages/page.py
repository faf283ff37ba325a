"""The pieces of a page, and other people's texts as HTML."""

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from unicodedata import category


@dataclass(frozen=True, slots=True)
class PageLink:
    """A cell of a table that leads elsewhere."""

    text: str
    href: str


Cell = str | PageLink


def html_page(title: str, subtitle: str, parts: Iterable[str]) -> str:
    """A whole document; the parts are HTML, the texts are not."""
    template = Template(files("extproc.pages").joinpath("page.html").read_text("utf-8"))
    texts = {"title": escape(title), "subtitle": escape(subtitle), "body": "\n".join(parts)}
    return template.substitute(texts, style=style())


def style() -> str:
    """The style sheet of all our pages."""
    return files("extproc.pages").joinpath("style.css").read_text("utf-8")


def remarks(texts: Sequence[str], css: str = ' class="remarks"') -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul{css}>{items}</ul>" if texts else ""


def notice(text: str, reasons: Sequence[str], *, is_good: bool, is_doubtful: bool = False) -> str:
    css = "banner bad" if not is_good else "banner doubtful" if is_doubtful else "banner"
    return f'<div class="{css}"><strong>{escape(text)}</strong>{remarks(reasons, css="")}</div>'


def tiles(figures: Mapping[str, str]) -> str:
    """Large figures with their names below."""
    boxes = (
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value in figures.items()
    )
    return f'<div class="tiles">{"".join(boxes)}</div>'


def cards(plots: Mapping[str, str]) -> str:
    """Plots (SVG) under their titles, two in a row where there is room."""
    boxes = (
        f'<section class="card"><h3>{escape(title)}</h3>{svg}</section>'
        for title, svg in plots.items()
    )
    return f'<div class="cards">{"".join(boxes)}</div>'


def anchored_heading(text: str, anchor: str) -> str:
    """The title of a section that a `PageLink` leads to."""
    return f'<h2 id="{escape(anchor)}">{escape(text)}</h2>'


def table(title: str, header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table under its title, if it has one; the keyboard reaches it, to move what is too wide."""

    def link(at: Cell) -> str:
        return (
            escape(at)
            if isinstance(at, str)
            else f'<a href="{escape(at.href)}">{escape(at.text)}</a>'
        )

    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(f'<td>{link(cell)}</td>' for cell in row)}</tr>" for row in rows)
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    return (
        f'{heading}<div class="card table" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def definitions(terms: Mapping[str, str]) -> str:
    pairs = "".join(
        f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in terms.items()
    )
    return f'<h2>Definitions</h2><div class="card"><dl>{pairs}</dl></div>'


def folded(title: str, text: str) -> str:
    """Preformatted text that opens on a click."""
    return f'<details class="card"><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>'


def escape(text: str) -> str:
    """As `html.escape`, without characters that turn a line around or hide in it.

    A name must not change how its neighbours read. The live page does the same (`page.js`).
    """
    shown = ("\ufffd" if category(char)[0] == "C" and char not in "\n\t" else char for char in text)
    return html.escape("".join(shown))
