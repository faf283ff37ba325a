"""A load process: gets its share, waits for the common start, runs, and sends back what it noted."""

import asyncio
import gc
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import Protocol

import uvloop

from extproc.bench.datasets.tokens import TokenRuler, recount
from extproc.bench.load.generator import LoadGenerator, LoadShare, Next
from extproc.bench.load.journal import Journal
from extproc.bench.load.registry import build_registry
from extproc.bench.measure import metrics
from extproc.bench.measure.metrics import sample
from extproc.bench.processors.processor import Wiring
from extproc.bench.progress import RunSnapshot
from extproc.bench.record import ClientStats, Clock, LoopSample, Record, RunClock

_SAMPLE_S = 0.02
_NEWS_S = 0.5


class LoadWork(Protocol):
    """What a load process is doing: every request so far, and how many are in flight."""

    @property
    def records(self) -> Sequence[Record]: ...

    @property
    def in_flight(self) -> int: ...


class LoadWatch:
    """Samples the loop and sends what is new; both stop when their task is cancelled.

    `note` gets every request once, when a snapshot first finds it ended.
    """

    def __init__(
        self, work: LoadWork, clock: Clock, note: Callable[[Sequence[Record]], None] | None = None
    ) -> None:
        self.samples: list[LoopSample] = []
        self._work, self._clock, self._note = work, clock, note
        self._reported = 0
        self._unfinished: list[int] = []
        self._failures: Counter[str] = Counter()
        self._input_tokens = self._output_tokens = 0

    async def sample(self) -> None:
        """Sleeps again and again; what a sleep lasts too long is the event loop's lag."""
        while True:
            due_s = self._clock() + _SAMPLE_S
            await asyncio.sleep(_SAMPLE_S)
            now_s = self._clock()
            lag_s = max(0.0, now_s - due_s)
            self.samples.append(LoopSample(now_s, lag_s, self._work.in_flight))

    async def publish(self, send: Callable[[RunSnapshot], None]) -> None:
        while True:
            await asyncio.sleep(_NEWS_S)
            send(self.snapshot())

    def snapshot(self) -> RunSnapshot:
        """Returns totals, and the latencies of requests that ended since the last snapshot."""
        records = self._work.records
        fresh = [*self._unfinished, *range(self._reported, len(records))]
        self._reported = len(records)
        self._unfinished = [i for i in fresh if not records[i].is_over]
        ended = [records[i] for i in fresh if records[i].is_over]
        self._failures.update(record.failure for record in ended if record.failure)
        if self._note is not None:
            self._note(ended)
        done = [record for record in ended if record.is_ok]
        self._input_tokens += sum(record.input_tokens for record in done)
        self._output_tokens += sum(record.output_tokens for record in done)
        finished, in_flight = len(records) - len(self._unfinished), self._work.in_flight
        return RunSnapshot(
            at_s=self._clock(),
            sent=finished + in_flight,
            in_flight=in_flight,
            finished=finished,
            failures=dict(self._failures),
            ttft_s=tuple(
                r.first_token_s - r.intended_s for r in ended if r.first_token_s is not None
            ),
            lag_s=tuple(lag for record in ended if (lag := record.lag_s) is not None),
            e2e_s=tuple(sample(done, metrics.e2e).tolist()),
            tpot_s=tuple(sample(done, metrics.tpot).tolist()),
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
        )


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
