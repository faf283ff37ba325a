"""The page: one document with its style and its script in it, and the headers that let it do nothing else."""

import json
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Final

from msgspec import Struct

from extproc.pages.page import style
from extproc.router.routing.strategies.base import Reason
from extproc.router.routing.strategies.registry import STRATEGIES

_ROOM: Final = "extproc.router.service.live"
_CLASSES: Final = {
    "blue": "s0",
    "orange": "s1",
    "green": "s2",
    "magenta": "s3",
    "red": "s4",
    "grey": "s5",
    "cyan": "s6",
    "yellow": "s7",
}


class LivePage(Struct, frozen=True):
    html: str
    headers: dict[str, str]


def build_page(reasons: Mapping[str, Reason] = STRATEGIES.reasons) -> LivePage:
    """Reads the three files that make the page; `reasons` are those that picks may have."""
    table = {word: (_CLASSES[reason.colour], reason.meaning) for word, reason in reasons.items()}
    table["refused"] = ("refused", "answered by the service itself")
    css = f"{style()}{_read('page.css')}"
    script = _read("page.js").replace("{/* reasons */}", json.dumps(table))
    html = Template(_read("page.html")).substitute(style=css, script=script)
    # The page may only connect to the server that it came from.
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(css)}; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return LivePage(
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
