"""What is heard of requests, brought to the pools that they went to; and who asks for health."""

import asyncio
from collections.abc import Iterator, Sequence
from time import time

from extproc.feedback.cooling import Cooling
from extproc.feedback.desk import Desk
from extproc.feedback.headers import judge_response
from extproc.feedback.outcome import Outcome
from extproc.feedback.probes import Prober
from extproc.routing.endpoint import Endpoint
from extproc.routing.pool import Pool
from extproc.routing.strategies.base import Outside
from extproc.service.wiring import build_pool, build_probe, build_rules
from extproc.settings import PoolSettings
from extproc.stream.events import Served


class Desks:
    """One desk per pool, and one prober where the pool's settings ask for it. Needs a running event loop."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._desks: dict[str, Desk] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[Desk]:
        return iter(self._desks.values())

    def open(self, settings: PoolSettings) -> Pool:
        """Builds a pool whose endpoints may be left out, and hears of its requests from now on."""
        cooling = Cooling(build_rules(settings), clock=self._outside.clock, rng=self._outside.rng)
        pool = build_pool(settings, self._outside, cooling)
        self._desks[settings.name] = Desk(pool, cooling)
        self._probe(settings)
        return pool

    def change(self, before: PoolSettings, after: PoolSettings) -> None:
        self._desks[after.name].cooling.rules = build_rules(after)
        if build_probe(after) != build_probe(before):
            self._stop_probe(after.name)
            self._probe(after)

    def close(self, name: str) -> None:
        self._stop_probe(name)
        del self._desks[name]

    async def stop(self) -> None:
        probes = list(self._probes.values())
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)

    def observe(self, outcome: Outcome) -> None:
        """Takes what became of a request. One that we did not route names no pool, its endpoint may."""
        desk = self._desks.get(outcome.pool)
        if desk is None and not outcome.pool:
            desk = next((desk for desk in self if desk.knows(outcome.address)), None)
        if desk is not None:
            desk.observe(outcome)

    def observe_response(self, served: Served, elapsed_s: float) -> None:
        """Takes what a gateway tells of a response's headers."""
        desk = self._desks.get(served.pool)
        if desk is not None and served.response.status:
            desk.observe_response(judge_response(served, elapsed_s, time()))

    def keep(self, name: str, endpoints: Sequence[Endpoint]) -> None:
        """Forgets what was counted of endpoints that are gone."""
        if name in self._desks:
            self._desks[name].tally.keep({endpoint.name for endpoint in endpoints})

    def _probe(self, settings: PoolSettings) -> None:
        plan = build_probe(settings)
        if plan is not None:
            run = Prober(self._desks[settings.name], plan, rng=self._outside.rng).run()
            self._probes[settings.name] = asyncio.create_task(run, name=f"probe {settings.name}")

    def _stop_probe(self, name: str) -> None:
        probe = self._probes.pop(name, None)
        if probe is not None:
            probe.cancel()
            self._desks[name].cooling.forget_health()
