"""What a run is doing while it goes, from the load process that looks at itself to who watches.

A load process sends its parent what is new; the parent sends the sum to a terminal (`Display`), to
Prometheus (`Exporter`), to both or to nobody (`watching`).
"""

import asyncio
import signal
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import prometheus_client
from prometheus_client import CollectorRegistry, Gauge, Histogram, start_http_server
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from extproc.bench.measure.words import milliseconds
from extproc.bench.record import Clock
from extproc.errors import ExtprocError, SettingsError


@dataclass(frozen=True, slots=True)
class Goal:
    """When a run is over, as far as that is known before: after so many requests, or so many seconds."""

    requests: int | None = None
    seconds: float | None = None

    def share(self, at_s: float, finished: int) -> float | None:
        """How much of the run is done, from 0 to 1; `None` where the server's speed decides."""
        shares = [
            done / whole
            for done, whole in ((finished, self.requests), (max(0.0, at_s), self.seconds))
            if whole
        ]
        return min(1.0, max(shares)) if shares else None


class Pace:
    """How far an experiment of several runs has come; what is left takes as long as what is done.

    `is_known` is false where `total` is but the most that there may be.
    """

    def __init__(self, total: int, clock: Clock = time.monotonic, *, is_known: bool = True) -> None:
        self._total, self._clock, self._is_known = total, clock, is_known
        self._begun = 0
        self._start_s = clock()

    def begin(self) -> None:
        """Another run begins, and with it the one before it is done."""
        self._begun += 1

    def render(self, share: float | None) -> str:
        """Says which run is at work, of how many, how much of all is done and how long the rest takes."""
        if not self._is_known:
            return f"run {self._begun} of at most {self._total}"
        done = self._find_done(share)
        left_s = (self._clock() - self._start_s) * (1 - done) / done if done else None
        return f"run {self._begun} of {self._total}, {progress_text(done, left_s)}"

    def show(self, share: float | None) -> str:
        """How much of all is done, and never all of it: what ended is no longer under way.

        Where that is not known, which run is at work; of a sole run nothing.
        """
        if not self._is_known:
            return self.render(share)
        if share is None and self._total == 1:
            return ""
        return f"{min(99, int(100 * self._find_done(share)))}%"

    def _find_done(self, share: float | None) -> float:
        return max(0.0, self._begun - 1 + (share or 0.0)) / self._total


def progress_text(share: float | None, left_s: float | None) -> str:
    """`42 %, 3 min left`; what is not known is left out."""
    if share is None:
        return ""
    return (
        f"{share:.0%}" if left_s is None or share >= 1 else f"{share:.0%}, {roughly(left_s)} left"
    )


def roughly(seconds: float) -> str:
    """A time as people say it: `40 s`, `12 min`, `2 h 05 min`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


T = TypeVar("T")

# Percentiles on the screen are of the last so many requests: they follow the run instead of its
# average.
_RECENT = 2000
_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 25, 50, 100)
_TPOT_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075),
    *(0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0),
)
_LAG_BUCKETS_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1)


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """What a run is doing now, summed over its processes; latencies are new since the last one."""

    at_s: float = 0.0
    sent: int = 0
    in_flight: int = 0
    finished: int = 0
    failures: dict[str, int] = field(default_factory=dict)
    ttft_s: tuple[float, ...] = ()
    lag_s: tuple[float, ...] = ()
    e2e_s: tuple[float, ...] = ()
    tpot_s: tuple[float, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    goal: Goal = field(default_factory=Goal)

    @property
    def share(self) -> float | None:
        return self.goal.share(self.at_s, self.finished)

    @property
    def left_s(self) -> float | None:
        """Seconds until the run is over if it goes on as it has; `None` without an estimate."""
        share = self.share
        return self.at_s * (1 - share) / share if share and self.at_s > 0 else None


class Progress(Protocol):
    """Shows a run's progress. Calls come from the event loop about twice a second and return at once."""

    def update(self, snapshot: RunSnapshot) -> None: ...


_TOTALS = ("sent", "in_flight", "finished", "input_tokens", "output_tokens")


def sum_snapshots(snapshots: Sequence[RunSnapshot], news: RunSnapshot, goal: Goal) -> RunSnapshot:
    """Adds up totals on the way to `goal`; latencies are those of the process that has news."""
    failures: Counter[str] = Counter()
    for snapshot in snapshots:
        failures.update(snapshot.failures)
    totals: dict[str, Any] = {
        name: sum(getattr(snapshot, name) for snapshot in snapshots) for name in _TOTALS
    }
    return replace(news, failures=dict(failures), goal=goal, **totals)


