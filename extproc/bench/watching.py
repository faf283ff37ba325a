"""Who watches a run, as the command line asks: the terminal, Prometheus, both or nobody."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console

from extproc.bench.exporter import serving
from extproc.bench.live import Broadcast, showing
from extproc.bench.result import Progress


@contextmanager
def watching(title: str, console: Console, metrics_port: int | None, *, quiet: bool) -> Iterator[Progress]:
    """Yields what to tell the state of a run to; `quiet` leaves the terminal alone."""
    with ExitStack() as stack:
        watchers: list[Progress] = []
        if not quiet:
            watchers.append(stack.enter_context(showing(title, console)))
        if metrics_port is not None:
            watchers.append(stack.enter_context(serving(metrics_port))[0])
        yield Broadcast(watchers)
