"""Brings what becomes of requests to the pools that they went to."""

from collections.abc import Callable, Mapping
from time import time
from typing import Final

from extproc.router.feedback.outcome import Exchange, judge_response, outcomes
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

    def take(self, exchange: Exchange) -> None:
        """Takes an entry of an access log, once; one without a live number is not believed."""
        pick = self.tickets.take(exchange.ticket)
        if pick is None:
            return
        trace_id = self.tickets.trace_of(exchange.ticket)
        pool = self._pools().get(pick.pool.name)
        if pool is not None:
            for outcome in outcomes(exchange, time()):
                pool.feedback.observe(outcome, trace_id)
        # Of one that nobody answered there is a status, too, unless its client left.
        pick.learn(Ending(exchange.status or None, exchange.first_token_s), exchange.address)

    def observe_response(self, served: Served, elapsed_s: float) -> None:
        """Takes the headers of a response, from a gateway."""
        pool = self._pools().get(served.pool)
        if pool is not None and served.response.status:
            pool.feedback.observe_response(judge_response(served, elapsed_s, time()))
            is_last_word = served.response.status >= _FAILED and not pool.feedback.has_log
            pick = self.tickets.take(served.ticket) if is_last_word else None
            if pick is not None:
                pick.learn(Ending(served.response.status), served.address)
