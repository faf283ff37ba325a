"""The page: one document with its style and its script in it, and the headers that let it do nothing else."""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Final

from msgspec import Struct

from extproc.pages.page import style

_ROOM: Final = "extproc.router.service.live"


class Page(Struct, frozen=True):
    html: str
    headers: dict[str, str]


def build_page() -> Page:
    """Reads the three files that make the page."""
    css, script = f"{style()}{_read('page.css')}", _read("page.js")
    html = Template(_read("page.html")).substitute(style=css, script=script)
    # Besides itself the page may only talk to who served it.
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(css)}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(
        html,
        {
            "content-security-policy": policy,
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            "cache-control": "no-cache",
        },
    )


def _read(name: str) -> str:
    return files(_ROOM).joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
