"""Counts of what became of a pool's requests: answers by endpoint, time to the first byte. Pure.

Plain dictionaries, read when somebody scrapes: a request pays a fifth of what a metrics library would ask.
"""

from collections.abc import Collection
from typing import Final

from extproc.router.feedback.cooling import Change
from extproc.router.feedback.outcome import Outcome, class_of
from extproc.router.histogram import Histogram

# Seconds: from a cached prompt on an idle endpoint to a long one in a queue. vLLM's own
# `time_to_first_token_seconds` uses most of these.
FIRST_BYTE_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)


class Counters:
    """What was counted since the pool exists.

    `answers` by endpoint and class, `coolings` by endpoint; `first_bytes` by the endpoint's zone, empty where
    nobody tells it, and the answer's class; `first_byte_sums` by endpoint: how many, their seconds added up.
    """

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], int] = {}
        self.coolings: dict[str, int] = {}
        self.first_bytes: dict[tuple[str, str], Histogram] = {}
        self.first_byte_sums: dict[str, tuple[int, float]] = {}

    def count(self, name: str, outcome: Outcome, zone: str = "", trace_id: str = "") -> None:
        """Takes what an endpoint's request came to; `trace_id` is empty where nobody traces it."""
        class_ = class_of(outcome)
        self.answers[name, class_] = self.answers.get((name, class_), 0) + 1
        if outcome.first_byte_s is not None:
            times = self.first_bytes.get((zone, class_))
            if times is None:
                times = self.first_bytes[zone, class_] = Histogram(FIRST_BYTE_BOUNDS_S)
            times.count(outcome.first_byte_s, trace_id)
            seen, sum_s = self.first_byte_sums.get(name, (0, 0.0))
            self.first_byte_sums[name] = (seen + 1, sum_s + outcome.first_byte_s)

    def count_change(self, name: str, change: Change) -> None:
        if change is Change.COOLED:
            self.coolings[name] = self.coolings.get(name, 0) + 1

    def keep(self, names: Collection[str]) -> None:
        """Forgets endpoints that are gone: with pods that come and go the counts would only grow."""
        self.answers = {key: count for key, count in self.answers.items() if key[0] in names}
        self.coolings = {name: count for name, count in self.coolings.items() if name in names}
        self.first_byte_sums = {name: sums for name, sums in self.first_byte_sums.items() if name in names}
