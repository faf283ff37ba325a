"""The parent of the load processes: starts them together, receives their news, ends them."""

import asyncio
import multiprocessing
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext, SpawnProcess

from extproc.bench.load.generator import LoadShare
from extproc.bench.load.process import Done, Ready, StartAt, Stop, run_process
from extproc.bench.progress import Goal, Progress, RunSnapshot, sum_snapshots
from extproc.errors import ExtprocError

# From the last process being ready to the start: every process must have the start's time by then.
LEAD_S = 0.25
_JOIN_S = 5.0
# For breaking off what is in flight, counting tokens and sending everything back.
_STOP_S = 60.0


Agree = Callable[[], Awaitable[float]]
"""Returns the reading of this machine's monotonic clock at which a run begins."""


class LoadError(ExtprocError):
    """The load could not be generated: a load process died, or the server lists no model."""


class _Process:
    """The parent's end of a load process."""

    def __init__(self, process: SpawnProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.is_ready = asyncio.Event()
        self.is_over = asyncio.Event()
        self.snapshot: RunSnapshot | None = None
        self.done: Done | None = None
        self.is_dead = False

    def receive(self) -> RunSnapshot | None:
        """Takes one message in; returns it if it is news."""
        try:
            message = self.pipe.recv()
        except (EOFError, ConnectionError):
            message = None
        if isinstance(message, RunSnapshot):
            self.snapshot = message
            return message
        self.is_ready.set()
        if not isinstance(message, Ready):
            self.done, self.is_dead = message, message is None
            self.is_over.set()
            asyncio.get_running_loop().remove_reader(self.pipe.fileno())
        return None

    async def end(self) -> None:
        """Kills the process if it still runs: one that ended in order has sent its records."""
        asyncio.get_running_loop().remove_reader(self.pipe.fileno())
        if self.done is None and self.process.is_alive():
            self.process.kill()
        self.pipe.close()
        await asyncio.to_thread(self.process.join, _JOIN_S)
        if self.process.is_alive():
            self.process.kill()


async def start_soon() -> float:
    """The start of processes that are on this machine alone."""
    return time.monotonic() + LEAD_S


async def drive(
    shares: Sequence[LoadShare],
    goal: Goal,
    progress: Progress,
    stop: asyncio.Event,
    agree: Agree = start_soon,
) -> tuple[float, list[Done]]:
    """Runs every share in a process of its own, from one common start, until all end or `stop` is set.

    `agree` returns the start when every process is ready. Returns it, and what each process noted.
    Raises `LoadError`.
    """
    start_s = 0.0
    context = multiprocessing.get_context("spawn")
    taken = context.Value("q", 0)
    processes = [_spawn(context, (share, taken)) for share in shares]
    try:
        for process in processes:
            _listen(process, processes, goal, progress)
        await asyncio.gather(*(process.is_ready.wait() for process in processes))
        if not any(process.is_dead for process in processes):
            start_s = await agree()
            _send(processes, StartAt(start_s))
            await _wait(processes, stop)
    finally:
        await asyncio.gather(*(process.end() for process in processes))
    for process in processes:
        if process.is_dead:
            raise LoadError(f"a load process died with exit code {process.process.exitcode}")
    return start_s, [process.done for process in processes if process.done is not None]


def _spawn(context: SpawnContext, work: tuple[LoadShare, object]) -> _Process:
    share, taken = work
    mine, theirs = context.Pipe()
    process = context.Process(target=run_process, args=(share, theirs, taken), daemon=True)
    # Until it ignores them itself, a signal to the whole group must not kill it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    process.start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return _Process(process, mine)


def _listen(
    process: _Process, processes: Sequence[_Process], goal: Goal, progress: Progress
) -> None:
    def on_readable() -> None:
        news = process.receive()
        if news is not None:
            known = [p.snapshot for p in processes if p.snapshot is not None]
            progress.update(sum_snapshots(known, news, goal))
        if process.is_dead:
            # Nobody waits for the others: a part of the load is no load.
            for each in processes:
                each.is_ready.set()
                each.is_over.set()

    asyncio.get_running_loop().add_reader(process.pipe.fileno(), on_readable)


async def _wait(processes: Sequence[_Process], stop: asyncio.Event) -> None:
    """Waits until all are over; if `stop` is set before, sends them `Stop` and waits a little."""
    over = asyncio.ensure_future(asyncio.gather(*(process.is_over.wait() for process in processes)))
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((over, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not over.done():
            _send(processes, Stop())
            await asyncio.wait({over}, timeout=_STOP_S)
        if not over.done():
            raise LoadError(f"a load process did not end within {_STOP_S:g} s of the order")
    finally:
        stopping.cancel()
        over.cancel()


def _send(processes: Sequence[_Process], message: StartAt | Stop) -> None:
    for process in processes:
        # One that has just died, or is just done, must be counted as that.
        with suppress(BrokenPipeError):
            process.pipe.send(message)
