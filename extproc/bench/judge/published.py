"""Published results as a table: one row per strategy, cap and rate, in the columns of KubeAI's."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from extproc.bench.judge.verdict import Cell
from extproc.errors import ExtprocError

COLUMNS = (
    "max_concurrency",
    "request_rate",
    "strategy",
    "requests",
    "duration_s",
    "input_tokens",
    "output_tokens",
    "req_per_s",
    "output_tok_per_s",
    "total_tok_per_s",
    *(f"{measure}_{point}_ms" for measure in ("ttft", "tpot", "itl") for point in ("mean", "median", "p99")),
)


class PublishedError(ExtprocError):
    """A table lacks a column or holds something that is no number."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published result: what names it, and its figures by column."""

    strategy: str
    figures: Mapping[str, float]

    @property
    def cap(self) -> int:
        return int(self.figures["max_concurrency"])

    @property
    def cell(self) -> Cell:
        """What the verdict needs to know of it."""
        figures = self.figures
        return Cell(
            requests=int(figures["requests"]),
            duration_s=figures["duration_s"],
            rate=figures["request_rate"],
            cap=self.cap,
            ttft_mean_s=figures["ttft_mean_ms"] / 1000,
            itl_mean_s=figures["itl_mean_ms"] / 1000,
            output_tokens=int(figures["output_tokens"]),
        )


def read_published(lines: Iterable[str]) -> list[Row]:
    """Reads CSV with the header `COLUMNS`, in any order; raises `PublishedError`."""
    reader = csv.DictReader(lines)
    missing = set(COLUMNS) - set(reader.fieldnames or ())
    if missing:
        raise PublishedError(f"the table lacks columns: {', '.join(sorted(missing))}")
    return [_row(fields) for fields in reader]


def _row(fields: Mapping[str, str]) -> Row:
    try:
        figures = {name: float(fields[name]) for name in COLUMNS if name != "strategy"}
    except (TypeError, ValueError) as error:
        raise PublishedError(
            f"the row {list(fields.values())} holds something that is no number: {error}"
        ) from None
    return Row(fields["strategy"], figures)
