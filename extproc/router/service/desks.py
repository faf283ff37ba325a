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
from extproc.router.routing.order import Order, Word
from extproc.router.routing.pool import Pool
from extproc.router.routing.strategies.base import Ending, Outside
from extproc.router.routing.tickets import Tickets
from extproc.router.service.siblings import (
    Gone,
    Judged,
    Known,
    Logged,
    Newcomer,
    News,
    OnTrial,
    Settled,
    Siblings,
)
from extproc.router.service.wiring import build_pool, build_probe, build_rules, build_scrape
from extproc.router.settings.tree import PoolSettings
from extproc.router.stream.events import Served

_FAILED: Final = 500


class Desks:
    """One desk per pool; one prober and one scraper where its settings ask for them.

    `tickets` find the pick that a proxy tells of. `siblings` are other workers: what they hear, `hear` takes.
    Needs a running event loop.
    """

    def __init__(self, outside: Outside, siblings: Siblings | None = None) -> None:
        self._outside = outside
        self._siblings = siblings
        self._lane, self._lanes = (siblings.lane, siblings.lanes) if siblings is not None else (0, 1)
        first = outside.rng.getrandbits(64)
        self.tickets = Tickets(outside.clock, first, lane=self._lane, lanes=self._lanes)
        self._scrapes: dict[str, asyncio.Task[None]] = {}
        self._desks: dict[str, Desk] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[Desk]:
        return iter(self._desks.values())

    def open(self, settings: PoolSettings) -> Pool:
        """Builds a pool whose endpoints may be left out, and hears of its requests from now on."""
        cooling = Cooling(build_rules(settings), clock=self._outside.clock, rng=self._outside.rng)
        pool = build_pool(settings, self._outside, cooling)
        self._desks[settings.name] = desk = Desk(pool, cooling)
        if self._siblings is not None:
            _connect(desk, self._siblings)
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
        owner = exchange.ticket % self._lanes
        if self._siblings is not None and owner != self._lane:
            self._siblings.tell_one(owner, Settled(exchange))
            return
        pick = self.tickets.take(exchange.ticket)
        if pick is not None:
            # Of one that nobody answered there is a status, too, unless its client left.
            pick.learn(Ending(exchange.status or None, exchange.first_token_s), exchange.address)

    def hear(self, lane: int, news: News) -> None:
        """Takes what another worker was told, or wants to know."""
        match news:
            case Settled(exchange):
                self.settle(exchange)
            case Newcomer():
                for desk in self:
                    self._introduce(lane, desk)
            case Word(pool):
                for order in self._orders(pool):
                    order.hear(lane, news)
            case Gone():
                for order in self._orders(*self._desks):
                    order.lose(lane)
            case Judged(pool) | OnTrial(pool) | Logged(pool) | Known(pool):
                if pool in self._desks:
                    _hear(self._desks[pool], news)

    def _orders(self, *pools: str) -> Iterator[Order]:
        """Those of pools where requests wait in the order of all workers."""
        for pool in pools:
            queue = self._desks[pool].pool.queue if pool in self._desks else None
            if queue is not None and queue.order is not None:
                yield queue.order

    def _introduce(self, lane: int, desk: Desk) -> None:
        if self._siblings is None:
            return
        if desk.has_log:
            self._siblings.tell_one(lane, Logged(desk.pool.name))
        charges = desk.cooling.charges()
        if charges:
            self._siblings.tell_one(lane, Known(desk.pool.name, charges))
        for order in self._orders(desk.pool.name):
            order.meet(lane)

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
            self._desks[name].forget_vitals()

    def _stop_probe(self, name: str) -> None:
        probe = self._probes.pop(name, None)
        if probe is not None:
            probe.cancel()
            self._desks[name].cooling.forget_health()


def _connect(desk: Desk, siblings: Siblings) -> None:
    pool = desk.pool.name
    desk.relay = lambda outcome: siblings.tell(Judged(pool, outcome))
    desk.on_log = lambda: siblings.tell(Logged(pool))
    desk.cooling.on_trial = lambda name: siblings.tell(OnTrial(pool, name))


def _hear(desk: Desk, news: Judged | OnTrial | Logged | Known) -> None:
    match news:
        case Judged():
            desk.hear(news.outcome)
        case OnTrial():
            desk.cooling.hear_trial(news.endpoint)
        case Logged():
            desk.hear_log()
        case Known():
            desk.cooling.adopt(news.charges)
