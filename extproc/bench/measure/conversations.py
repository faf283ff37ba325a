"""What became of whole conversations: k6 calls them iterations. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from extproc.bench.record import INTERRUPTED, Record


@dataclass(frozen=True, slots=True)
class Conversations:
    """`complete` ones were answered to their last turn, `interrupted` ones cut off by the run's end.

    `failed` ones ended with an answer that failed. `dropped` ones should have been begun and were not.
    """

    complete: int
    interrupted: int
    failed: int
    dropped: int

    def __str__(self) -> str:
        shown = {"complete": self.complete, "interrupted": self.interrupted}
        shown |= {"failed": self.failed} if self.failed else {}
        return ", ".join(f"{n:,} {name}" for name, n in (shown | {"dropped": self.dropped}).items())


def count_conversations(records: Iterable[Record], wanted: int | None) -> Conversations:
    """Counts what was begun by its last turn; `wanted` is how many there should have been."""
    last: dict[int, Record] = {}
    for record in records:
        if record.session not in last or last[record.session].turn < record.turn:
            last[record.session] = record
    ends = Counter(_name_end(record) for record in last.values())
    dropped = ends["dropped"] + max(0, (wanted or 0) - len(last))
    return Conversations(ends["complete"], ends["interrupted"], ends["failed"], dropped)


def _name_end(last: Record) -> str:
    if last.started_s is None and not last.turn:
        return "dropped"
    if last.failure == INTERRUPTED or (last.is_ok and not last.is_last):
        return "interrupted"
    return "complete" if last.is_ok else "failed"
