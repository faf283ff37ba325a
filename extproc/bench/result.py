"""What a run hands to reports and the verdict: its records and the facts about the run itself."""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from extproc.bench.record import Record
from extproc.bench.spec.tree import Spec


@dataclass(frozen=True, slots=True)
class Window:
    """The steady part of a run: intended starts in `[start_s, end_s)` on the run's clock."""

    start_s: float
    end_s: float

    def holds(self, record: Record) -> bool:
        return self.start_s <= record.intended_s < self.end_s


@dataclass(frozen=True, slots=True)
class LoopSample:
    """One look at a load process: how late its event loop woke and what was in flight then."""

    at_s: float
    lag_s: float
    in_flight: int


@dataclass(frozen=True, slots=True)
class ClientStats:
    """How one load process fared. `cap` is its share of the concurrency, full for `cap_full_s`."""

    process: int
    cpu_s: float
    wall_s: float
    cap: int | None
    cap_full_s: float
    samples: tuple[LoopSample, ...]


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """An endpoint's prefix-cache counters, in tokens, summed over its engines."""

    queries: float
    hits: float


@dataclass(frozen=True, slots=True)
class EndpointScrape:
    """An endpoint's counters before and after a run; `None` where the scrape failed."""

    endpoint: str
    before: CacheCounters | None
    after: CacheCounters | None

    @property
    def hit_rate(self) -> float | None:
        """Hit tokens per queried token during the run; `None` without both scrapes or queries."""
        if self.before is None or self.after is None or self.after.queries <= self.before.queries:
            return None
        return (self.after.hits - self.before.hits) / (self.after.queries - self.before.queries)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The facts about a run.

    `schedule_s` holds the offered starts (of requests, or of conversations in sessions), whether sent
    or not; it is empty in a closed loop. `offered_rps` is the request rate that the schedule asks for.
    """

    spec: Spec
    model: str
    started_at: datetime
    duration_s: float
    window: Window
    schedule_s: tuple[float, ...]
    offered_rps: float | None
    clients: tuple[ClientStats, ...]
    scrapes: tuple[EndpointScrape, ...]


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run; records are in the order of `index`."""

    info: RunInfo
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a run is doing now, summed over its processes. `ttft_s` and `lag_s` are new since the last one."""

    at_s: float
    sent: int
    in_flight: int
    finished: int
    failures: dict[str, int]
    ttft_s: tuple[float, ...]
    lag_s: tuple[float, ...]


class Progress(Protocol):
    """Who watches a run. Calls come from the event loop about twice a second and return at once."""

    def update(self, snapshot: Snapshot) -> None: ...
