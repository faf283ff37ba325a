"""Bugs for a real service to have: a `sitecustomize` that is on the path of the service's process alone."""

from pathlib import Path

HOARD_BYTES = 250_000_000

_BUGS = f"""
import sys

if "serve" in sys.orig_argv:
    from extproc.router.routing.picker import Picker

    find, hoard = Picker.find, []

    def find_or_fail(self, ask, *rest):
        body = bytes(ask.body or b"")
        if b"plant a bug" in body:
            raise RuntimeError("planted")
        if b"plant a leak" in body and not hoard:
            hoard.append(b"x" * {HOARD_BYTES})
        return find(self, ask, *rest)

    Picker.find = find_or_fail
"""


def plant(folder: Path) -> Path:
    """Writes the bugs, which prompts wake: `plant a bug`, `plant a leak`; returns what `PYTHONPATH` needs."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_BUGS)
    return folder
