"""One endpoint of the fleet: an engine that steps through virtual time."""

from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from extproc.vllm.engine import Engine
from extproc.vllm.fleet.flight import Flight
from extproc.vllm.fleet.timeline import Timeline
from extproc.vllm.profiles import Profile
from extproc.vllm.step import StepResult


class Node:
    """An engine driven by the timeline; `ended` hears of every request that ends or fails.

    `read` takes the chunks of every step and tells when the client sees them; `None`: at once.

    `gaps_s` and `gap_counts` hold inter-token latencies: how long, and how many requests saw it. In a
    quiet stretch the steps grow by microseconds each, so the stretch's mean stands for all of them.
    """

    def __init__(
        self,
        name: str,
        profile: Profile,
        timeline: Timeline,
        ended: Callable[[Flight], None],
        read: Callable[[int], float] | None = None,
    ) -> None:
        self.name = name
        self.is_up = True
        self.requests = self.uncached_tokens = self.preemptions = 0
        self.gaps_s, self.gap_counts = array("d"), array("Q")
        self._healthy = profile
        self._engine = Engine(profile)
        self._timeline = timeline
        self._ended = ended
        self._read = read
        self._flights: dict[str, Flight] = {}
        self._is_busy = False
        self._quiet_from, self._quiet_steps = 0.0, 0
        self._plan = 0  # outdates what was planned for a stretch that was cut, or for a dead engine

    def add(self, flight: Flight) -> None:
        name = str(flight.number)
        self._flights[name] = flight
        self.requests += 1
        now = self._timeline.now
        hashes = flight.session.hashes(flight.turn, self._healthy.block_size, flight.number)
        asked = flight.asked
        self._engine.add_hashed(name, asked.prompt_tokens, hashes, asked.output_tokens, now=now)
        self._cut()
        if not self._is_busy:
            self._run()

    def slow_down(self, factor: float) -> None:
        """Makes every step take `factor` times as long as a healthy endpoint's, from the next one on."""
        self._cut()
        healthy = self._healthy
        self._engine.profile = replace(
            healthy,
            base_ms=healthy.base_ms * factor,
            kv_us_per_ctx_token=healthy.kv_us_per_ctx_token * factor,
            prefill_ms_per_token=healthy.prefill_ms_per_token * factor,
        )

    def crash(self) -> None:
        """Loses every request and the whole cache."""
        self.is_up, self._is_busy, self._quiet_steps = False, False, 0
        self._plan += 1
        self._engine = Engine(self._healthy)
        lost, self._flights = self._flights, {}
        for flight in lost.values():
            flight.is_failed = True
            self._ended(flight)

    def start(self) -> None:
        self.is_up = True

    def _run(self) -> None:
        """Starts the next step, or a whole stretch of quiet ones; ends when there is nothing to do."""
        now = self._timeline.now
        self._is_busy = not self._engine.is_idle
        if not self._is_busy:
            return
        self._quiet_steps = 0 if self._read else self._engine.quiet_steps()
        if self._quiet_steps > 1:
            self._quiet_from = now
            self._plan_next(now + self._engine.decode_s(self._quiet_steps), self._end_stretch)
            return
        self._quiet_steps = 0
        result = self._engine.step(now)
        self._note(result, now)
        self._plan_next(result.ends_at, partial(self._deliver, result))

    def _plan_next(self, time: float, action: Callable[[], None]) -> None:
        self._plan += 1
        plan = self._plan

        def act_unless_outdated() -> None:
            if plan == self._plan:
                action()

        self._timeline.at(time, act_unless_outdated)

    def _cut(self) -> None:
        """Ends a quiet stretch with the step that runs now."""
        if not self._quiet_steps:
            return
        elapsed = self._timeline.now - self._quiet_from
        self._quiet_steps = bisect_left(range(self._quiet_steps), elapsed, key=self._engine.decode_s)
        self._plan_next(
            self._quiet_from + self._engine.decode_s(self._quiet_steps),
            self._end_stretch,
        )

    def _end_stretch(self) -> None:
        steps, self._quiet_steps = self._quiet_steps, 0
        if steps:
            self.gaps_s.append(self._engine.decode_s(steps) / steps)
            self.gap_counts.append(self._engine.decoding * steps)
            self._engine.decode(steps)
        self._run()

    def _note(self, result: StepResult, now: float) -> None:
        """Records what is known when a step starts."""
        for admission in result.admitted:
            if admission.is_first:
                flight = self._flights[admission.request_id]
                flight.admitted_at, flight.cached_tokens = now, admission.cached_tokens
                self.uncached_tokens += flight.asked.prompt_tokens - admission.cached_tokens
        for name in result.preempted:
            self.preemptions += 1
            self._flights[name].stalled_at = now
        decoding = len(result.emitted) - len(result.prefilled)
        if decoding:
            self.gaps_s.append(result.duration_s)
            self.gap_counts.append(decoding)

    def _deliver(self, result: StepResult) -> None:
        now = self._timeline.now
        seen_at = self._read(len(result.emitted)) if self._read else now
        for name in result.prefilled:
            flight = self._flights[name]
            if flight.first_at < 0:
                flight.first_at = seen_at
            else:
                self.gaps_s.append(now - flight.stalled_at)
                self.gap_counts.append(1)
        for name in result.finished:
            flight = self._flights.pop(name)
            flight.ended_at = seen_at
            self._ended(flight)
        self._run()
