"""What is noted of a run: its requests, its load processes, the endpoints' counters. No figures.

Every figure in a report derives from this.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from extproc.bench.spec.tree import Spec

Clock = Callable[[], float]

# The failure of a request that was in flight when its run was ended: not the server's doing.
INTERRUPTED = "interrupted"
# A load process whose requests cannot connect so often in a row gives up: no server listens.
GIVE_UP_AFTER = 20


class RunClock:
    """Seconds since the start of the run, on the machine's monotonic clock that all processes share."""

    def __init__(self, monotonic: Clock = time.monotonic) -> None:
        self._monotonic = monotonic
        self._start_s = monotonic()

    def start_at(self, monotonic_s: float) -> None:
        """Puts zero at that reading of the monotonic clock."""
        self._start_s = monotonic_s

    def __call__(self) -> float:
        return self._monotonic() - self._start_s


class TokenSource(StrEnum):
    """Who counted a request's tokens."""

    SERVER = "server"
    TOKENIZER = "tokenizer"
    ESTIMATE = "estimate"


@dataclass(slots=True)
class Record:
    """One request, from intention to last byte.

    All times are seconds on the run's clock (0 = start of the run); `None` means it never came.
    `intended_s` is the time in the schedule; `admitted_s` when the concurrency cap let the request
    through (`intended_s` if it was never held); `started_s` when the client took it up: `started_s
    - admitted_s` is the client's own lag. `sent_s` is the time the request's bytes were written.
    `chunk_s` holds the arrival of every chunk with non-empty content or reasoning, the first
    token's included; a role-only or usage chunk is not one. `failure` is one of a few fixed words,
    `failure_detail` what the server said. `is_last`: the conversation has no further turn.
    """

    index: int
    session: int
    turn: int
    intended_s: float
    admitted_s: float | None = None
    started_s: float | None = None
    sent_s: float | None = None
    first_byte_s: float | None = None
    first_token_s: float | None = None
    end_s: float | None = None
    chunk_s: list[float] = field(default_factory=list)
    input_tokens: int = 0
    output_tokens: int = 0
    token_source: TokenSource = TokenSource.ESTIMATE
    estimated_input_tokens: int = 0
    estimated_output_tokens: int = 0
    cached_tokens: int | None = None
    endpoint: str | None = None
    status: int | None = None
    failure: str | None = None
    failure_detail: str = ""
    retry_after_s: float | None = None
    text: str = ""
    is_last: bool = False

    @property
    def is_ok(self) -> bool:
        return self.failure is None and self.end_s is not None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come; a request that was never sent has no end."""
        return self.end_s is not None or self.failure is not None

    @property
    def lag_s(self) -> float | None:
        """How late the client itself was, the cap's wait not counted; `None` if it never started."""
        if self.started_s is None or self.admitted_s is None:
            return None
        return self.started_s - self.admitted_s


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
    """How one load process fared. `cap` is its share of the concurrency, full for `cap_full_s`.

    `has_given_up`: it ended early, as `GIVE_UP_AFTER` requests in a row could not connect.
    """

    process: int
    cpu_s: float
    wall_s: float
    cap: int | None
    cap_full_s: float
    samples: tuple[LoopSample, ...]
    has_given_up: bool = False


@dataclass(frozen=True, slots=True)
class PartStats:
    """One part of a run on several machines: its share are `starts`, or `users` of a closed loop.

    `start_at` is when it began by its own clock, `clock_offset_s` how far that was ahead of the
    server's, as far as the server says. `lost`: why its journal is missing or ends early.
    """

    number: int
    count: int
    starts: int = 0
    users: int = 0
    start_at: float = 0.0
    clock_offset_s: float | None = None
    records: int = 0
    lost: str | None = None

    @property
    def share(self) -> str:
        """Its share of the load in words; empty where it is not known."""
        if self.starts:
            return f"{self.starts:,} starts"
        return f"{self.users:,} users" if self.users else ""


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """Prefix-cache counters in tokens: of an endpoint, summed over its engines, or what they rose by."""

    queries: float
    hits: float

    @property
    def hit_rate(self) -> float | None:
        """Hit tokens per queried token; `None` without queries."""
        return self.hits / self.queries if self.queries > 0 else None


@dataclass(frozen=True, slots=True)
class EndpointScrape:
    """An endpoint's counters before and after a run; `None` where the scrape failed."""

    endpoint: str
    before: CacheCounters | None
    after: CacheCounters | None

    @property
    def rise(self) -> CacheCounters:
        """What was counted during the run; nothing where a scrape failed."""
        if self.before is None or self.after is None:
            return CacheCounters(0.0, 0.0)
        queries, hits = self.after.queries - self.before.queries, self.after.hits - self.before.hits
        return CacheCounters(queries, hits)

    @property
    def hit_rate(self) -> float | None:
        return self.rise.hit_rate


@dataclass(frozen=True, slots=True)
class FleetSample:
    """The endpoints at one time: how many were ready; requests running and waiting in all of them together.

    `kv_use` is the mean share of a KV cache in use. `None`: no endpoint had a figure.
    """

    at_s: float
    ready: int
    running: float | None
    waiting: float | None
    kv_use: float | None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The facts about a run.

    `schedule_s` holds the offered starts (of requests, or of conversations in sessions), whether
    sent or not; it is empty in a closed loop. `offered_rps` is the request rate that the schedule
    asks for. `prompts`: how many requests the dataset holds before it begins again.
    `interrupted_s`: when the run was ended before its time. `fleet`: the endpoints every few
    seconds, if they were watched. `parts`: the shares of a run on several machines, its own of one
    part. `cut_lines`: lines of its journal that end half-way.
    """

    spec: Spec
    model: str
    started_at: datetime
    window: Window
    schedule_s: tuple[float, ...]
    offered_rps: float | None
    duration_s: float = 0.0
    clients: tuple[ClientStats, ...] = ()
    scrapes: tuple[EndpointScrape, ...] = ()
    prompts: int | None = None
    interrupted_s: float | None = None
    fleet: tuple[FleetSample, ...] = ()
    parts: tuple[PartStats, ...] = ()
    cut_lines: int = 0

    @property
    def offered_until_s(self) -> float:
        """Until when the load was offered; answers come later."""
        traffic = self.spec.traffic
        return self.interrupted_s or traffic.duration or self.window.end_s + traffic.cool_down


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run; records are in the order of `index`."""

    info: RunInfo
    records: tuple[Record, ...]
