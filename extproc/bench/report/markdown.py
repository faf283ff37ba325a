"""Tables as Markdown, aligned so that they read well as plain text, too."""

from collections.abc import Iterable, Sequence


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column left, the others right; a newline at the end."""
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(3, *(len(line[column]) for line in lines)) for column in range(len(header))]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "".join(f"| {' | '.join(_pad(line, widths))} |\n" for line in [lines[0], rule, *lines[1:]])


def _pad(line: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [
        cell.rjust(width) if column else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
