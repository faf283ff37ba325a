"""What became of whole conversations: k6 calls them iterations. Pure."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from extproc.bench.record import INTERRUPTED, Record


@dataclass(frozen=True, slots=True)
class Conversations:
    """`durations_s` of those that were completed, from the first intended start to the last byte.

    `interrupted` were broken off by the run's end, in a turn or between two.
    """

    durations_s: tuple[float, ...]
    interrupted: int

    @property
    def completed(self) -> int:
        return len(self.durations_s)


def count_conversations(records: Sequence[Record]) -> Conversations:
    """Follows every conversation that was begun; one that failed is neither completed nor interrupted."""
    turns: defaultdict[int, list[Record]] = defaultdict(list)
    for record in records:
        turns[record.session].append(record)
    return Conversations(
        durations_s=tuple(ended_s for one in turns.values() if (ended_s := _last_s(one)) is not None),
        interrupted=sum(_is_interrupted(one) for one in turns.values()),
    )


def _last_s(turns: Sequence[Record]) -> float | None:
    last = max(turns, key=lambda record: record.turn)
    first_s = min(record.intended_s for record in turns)
    return last.end_s - first_s if last.is_last and last.is_ok and last.end_s is not None else None


def _is_interrupted(turns: Sequence[Record]) -> bool:
    last = max(turns, key=lambda record: record.turn)
    return last.failure == INTERRUPTED or (last.is_ok and not last.is_last)
