"""What is heard of requests, brought to the pools that they went to; and who asks endpoints how they are."""

import asyncio
from collections.abc import Iterator, Sequence
from time import time
from typing import Final

from extproc.router.feedback.cooling import Cooling
from extproc.router.feedback.desk import Desk
from extproc.router.feedback.headers import judge_response
from extproc.router.feedback.outcome import Exchange, Outcome
from extproc.router.feedback.probes import Prober
from extproc.router.feedback.scraper import Scraper
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import Ending, Outside
from extproc.router.routing.tickets import Tickets
from extproc.router.service.wiring import build_pool, build_probe, build_rules, build_scrape
from extproc.router.settings.tree import PoolSettings
from extproc.router.stream.events import Served

_FAILED: Final = 500


class Desks:
    """One desk per pool; one prober and one scraper where its settings ask for them.

    `tickets` find the pick that a proxy tells of. Needs a running event loop.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.tickets = Tickets(outside.clock, outside.rng.getrandbits(64))
        self._scrapes: dict[str, asyncio.Task[None]] = {}
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
        self._scrape(settings)
        return pool

    def change(self, before: PoolSettings, after: PoolSettings) -> None:
        self._desks[after.name].cooling.rules = build_rules(after)
        if build_probe(after) != build_probe(before):
            self._stop_probe(after.name)
            self._probe(after)
        if after.signals != before.signals:
            self._stop_scrape(after.name)
            self._scrape(after)

    def close(self, name: str) -> None:
        self._stop_probe(name)
        self._stop_scrape(name)
        del self._desks[name]

    async def stop(self) -> None:
        tasks = [*self._probes.values(), *self._scrapes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def observe(self, outcome: Outcome) -> None:
        """Takes what became of a request. One that we did not route names no pool, its endpoint may."""
        desk = self._desks.get(outcome.pool)
        if desk is None and not outcome.pool:
            desk = next((desk for desk in self if desk.knows(outcome.address)), None)
        if desk is not None:
            desk.observe(outcome, self.tickets.trace_of(outcome.ticket) if outcome.ticket else "")

    def settle(self, exchange: Exchange) -> None:
        """Tells the strategy that placed a request what became of it."""
        pick = self.tickets.take(exchange.ticket)
        if pick is not None:
            # Of one that nobody answered there is a status, too, unless its client left.
            pick.learn(Ending(exchange.status or None, exchange.first_token_s), exchange.address)

    def observe_response(self, served: Served, elapsed_s: float) -> None:
        """Takes what a gateway tells of a response's headers."""
        desk = self._desks.get(served.pool)
        if desk is not None and served.response.status:
            desk.observe_response(judge_response(served, elapsed_s, time()))
            pick = self.tickets.take(served.ticket) if served.response.status >= _FAILED else None
            if pick is not None:
                pick.learn(Ending(served.response.status), served.address)

    def keep(self, name: str, endpoints: Sequence[Endpoint]) -> None:
        """Forgets what was counted of endpoints that are gone."""
        if name in self._desks:
            self._desks[name].keep({endpoint.name for endpoint in endpoints})

    def _probe(self, settings: PoolSettings) -> None:
        plan = build_probe(settings)
        if plan is not None:
            run = Prober(self._desks[settings.name], plan, rng=self._outside.rng).run()
            self._probes[settings.name] = asyncio.create_task(run, name=f"probe {settings.name}")

    def _scrape(self, settings: PoolSettings) -> None:
        plan = build_scrape(settings)
        if plan is not None:
            run = Scraper(self._desks[settings.name], plan, rng=self._outside.rng).run()
            self._scrapes[settings.name] = asyncio.create_task(run, name=f"signals {settings.name}")

    def _stop_scrape(self, name: str) -> None:
        scrape = self._scrapes.pop(name, None)
        if scrape is not None:
            scrape.cancel()
            self._desks[name].forget_signals()

    def _stop_probe(self, name: str) -> None:
        probe = self._probes.pop(name, None)
        if probe is not None:
            probe.cancel()
            self._desks[name].cooling.forget_health()
