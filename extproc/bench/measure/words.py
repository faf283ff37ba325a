"""How figures are written for people: a missing one is a dash, a table is Markdown."""

from collections.abc import Iterable, Sequence

Table = tuple[Sequence[str], Iterable[Sequence[str]]]
"""A header and rows, for the terminal and for a page."""


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column left, the others right; a newline at the end."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "".join(
        f"| {' | '.join(_pad(line, widths))} |\n" for line in [lines[0], rule, *lines[1:]]
    )


def _pad(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if column else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]


DASH = "–"  # noqa: RUF001  (an en dash is what is meant)


def fixed(value: float | None, digits: int = 2) -> str:
    return DASH if value is None else f"{value:,.{digits}f}"


def percent(value: float | None) -> str:
    return DASH if value is None else f"{100 * value:.1f} %"


def significant(value: float) -> str:
    """Three figures of a ratio, its zeros included: `1.40`, `14.0`, `140`."""
    return (
        f"{value:#.3g}"
        if value < 1
        else f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
    )


def milliseconds(value: float | None) -> str:
    """Three figures' worth: `0.42 ms`, `41.2 ms`, `1.31 s`."""
    if value is None:
        return DASH
    if value >= 1000:
        return f"{value / 1000:,.2f} s"
    return f"{value:.1f} ms" if value >= 10 else f"{value:.2f} ms"
