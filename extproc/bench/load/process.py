"""A load process: gets its share, waits for the common start, runs, and sends back what it noted."""

import asyncio
import gc
import os
import resource
import signal
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized

import uvloop

from extproc.bench.datasets.tokens import TokenRuler, recount
from extproc.bench.load.generator import LoadGenerator, LoadShare, Next
from extproc.bench.load.journal import Journal
from extproc.bench.load.registry import build_registry
from extproc.bench.processors.processor import Wiring
from extproc.bench.progress import LoadWatch
from extproc.bench.record import ClientStats, Record, RunClock


class Ready:
    """The process can start."""


@dataclass(frozen=True, slots=True)
class StartAt:
    """The run begins at this reading of the machine's monotonic clock."""

    monotonic_s: float


@dataclass(frozen=True, slots=True)
class Stop:
    """The run ends now: what is known is to be sent back."""


@dataclass(frozen=True, slots=True)
class Done:
    """All that the process noted."""

    records: tuple[Record, ...]
    stats: ClientStats


def run_process(share: LoadShare, pipe: Connection, taken: "Synchronized[int]") -> None:
    """Is a load process's whole life. It ignores signals to the group: the parent acts on them."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    allow_files()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            done = runner.run(_serve(share, pipe, _share_counter(taken, share.numbers)))
        pipe.send(done)
        pipe.close()
    except* (BrokenPipeError, EOFError):
        pass  # The parent is gone: nobody takes the result.


def allow_files() -> None:
    """Raises the limit of open files as far as it goes: every request in flight is a socket."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _share_counter(taken: "Synchronized[int]", numbers: range) -> Next:
    def take_next() -> int | None:
        with taken.get_lock():
            place = taken.value
            if place >= len(numbers):
                return None
            taken.value = place + 1
            return numbers[place]

    return take_next


async def _serve(share: LoadShare, pipe: Connection, take_next: Next) -> Done:
    target = share.spec.target
    clock = RunClock()
    api_key = os.environ.get(target.api_key_env) if target.api_key_env else None
    build = build_registry(share.spec.plugins).client(target.api.name)
    client = build(Wiring(share.spec.base_url, target, api_key, clock))
    generator = LoadGenerator(share, client, clock, take_next)
    journal = None if share.journal is None else Journal(share.journal)
    watch = LoadWatch(generator, clock, journal.note if journal else None)
    # The dataset is never freed before the end: keep the collector from walking it during the run.
    gc.freeze()
    pipe.send(Ready())
    clock.start_at((await asyncio.to_thread(pipe.recv)).monotonic_s)
    cpu_s = time.process_time()
    await _run_watched(generator, watch, pipe, clock)
    stats = ClientStats(
        process=share.process,
        cpu_s=time.process_time() - cpu_s,
        wall_s=clock(),
        cap=share.cap,
        cap_full_s=generator.cap.full_s,
        samples=tuple(watch.samples),
        has_given_up=generator.has_given_up,
    )
    await client.close()
    if journal:
        journal.close()
    if target.tokenizer is not None:
        recount(generator.records, generator.prompts, TokenRuler(target.tokenizer))
    return Done(tuple(generator.records), stats)


async def _run_watched(
    generator: LoadGenerator, watch: LoadWatch, pipe: Connection, clock: RunClock
) -> None:
    if (early_s := -clock()) > 0:
        await asyncio.sleep(early_s)
    asyncio.get_running_loop().add_reader(pipe.fileno(), _obey, pipe, generator)
    # uvloop makes what it polls non-blocking: a large answer to a busy parent failed half-way, all
    # was lost.
    os.set_blocking(pipe.fileno(), True)
    # News to a parent that is gone fail the group, which ends this process, too.
    async with asyncio.TaskGroup() as group:
        watching = [group.create_task(watch.sample()), group.create_task(watch.publish(pipe.send))]
        await generator.run()
        for task in watching:
            task.cancel()
    asyncio.get_running_loop().remove_reader(pipe.fileno())
    pipe.send(watch.snapshot())


def _obey(pipe: Connection, generator: LoadGenerator) -> None:
    """Ends the run when the parent says so. The next news show whether the parent is gone."""
    try:
        message = pipe.recv()
    except (EOFError, ConnectionError):
        message = None
    asyncio.get_running_loop().remove_reader(pipe.fileno())
    if isinstance(message, Stop):
        generator.stop()
