"""One endpoint of the fleet: an engine that steps through virtual time."""

from array import array
from collections import deque
from collections.abc import Callable
from math import sqrt

from extproc.router.routing.signals import EndpointSignals
from extproc.simulator.engine.engine import Engine
from extproc.simulator.engine.profiles import Profile
from extproc.simulator.engine.records import StepResult
from extproc.simulator.engine.runs import Path, RunCache
from extproc.simulator.fleet.autoscaler import Metric
from extproc.simulator.fleet.flight import Flight, Leg
from extproc.simulator.fleet.timeline import VirtualTimeline
from extproc.simulator.peers.signals import Signal


class Gaps:
    """Inter-token latencies of all endpoints while it is open: how long, and how many requests saw it.

    In a quiet stretch the steps grow by microseconds each, so the stretch's mean stands for all of
    them.
    """

    def __init__(self) -> None:
        self.is_open = True
        self.seconds, self.counts = array("d"), array("Q")

    def add(self, seconds: float, count: int) -> None:
        if self.is_open and count:
            self.seconds.append(seconds)
            self.counts.append(count)

    def clear(self) -> None:
        del self.seconds[:], self.counts[:]

    def close(self) -> None:
        self.is_open = False


# Quiet steps: why a fleet of hundreds of engines can be simulated at all.
#
# Most steps of an engine do nothing but decode: nobody comes, nobody is done, no prompt is being
# computed. How many of these follow is known beforehand (`Engine.quiet_steps`), and how long they
# take is a sum in closed form (`Engine.decode_s`), as every step is longer than the one before by the
# same amount. So the timeline gets one event at the end of such a stretch instead of one for each
# step.
#
# What makes it delicate is that the world may change in the middle. A request that arrives is taken
# up when the step that runs *now* ends, as in a real engine, so the stretch is cut there
# (`_cut`): `_steps_within` inverts the sum, a quadratic, and corrects the root by a step where
# rounding put it wrong. The event that was planned is still in the timeline. `_plan` counts plans,
# and an event of an older plan does nothing; the same number makes the events of a crashed engine
# harmless. Slowing down and dropping the cache cut, too.
#
# What must hold: many quiet steps at once leave the engine as the same steps one by one would, which
# a test does beside each other. Only the gaps between tokens become a mean. A client that reads
# chunks at a cost (`read`) has to see every step, so there are no stretches then.
class Node:
    """An engine driven by the timeline; `ended` is called for every request that ends or fails.

    `read` takes the chunks of every step and returns when the client sees them; `None`: at once.
    """

    def __init__(
        self,
        name: str,
        profile: Profile,
        timeline: VirtualTimeline,
        ended: Callable[[Flight], None],
        *,
        gaps: Gaps,
        read: Callable[[int], float] | None = None,
    ) -> None:
        self.name = name
        self.is_up = True
        self.requests = self.preemptions = 0
        self._healthy = profile
        self._engine = Engine[Path](profile, cache=RunCache(profile.blocks))
        self._timeline = timeline
        self._ended = ended
        self._gaps = gaps
        self._read = read
        self._flights: dict[str, Flight] = {}
        self._is_busy = False
        self._quiet_from, self._quiet_steps = 0.0, 0
        self._plan = 0  # outdates what was planned for a stretch that was cut, or for a dead engine
        self._signals: deque[tuple[float, Signal]] | None = None
        self._keep_s = 0.0
        self._queued: dict[str, int] = {}
        self._missing: dict[str, int] = {}
        self._started_s, self._prefills, self._prefill_s = timeline.now, 0, 0.0

    def __repr__(self) -> str:
        return f"<Node {self.name}: {self._engine!r}>"

    def add(self, flight: Flight) -> None:
        self._flights[str(flight.number)] = flight
        self.requests += 1
        if way_s := self._healthy.way_s(flight.plan.prompt_tokens):
            self._timeline.at(self._timeline.now + way_s, self._enter, flight)
        else:
            self._enter(flight)

    def _enter(self, flight: Flight) -> None:
        name, plan = str(flight.number), flight.plan
        if name not in self._flights:
            return  # lost on its way
        path = flight.session.path(flight.turn, self._healthy.block_size)
        cached, used = self._engine.cached_tokens(path, plan.prompt_tokens)
        self._missing[name], self._queued[name] = (
            plan.prompt_tokens - cached,
            plan.prompt_tokens - used,
        )
        self._engine.add_hashed(
            name,
            plan.prompt_tokens,
            path,
            flight.output_tokens,
            now=self._timeline.now,
            is_computed=flight.leg is Leg.DECODE,
        )
        if self._quiet_steps:
            self._cut()
        elif not self._is_busy:
            self._run()

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    def read_metric(self, metric: Metric) -> float:
        """What an autoscaler would read now; of `keep_signals`."""
        said = self.signal_at(self._timeline.now)
        match metric:
            case Metric.QUEUE:
                return said.waiting
            case Metric.RUNNING:
                return said.running
            case Metric.KV_USAGE:
                return said.kv_usage
            case Metric.IN_FLIGHT:
                return self.in_flight

    def missing_tokens(self, flight: Flight) -> int:
        """How much of a prompt is not in the cache now."""
        prompt = flight.plan.prompt_tokens
        path = flight.session.path(flight.turn, self._healthy.block_size)
        return prompt - self._engine.cached_tokens(path, prompt)[0]

    def keep_signals(self, seconds: float) -> None:
        """From now on `signal_at` can return what the metrics were so many seconds ago."""
        self._signals = deque([(self._timeline.now, self._signal(0))])
        self._keep_s = max(self._keep_s, seconds)

    def signal_at(self, at_s: float) -> Signal:
        """What the metrics said at `at_s`: vLLM updates them at the end of each step.

        What came during a step waits to be taken in, and does not count as waiting yet.
        """
        if self._quiet_steps and at_s > self._quiet_from and self._signals:
            done = self._steps_within(at_s - self._quiet_from) - 1
            return self._signal(done, self._signals[-1][1].waiting)
        return next(
            (said for since_s, said in reversed(self._signals or ()) if since_s <= at_s), Signal()
        )

    def signal_for(self, flight: Flight) -> Signal:
        """What is true now, of an endpoint that a request may be sent to. Quiet steps count when they end."""
        prompt, used = flight.plan.prompt_tokens, self._engine.counters.kv_usage
        path = flight.session.path(flight.turn, self._healthy.block_size)
        cached, shared = self._engine.cached_tokens(path, prompt)
        active = (
            round(used * self._healthy.kv_tokens) + sum(self._queued.values()) + prompt - shared
        )
        waiting, pending = len(self._queued), sum(self._missing.values())
        text = flight.plan.text_share(cached and cached + self._healthy.block_size)
        return Signal(
            self.in_flight - waiting, waiting, used, prompt, cached, pending, active, text
        )

    def read_signals(self) -> EndpointSignals:
        """What the service's scraper would read now, of an endpoint that is up."""
        elapsed_s = self._timeline.now - self._quiet_from
        steps = self._steps_within(elapsed_s) - 1 if self._quiet_steps and elapsed_s > 0 else 0
        counters = self._engine.counters_after(steps)
        return EndpointSignals(
            running=counters.running,
            waiting=counters.waiting,
            kv_tokens=self._healthy.kv_tokens,
            queried_tokens=counters.prefix_queries_total,
            hit_tokens=counters.prefix_hits_total,
            prompt_tokens=counters.prompt_tokens_total,
            prefills=self._prefills,
            prefill_s=self._prefill_s,
            started_s=self._started_s + 1,
            block_tokens=self._healthy.block_size,
            kv_usage=counters.kv_usage,
        )

    def slow_down(self, factor: float) -> None:
        """Makes every step take `factor` times as long as a healthy endpoint's, from the next one on."""
        if self._quiet_steps:
            self._cut()
        self._engine.profile = self._healthy.slowed(factor)

    def forget(self) -> None:
        """Drops every cached block that no request uses."""
        if self._quiet_steps:
            self._cut()
        self._engine.forget()

    def crash(self) -> None:
        """Loses every request and the whole cache, for good: what comes back is another node."""
        self.is_up, self._is_busy, self._quiet_steps = False, False, 0
        self._plan += 1
        lost, self._flights = self._flights, {}
        for flight in lost.values():
            flight.is_failed = True
            self._ended(flight)

    def _run(self) -> None:
        """Starts the next step, or a whole stretch of quiet ones; ends when there is nothing to do."""
        engine, now = self._engine, self._timeline.now
        self._is_busy = not engine.is_idle
        if not self._is_busy:
            return
        steps = 0 if self._read else engine.quiet_steps()
        self._plan += 1
        if steps > 0:
            self._quiet_from, self._quiet_steps = now, steps
            self._timeline.at(now + engine.decode_s(steps), self._end_stretch, self._plan)
            return
        result = engine.step(now)
        self._note(result, now)
        if self._signals is not None:
            self._publish_signal(result.ends_at)
        self._timeline.at(result.ends_at, self._deliver, self._plan, result)

    def _publish_signal(self, at_s: float) -> None:
        """Lets the metrics say from `at_s` on how things are now."""
        assert self._signals is not None  # noqa: S101  # who calls this looked
        self._signals.append((at_s, self._signal(0)))
        while len(self._signals) > 1 and self._signals[1][0] < self._timeline.now - self._keep_s:
            self._signals.popleft()

    def _signal(self, steps: int, waiting: int | None = None) -> Signal:
        counters = self._engine.counters_after(steps)
        return Signal(
            counters.running, counters.waiting if waiting is None else waiting, counters.kv_usage
        )

    def _cut(self) -> None:
        """Ends a quiet stretch with the step that runs now."""
        steps = self._steps_within(self._timeline.now - self._quiet_from)
        if steps < self._quiet_steps:
            self._plan += 1
            self._quiet_steps = steps
            ends_at = self._quiet_from + self._engine.decode_s(steps)
            self._timeline.at(ends_at, self._end_stretch, self._plan)

    def _steps_within(self, elapsed_s: float) -> int:
        """The fewest quiet steps that take as long; their time is `first` and then `more` each, as a sum."""
        one, two = self._engine.decode_s(1), self._engine.decode_s(2)
        more = two - 2 * one
        first = one - more / 2
        # Rounding makes the root a step wrong at most.
        root = (
            (sqrt(first * first + 2 * more * elapsed_s) - first) / more
            if more > 0
            else elapsed_s / one
        )
        steps = max(1, int(root))
        while steps > 1 and self._engine.decode_s(steps - 1) >= elapsed_s:
            steps -= 1
        while self._engine.decode_s(steps) < elapsed_s:
            steps += 1
        return min(steps, self._quiet_steps)

    def _end_stretch(self, plan: int) -> None:
        if plan != self._plan:
            return
        engine, steps = self._engine, self._quiet_steps
        self._quiet_steps = 0
        self._gaps.add(engine.decode_s(steps) / steps, engine.decoding * steps)
        done = engine.decode(steps)
        if self._signals is not None:
            self._publish_signal(self._timeline.now)
        for name in done:
            self._finish(name, self._timeline.now)
        # Somebody may have sent the next turn here, and started it.
        if plan == self._plan:
            self._run()

    def _note(self, result: StepResult, now: float) -> None:
        """Records the figures of a step's start."""
        for admission in result.admitted:
            if admission.is_first:
                flight = self._flights[admission.request_id]
                del self._queued[admission.request_id]
                self._missing[admission.request_id] = (
                    flight.plan.prompt_tokens - admission.cached_tokens
                )
                flight.admitted_at = now
                if flight.leg is not Leg.DECODE:
                    flight.cached_tokens = admission.cached_tokens
        for name in result.preempted:
            self.preemptions += 1
            self._flights[name].stalled_at = now
        self._gaps.add(result.duration_s, len(result.emitted) - len(result.prefilled))

    def _deliver(self, plan: int, result: StepResult) -> None:
        if plan != self._plan:
            return
        now = self._timeline.now
        seen_at = self._read(len(result.emitted)) if self._read else now
        for name in result.prefilled:
            flight = self._flights[name]
            if flight.first_at < 0:
                flight.first_at = seen_at
                self._prefills += 1
                self._prefill_s += now - flight.admitted_at
                del self._missing[name]
            else:
                self._gaps.add(now - flight.stalled_at, 1)
        for name in result.finished:
            self._finish(name, seen_at)
        self._run()

    def _finish(self, name: str, seen_at: float) -> None:
        flight = self._flights.pop(name)
        flight.ended_at = seen_at
        self._ended(flight)
