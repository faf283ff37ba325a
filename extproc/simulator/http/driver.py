"""An engine in real time: steps it, waits as long as the step takes, wakes the requests it served."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging import getLogger
from time import monotonic
from typing import Final, Protocol

from extproc.router.routing.prefill_stage import Transfer
from extproc.simulator.engine.blocks import hash_blocks
from extproc.simulator.engine.engine import Engine
from extproc.simulator.engine.records import StepResult

# Real seconds behind the engine's schedule after which its timings no longer mean much.
TOLERATED_LAG_S = 0.5
# Between the adapter and the cache salt in an engine's extra key.
KEY_SEPARATOR = "\0"

# A prompt that another engine computed comes as it does in the fleet.
_TRANSFER: Final = Transfer(overhead_ms=0)

log = getLogger("extproc.simulator")


class Clock:
    """Engine seconds since it was made, `speed` of them in each real second."""

    def __init__(self, speed: float = 1.0, monotonic_s: Callable[[], float] = monotonic) -> None:
        self.speed = speed
        self._monotonic_s = monotonic_s
        self._origin_s = monotonic_s()

    def now(self) -> float:
        return (self._monotonic_s() - self._origin_s) * self.speed

    async def sleep_until(self, at: float) -> None:
        """Returns at `at`, or at once if that has passed; others get a turn in any case."""
        await asyncio.sleep(max(0.0, (at - self.now()) / self.speed))


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt and the answer that the engine will take its time for.

    `reason` is vLLM's `finish_reason`: `stop` if the answer ends by itself, `length` if it is cut.
    `n` is how many answers the client wants of the prompt. Jobs of different adapters or cache
    salts share no prefixes.
    """

    id: str
    prompt: Sequence[int]
    output: Sequence[int]
    reason: str = "length"
    adapter: str = ""
    cache_salt: str = ""
    n: int = 1
    is_computed: bool = False

    @property
    def extra_key(self) -> str:
        return (
            f"{self.adapter}{KEY_SEPARATOR}{self.cache_salt}"
            if self.adapter or self.cache_salt
            else ""
        )


@dataclass(slots=True, eq=False)
class Generation:
    """What the engine has made of a job so far; `wake` is set whenever that changes.

    Times are the engine's seconds. `cached_tokens` counts from the first admission, as vLLM does.
    Where `is_late` the engine fell behind its schedule, so that these times mean nothing.
    """

    job: Job
    wake: asyncio.Event
    arrived_at: float
    admitted_at: float = 0.0
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    cached_tokens: int = 0
    emitted: int = 0
    preemptions: int = 0
    is_admitted: bool = False
    is_finished: bool = False
    is_late: bool = False


class EngineObserver(Protocol):
    """Gets called once per step, per token that is on time, and per finished request."""

    def stepped(self, result: StepResult) -> None: ...

    def emitted(self, since_last_s: float, *, is_first: bool) -> None: ...

    def finished(self, generation: Generation, *, is_abort: bool) -> None: ...


