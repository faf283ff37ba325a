"""One row per request: its record without text, and every measure in milliseconds."""

import csv
import io

from extproc.bench.measure.measures import MEASURES
from extproc.bench.record import Record, RunResult

_FIELDS = (
    "index",
    "session",
    "turn",
    "intended_s",
    "admitted_s",
    "started_s",
    "sent_s",
    "first_byte_s",
    "first_token_s",
    "end_s",
    "input_tokens",
    "output_tokens",
    "token_source",
    "estimated_input_tokens",
    "estimated_output_tokens",
    "cached_tokens",
    "endpoint",
    "status",
    "failure",
    "failure_detail",
    "retry_after_s",
)


def csv_table(result: RunResult) -> str:
    """A header and a line per request; what a request does not have is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_FIELDS, "chunks", *(f"{name}_ms" for name in MEASURES)])
    writer.writerows(_row(record) for record in result.records)
    return text.getvalue()


def _row(record: Record) -> list[object]:
    figures = [measure(record) for measure in MEASURES.values()]
    return [
        *(getattr(record, name) for name in _FIELDS),
        len(record.chunk_s),
        *(None if value is None else round(value * 1000, 6) for value in figures),
    ]
