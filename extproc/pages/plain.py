"""Texts that others wrote, as HTML."""

import html
from unicodedata import category


def escape(text: str) -> str:
    """As `html.escape`, without what turns a line around, or hides in it.

    A name must not change how its neighbours read. The live page does the same (`page.js`).
    """
    return html.escape(text if text.isprintable() else "".join(map(_show, text)))


def _show(character: str) -> str:
    return "\ufffd" if category(character)[0] == "C" and character not in "\n\t" else character