class Driver:
    """Owns an engine and its requests. `run` is the only place where the engine steps.

    `cached_tokens_total` counts the cached tokens of prompts that have been computed; `after_step`
    is called when a step's outcome has been delivered.
    """

    def __init__(
        self,
        engine: Engine[Sequence[int]],
        clock: Clock,
        observer: EngineObserver,
        after_step: Callable[[], None] | None = None,
    ) -> None:
        self.engine = engine
        self._clock = clock
        self._observer = observer
        self._after_step = after_step
        self._open: dict[str, Generation] = {}
        self._work = asyncio.Event()
        self.cached_tokens_total = 0

    @property
    def waiting(self) -> int:
        return self.engine.counters.waiting

    @property
    def running(self) -> int:
        """Requests that have been admitted and not been answered in full: a last step counts too."""
        return len(self._open) - self.waiting

    def adapters(self, *, is_running: bool) -> list[str]:
        """Returns the adapters of running requests, or of waiting ones, by name."""
        found = {one.job.adapter for one in self._open.values() if one.is_admitted == is_running}
        return sorted(found - {""})

    async def approach(self, prompt_tokens: int) -> None:
        """Waits as long as a server reads so many tokens before its engine hears of them."""
        if way_s := self.engine.profile.way_s(prompt_tokens):
            await self._clock.sleep_until(self._clock.now() + way_s)

    async def receive(self, job: Job) -> None:
        """Waits as long as what the cache lacks of a computed prompt is under way."""
        tokens, names = (
            len(job.prompt),
            hash_blocks(job.prompt, self.engine.profile.block_size, job.extra_key),
        )
        lacking = tokens - self.engine.cached_tokens(names, tokens)[0]
        await self._clock.sleep_until(self._clock.now() + _TRANSFER.way_ms(lacking) / 1000)

    def submit(self, job: Job, wake: asyncio.Event) -> Generation:
        """Queues a job; raises as `Engine.add` does."""
        now = self._clock.now()
        self.engine.add(
            job.id,
            job.prompt,
            len(job.output),
            extra_key=job.extra_key,
            output=job.output,
            now=now,
            is_computed=job.is_computed,
        )
        generation = self._open[job.id] = Generation(job, wake, now)
        self._work.set()
        return generation

    def abort(self, generation: Generation) -> None:
        """Ends a request that nobody waits for any more; one that has finished stays finished."""
        if self._open.pop(generation.job.id, None) is not None:
            self.engine.abort(generation.job.id)
            self._observer.finished(generation, is_abort=True)

    async def run(self) -> None:
        """Steps the engine whenever it has work, until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            await self._work_off()

    async def _work_off(self) -> None:
        starts_at = self._clock.now()
        has_warned = False
        while not self.engine.is_idle:
            # Steps follow each other on the engine's clock, so timers that wake late do not add up.
            result = self.engine.step(starts_at)
            await self._clock.sleep_until(result.ends_at)
            lag_s = (self._clock.now() - result.ends_at) / self._clock.speed
            is_late = lag_s > TOLERATED_LAG_S
            self._deliver(result, is_late=is_late)
            starts_at = result.ends_at
            if is_late and not has_warned:
                log.warning(
                    "the simulation is %.1f s late: this machine is too slow for its load. "
                    "Latencies of late requests are left out of /metrics",
                    lag_s,
                )
                has_warned = True

    def _deliver(self, result: StepResult, *, is_late: bool) -> None:
        for admission in result.admitted:
            generation = self._open.get(admission.request_id)
            if generation is not None and admission.is_first:
                generation.is_admitted = True
                generation.cached_tokens = admission.cached_tokens
                generation.admitted_at = generation.arrived_at + max(0.0, admission.waited_s)
        for request_id in result.preempted:
            if request_id in self._open:
                self._open[request_id].preemptions += 1
        for request_id in result.emitted:
            if request_id in self._open:
                self._emit(self._open[request_id], result.ends_at, is_late=is_late)
        for request_id in result.finished:
            if request_id in self._open:
                generation = self._open.pop(request_id)
                generation.is_finished = True
                self._observer.finished(generation, is_abort=False)
                generation.wake.set()
        self._observer.stepped(result)
        if self._after_step:
            self._after_step()

    def _emit(self, generation: Generation, at: float, *, is_late: bool) -> None:
        generation.emitted += 1
        is_first = generation.emitted == 1
        since = generation.arrived_at if is_first else generation.last_token_at
        # A schedule that lags behind the clock may end a step before its request came.
        generation.is_late |= is_late or at < since
        if not generation.is_late:
            self._observer.emitted(at - since, is_first=is_first)
        if is_first:
            generation.first_token_at = at
            self.cached_tokens_total += generation.cached_tokens
        generation.last_token_at = at
        generation.wake.set()
