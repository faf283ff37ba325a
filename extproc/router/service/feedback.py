"""Brings what becomes of requests to the pools that they went to."""

from collections.abc import Callable, Mapping
from time import time
from typing import Final

from extproc.router.feedback.outcome import Exchange, Outcome, judge_response
from extproc.router.routing.strategies.base import Ending, Outside
from extproc.router.routing.tickets import Tickets
from extproc.router.service.running_pool import RunningPool
from extproc.router.stream.events import Served

_FAILED: Final = 500


class Feedback:
    """`pools` returns the running pools by name; `tickets` find the pick that a proxy tells of."""

    def __init__(self, outside: Outside, pools: Callable[[], Mapping[str, RunningPool]]) -> None:
        self.tickets = Tickets(outside.clock, outside.rng.getrandbits(64))
        self._pools = pools

    def observe(self, outcome: Outcome) -> None:
        """Takes an entry of an access log. One that we did not route names no pool, its endpoint may."""
        running = self._pools()
        pool = running.get(outcome.pool)
        if pool is None and not outcome.pool:
            pool = next((each for each in running.values() if each.feedback.knows(outcome.address)), None)
        if pool is not None:
            pool.feedback.observe(outcome, self.tickets.trace_of(outcome.ticket) if outcome.ticket else "")

    def settle(self, exchange: Exchange) -> None:
        """Tells the strategy that placed a request what became of it."""
        pick = self.tickets.take(exchange.ticket)
        if pick is not None:
            # Of one that nobody answered there is a status, too, unless its client left.
            pick.learn(Ending(exchange.status or None, exchange.first_token_s), exchange.address)

    def observe_response(self, served: Served, elapsed_s: float) -> None:
        """Takes the headers of a response, from a gateway."""
        pool = self._pools().get(served.pool)
        if pool is not None and served.response.status:
            pool.feedback.observe_response(judge_response(served, elapsed_s, time()))
            pick = self.tickets.take(served.ticket) if served.response.status >= _FAILED else None
            if pick is not None:
                pick.learn(Ending(served.response.status), served.address)
