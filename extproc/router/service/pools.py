"""All pools of the service: changed live, with their readiness."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace as with_fields
from functools import partial
from time import time
from typing import Final

from msgspec.structs import replace

from extproc.router.cluster.reason import describe_error
from extproc.router.feedback.outcome import (
    Exchange,
    Outcome,
    Verdict,
    judge_response,
    outcomes,
)
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.routing.picker import Picker
from extproc.router.routing.pool import Pick
from extproc.router.routing.strategies.base import ClockAndRandom, RequestResult
from extproc.router.routing.tickets import Tickets
from extproc.router.service.running_pool import PoolContext, RunningPool
from extproc.router.settings.pool_settings import PoolSettings
from extproc.router.share.pool_share import Share
from extproc.router.stream.events import Served

log = logging.getLogger(__name__)

_FAILED: Final = 500
_REFUSALS: Final = frozenset({Verdict.FAILED, Verdict.BUSY})


class Feedback:
    """Brings what becomes of requests to their pools.

    `pools` returns the running pools by name; `tickets` find the pick by the number in a proxy's
    log.
    """

    def __init__(
        self, outside: ClockAndRandom, pools: Callable[[], Mapping[str, RunningPool]]
    ) -> None:
        self.tickets = Tickets(outside.clock, outside.rng.getrandbits(64))
        self._pools = pools

    def note(self, exchange: Exchange) -> None:
        """Takes an entry of an access log, once; one without a live number is not believed."""
        if not exchange.ticket:
            for each in self._pools().values():
                if each.shadow is not None:
                    each.shadow.logged(exchange.request_id, exchange.address, exchange.duration_s)
            return
        pick = self.tickets.pop(exchange.ticket)
        if pick is None:
            return
        # Whoever reaches the port can ask for picks, and so has tickets of its own.
        named = {pick.endpoint.address, *(each.address for each in pick.fallbacks)}
        for outcome in outcomes(exchange, time()):
            if outcome.address in named:
                for feedback, judged in self._judge(pick.pool.name, pick.prefill, outcome):
                    feedback.observe(judged)
        # A request that no endpoint answered has a status, too, unless its client left.
        pick.learn(RequestResult(exchange.status or None), exchange.address)

    def observe_response(self, served: Served, elapsed_s: float) -> None:
        """Takes the headers of a response, from a gateway."""
        pool = self._pools().get(served.pool)
        if pool is not None and served.response.status:
            outcome = judge_response(served, elapsed_s, time())
            for feedback, judged in self._judge(served.pool, served.prefill, outcome):
                feedback.observe_response(judged)
            is_last_word = served.response.status >= _FAILED and not pool.feedback.has_log
            pick = self.tickets.pop(served.ticket) if is_last_word else None
            if pick is not None:
                pick.learn(RequestResult(served.response.status), served.address)

    def _judge(
        self, pool: str, prefill: Pick | None, outcome: Outcome
    ) -> Iterator[tuple[PoolFeedback, Outcome]]:
        """Yields who learns of an outcome, and what.

        A sidecar hands on what its prefill endpoint answers. So a refusal with a status is that
        one's, an answer both endpoints', and no answer at all may be either's. A connection that
        failed, or an answer that was cut, is of the endpoint that answers.
        """
        running = self._pools()
        stage = None if prefill is None else running.get(prefill.pool.name)
        is_refused = outcome.status and outcome.verdict in _REFUSALS
        if stage is not None and prefill is not None and not outcome.is_unreached:
            verdict = Verdict.ANSWERED if outcome.verdict is Verdict.BROKEN else outcome.verdict
            yield (
                stage.feedback,
                replace(outcome, address=prefill.endpoint.address, verdict=verdict),
            )
        if pool in running and (prefill is None or not is_refused):
            yield running[pool].feedback, outcome


class Pools:
    """The running pools by name, and the picker that routes to them. Needs a running event loop.

    Ready is a question about the whole service, and a proxy that gets a no takes every pool's
    requests elsewhere. So at the start, and for `start_s` seconds at most, the service waits for a
    list of each of the first pools; from then on one pool that can be routed to is enough. A pool
    without a list refuses its own requests, and `remarks` says why.
    """

    def __init__(self, shared: PoolContext, *, start_s: float = 10.0) -> None:
        self.picker = Picker(())
        self.feedback = Feedback(shared.outside, lambda: self._running)
        self._shared = shared
        # No Envoy sends a request to an endpoint that only computes prompts.
        self._unpublished = with_fields(shared, publish=lambda *_: None, retract=lambda _: None)
        self._clock = shared.outside.clock
        self._started_s = self._clock() + start_s
        self._running: Mapping[str, RunningPool] = {}
        self._first: frozenset[str] | None = None

    def __iter__(self) -> Iterator[RunningPool]:
        return iter(self._running.values())

    def __getitem__(self, name: str) -> RunningPool:
        return self._running[name]

    def shares(self) -> Mapping[str, Share]:
        """Each pool's part in the sharing; empty where nobody shares."""
        return self._shared.courier.shares() if self._shared.courier is not None else {}

    @property
    def can_route(self) -> bool:
        """Whether any pool has had a list of endpoints, or queues its requests until it has one."""
        for name in self.picker.routes:  # each stream asks: faster than `any`
            each = self._running[name]
            if each.pool.queue is not None or each.keeper.synced.is_set():
                return True
        return False

    def faults(self) -> list[str]:
        """Why requests cannot be routed well; empty if they can."""
        is_waiting = self._clock() < self._started_s and any(
            each.name in (self._first or ()) and not each.keeper.synced.is_set() for each in self
        )
        has_route = any(self._running[name].fault is None for name in self.picker.routes)
        return [] if has_route and not is_waiting else self._list_faults() or ["no pool yet"]

    def remarks(self) -> list[str]:
        """What is wrong with single pools, whether the service is ready or not."""
        unproven = [
            f"pool {each.name}: no endpoint has answered a probe yet; all get requests"
            for each in self
            if {state for _, state in each.keeper.pool.states()} == {"unknown"}
        ]
        idle = [
            f"pool {each.name}: no prefill endpoint is ready; it computes all prompts itself"
            for each in self
            if each.pool.prefill is not None and not each.pool.prefill.pool.candidates()
        ]
        return [*self._list_faults(), *unproven, *idle]

    def _list_faults(self) -> list[str]:
        lines = []
        for each in self:
            fault, source = each.fault, each.keeper.fault
            if fault or source:
                parts = [fault or f"the list of endpoints is {each.keeper.age_s:.0f} s old", source]
                lines.append(f"pool {each.name}: {': '.join(str(part) for part in parts if part)}")
            for name, said in each.describe_events().items():
                if said["state"] == "degraded" and said["why"] != "silent":
                    lines.append(f"pool {each.name}: KV events of {name}: {said['why']}")
        return lines

    def apply(self, settings: Sequence[PoolSettings]) -> None:
        """Makes these the pools; see `prepare`."""
        self.prepare(settings)()

    def prepare(self, settings: Sequence[PoolSettings]) -> Callable[[], None]:
        """Builds the pools of these settings; returns what puts them in force.

        A pool that stays keeps its endpoints, its loads and its requests. Raises what a part raises
        as it is built; then all is as it was.
        """
        running, steps = dict[str, RunningPool](), list[Callable[[], None]]()
        stages = {pool.name: stage for pool in settings if (stage := pool.stage()) is not None}
        for pool in (*settings, *stages.values()):
            each = self._running.get(pool.name)
            if each is None:
                shared = self._shared if pool in settings else self._unpublished
                each = RunningPool(pool, shared, self._renew_picker)
                steps.append(each.start)
            else:
                steps.append(each.prepare(pool))
            running[pool.name] = each
        for pool in settings:
            helpers = running[stages[pool.name].name].pool if pool.name in stages else None
            answering = running[pool.name].pool
            prefill = self._shared.wiring.prefill(pool, answering, helpers)
            steps.append(partial(setattr, answering, "prefill", prefill))
        picker = Picker(running[pool.name].route(pool) for pool in settings)

        def put_in_force() -> None:
            gone = [each for each in self if each.name not in running]
            if self._first is None:
                self._first = frozenset(picker.routes)
            self._running, self.picker = running, picker
            for step in (*steps, *(each.close for each in gone)):
                _run(step)

        return put_in_force

    def stop_holding(self) -> None:
        """Refuses the requests that wait for room, and queues no more."""
        for each in self:
            if each.pool.queue is not None:
                each.pool.queue.shut()

    async def stop(self) -> None:
        tasks = [task for each in self for task in each.stop()]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _renew_picker(self) -> None:
        routed = [self._running[name] for name in self.picker.routes]
        self.picker = Picker(each.route(each.settings) for each in routed)


def _run(step: Callable[[], object]) -> None:
    """Goes on after a bug: the other pools are changed all the same."""
    try:
        step()
    except Exception as error:  # noqa: BLE001  # as said
        log.error("a pool was not changed as a whole: %s", describe_error(error))  # noqa: TRY400  # one line
