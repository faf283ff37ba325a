"""A run on the terminal while it goes."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table

from extproc.bench.measure.words import milliseconds
from extproc.bench.result import Progress, Snapshot

# Percentiles on the screen are of the last so many requests: they follow the run instead of its average.
_RECENT = 2000


class Display:
    """Implements `Progress`; `render` returns what is to be shown."""

    def __init__(self, title: str, live: Live | None = None) -> None:
        self._title = title
        self._live = live
        self._ttft_s: deque[float] = deque(maxlen=_RECENT)
        self._lag_s: deque[float] = deque(maxlen=_RECENT)
        self._last = Snapshot(0.0, 0, 0, 0, {}, (), ())

    def update(self, snapshot: Snapshot) -> None:
        self._last = snapshot
        self._ttft_s.extend(snapshot.ttft_s)
        self._lag_s.extend(snapshot.lag_s)
        if self._live:
            self._live.update(self.render())

    def render(self) -> RenderableType:
        last = self._last
        grid = Table.grid(padding=(0, 3))
        failures = ", ".join(f"{escape(kind)} {count:,}" for kind, count in last.failures.items()) or "0"
        rows = {
            "time": f"{last.at_s:.0f} s",
            "sent": f"{last.sent:,}",
            "in flight": f"{last.in_flight:,}",
            "done": f"{last.finished:,}",
            "errors": failures,
            "TTFT": _points(self._ttft_s),
            "lag": _points(self._lag_s),
        }
        for label, value in rows.items():
            grid.add_row(
                f"[dim]{label}[/]", f"[red]{value}[/]" if label == "errors" and last.failures else value
            )
        return Panel.fit(grid, title=self._title)


def _points(sample_s: Sequence[float]) -> str:
    if not sample_s:
        return milliseconds(None)
    p50, p99 = np.percentile(sample_s, (50, 99))
    return f"p50 {milliseconds(1000 * p50)}   p99 {milliseconds(1000 * p99)}"


class Broadcast:
    """Implements `Progress` by telling several others."""

    def __init__(self, watchers: Sequence[Progress]) -> None:
        self._watchers = watchers

    def update(self, snapshot: Snapshot) -> None:
        for watcher in self._watchers:
            watcher.update(snapshot)


@contextmanager
def showing(title: str, console: Console) -> Iterator[Display]:
    """Shows a display on `console` for as long as the context lasts; a pipe gets its last state only."""
    with Live(console=console, refresh_per_second=4) as live:
        yield Display(title, live)