class Display:
    """Implements `Progress`; `render` returns what is to be shown."""

    def __init__(self, title: str, live: Live | None = None, pace: Pace | None = None) -> None:
        self._title, self._pace = title, pace
        self._live = live
        self._ttft_s: deque[float] = deque(maxlen=_RECENT)
        self._lag_s: deque[float] = deque(maxlen=_RECENT)
        self._last = RunSnapshot()

    def update(self, snapshot: RunSnapshot) -> None:
        self._last = snapshot
        self._ttft_s.extend(snapshot.ttft_s)
        self._lag_s.extend(snapshot.lag_s)
        if self._live:
            self._live.update(self.render())

    def render(self) -> RenderableType:
        last = self._last
        grid = Table.grid(padding=(0, 3))
        failures = (
            ", ".join(f"{escape(kind)} {count:,}" for kind, count in last.failures.items()) or "0"
        )
        rows = {
            "time": f"{last.at_s:.0f} s   {progress_text(last.share, last.left_s)}".rstrip(),
            "sent": f"{last.sent:,}",
            "in flight": f"{last.in_flight:,}",
            "done": f"{last.finished:,}",
            "errors": failures,
            "TTFT": _points(self._ttft_s),
            "lag": _points(self._lag_s),
        }
        if self._pace is not None:
            rows = {"of all": self._pace.render(last.share), **rows}
        for label, value in rows.items():
            grid.add_row(
                f"[dim]{label}[/]",
                f"[red]{value}[/]" if label == "errors" and last.failures else value,
            )
        return Panel.fit(grid, title=self._title)


def _points(sample_s: Sequence[float]) -> str:
    if not sample_s:
        return milliseconds(None)
    p50, p99 = np.percentile(sample_s, (50, 99))
    return f"p50 {milliseconds(1000 * p50)}   p99 {milliseconds(1000 * p99)}"


class Exporter:
    """Implements `Progress` by keeping metrics up to date in a registry of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
            return Gauge(f"extproc_bench_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(
                f"extproc_bench_{name}_seconds", text, buckets=buckets, registry=registry
            )

        self._totals = {
            "sent": gauge("sent", "Requests sent so far"),
            "finished": gauge("finished", "Requests ended so far, well or not"),
            "in_flight": gauge("in_flight", "Requests sent and not ended"),
        }
        self._failures = gauge("failures", "Requests failed so far", ["kind"])
        self._tokens = gauge("tokens", "Tokens of completed requests so far", ["kind"])
        self._latencies = {
            "ttft_s": histogram(
                "ttft", "Time to first token from the intended start", _TTFT_BUCKETS_S
            ),
            "lag_s": histogram("lag", "How late the client was", _LAG_BUCKETS_S),
            "e2e_s": histogram(
                "e2e", "Time to the last byte from the intended start", _TTFT_BUCKETS_S
            ),
            "tpot_s": histogram("tpot", "Time per output token after the first", _TPOT_BUCKETS_S),
        }
        self._updates = prometheus_client.Counter(
            "extproc_bench_updates", "Times the run reported its state", registry=registry
        )

    def update(self, snapshot: RunSnapshot) -> None:
        for name, total in self._totals.items():
            total.set(getattr(snapshot, name))
        for kind, count in snapshot.failures.items():
            self._failures.labels(kind).set(count)
        for name, latency in self._latencies.items():
            for value_s in getattr(snapshot, name):
                latency.observe(value_s)
        self._tokens.labels("input").set(snapshot.input_tokens)
        self._tokens.labels("output").set(snapshot.output_tokens)
        self._updates.inc()


@contextmanager
def exporting(
    port: int | None, linger_s: float = 0.0, address: str = "0.0.0.0"
) -> Iterator[Exporter | None]:
    """Serves live metrics if a port is given, and `linger_s` longer, so that the last scrape sees the end.

    A signal ends the lingering. Raises `SettingsError` if the port cannot be had.
    """
    if port is None:
        yield None
        return

    async def linger(stop: asyncio.Event) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), linger_s)

    registry = CollectorRegistry()
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        raise SettingsError(f"metrics port {port}: {error.strerror}") from None
    try:
        yield Exporter(registry)
        if linger_s:
            run_until_signal(linger)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run_until_signal(work: Callable[[asyncio.Event], Awaitable[T]]) -> T:
    """Runs `work` in an event loop; the first SIGINT or SIGTERM sets its event, a second one cancels it."""

    async def obey() -> T:
        stop, task, loop = asyncio.Event(), asyncio.current_task(), asyncio.get_running_loop()

        def on_signal() -> None:
            if stop.is_set() and task is not None:
                task.cancel()
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        return await work(stop)

    try:
        return asyncio.run(obey())
    except asyncio.CancelledError:
        raise ForcedExit("two signals to end: there is no report") from None


class ForcedExit(ExtprocError):
    """Two signals ended a run at once."""


class _Watchers(list[Progress]):
    """Implements `Progress` by passing each call on to several others."""

    def update(self, snapshot: RunSnapshot) -> None:
        for watcher in self:
            watcher.update(snapshot)


@contextmanager
def watching(
    title: str, console: Console, *others: Progress | None, quiet: bool, pace: Pace | None = None
) -> Iterator[Progress]:
    """Yields what shows the state of a run: the terminal unless `quiet`, and `others`.

    A pipe gets the display's last state only.
    """
    watchers = _Watchers(other for other in others if other is not None)
    if quiet:
        yield watchers
        return
    with Live(console=console, refresh_per_second=4) as live:
        watchers.append(Display(title, live, pace))
        yield watchers
    if not console.is_terminal:
        # On a pipe Live leaves the line open, and a Job's log has both streams.
        console.line()
