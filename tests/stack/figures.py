"""How tests print what clients saw of a fault, for docs/how-to/failures.md: `pytest -s` shows it."""

import sys


def show_figures(what: str, answered: int, asked: int, whole_s: float | None = None) -> None:
    """One row: how many of those who asked meanwhile were answered, and after how long all was whole again."""
    whole = "" if whole_s is None else f", whole after {whole_s:.1f} s"
    sys.stdout.write(f"{what}: {answered:,} of {asked:,} answered{whole}\n")
