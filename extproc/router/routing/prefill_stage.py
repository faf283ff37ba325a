"""Who computes a prompt: the endpoint that answers, or one that only prefills and sends it the result. Pure."""

# The rule. For a decode endpoint d and the cheapest prefill endpoint p, in milliseconds as `rule` has them:
#
#   ready   = cost(p) + overhead + tokens that d lacks · bytes a token / bandwidth
#   saved   = what d would need to compute what it lacks, and so hold up those that decode there
#   gain(d) = saved - max(0, ready - backlog(d))
#
# and the least of cost(d) - gain(d) is compared with the least cost(d). So one formula has both queues:
# that of d, where the request stands in line with or without p, and that of p, in cost(p). What
# stays at d either way (requests in flight, memory, what the prompt evicts) cancels out.
#
# - Others send a prompt away from so many tokens on, whatever waits where; a study of that found
#   first tokens up to 20 times later than need be. Here a queue at p brings prompts back to d.
# - An endpoint that holds the whole prompt saves nothing, so nothing is gained by sending it away.
# - Near the edge nothing is won, and a second engine is one more that may fail: a prompt stays local
#   unless it is done a twentieth sooner. A prefill endpoint that fails and comes back is no reason to go
#   back and forth either: it is cooled down like any other, each time for longer.
# - p is a pick of a pool of its own, so that it has an index, a load, a backlog and a health of its
#   own, and other replicas hear of it: nothing here keeps any of that.
#
# What was left out: a threshold beside the cost, which only repeats `overhead_ms`; a memory of the
# last decision, since two prompts of different lengths have nothing to do with each other.

from typing import Final

from msgspec import Struct

from extproc.errors import NoEndpoint
from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.strategies.base import Candidates, Choice, CostRow, Reading
from extproc.router.routing.strategies.prefix_cache.strategy import (
    LOCAL_PREFILL,
    REMOTE_PREFILL,
    SESSION,
)

STEPS_OF_A_TRANSFER: Final = 1.5
"""What a second engine adds whatever the prompt: the rest of the step that runs there, and one more."""

# The share of its cost that a prompt must save to be sent away.
_EDGE: Final = 0.05
# One alone would be told without what the others cost.
_FEWEST: Final = 2


class Transfer(Struct, frozen=True):
    """What it takes to move a computed prompt from one engine to another.

    `overhead_ms` is for a request more, whatever its length: the steps of a second engine.
    """

    overhead_ms: float
    bytes_per_token: int = 131_072
    gbit_per_s: float = 100.0

    def ms(self, tokens: int) -> float:
        return self.overhead_ms + tokens * self.bytes_per_token * 8 / (self.gbit_per_s * 1e6)


class PrefillStage:
    """The prefill endpoints of a pool: `pool` is theirs, of a strategy that compares costs as the other's does."""

    def __init__(self, pool: Pool, transfer: Transfer) -> None:
        self.pool = pool
        self.transfer = transfer

    def __repr__(self) -> str:
        return f"<PrefillStage {self.pool!r}>"

    def choose(
        self, reading: Reading, candidates: Candidates, count: int, adapter: str
    ) -> tuple[Choice, Pick | None]:
        """Returns the endpoints that answer, best first, and the pick that prefills; `None`: the first of them."""
        reading.expect_transfer(is_computed=False)
        choice = reading.choose(candidates, max(count, _FEWEST))
        rows, prefill = reading.costs, self.propose(reading, adapter)
        if prefill is None:
            return Choice(choice.names[:count], choice.reason), None
        ready_ms = prefill.reading.costs[0].cost_ms
        costs_ms = {
            row.endpoint: row.cost_ms - self._gain_ms(reading, row, ready_ms, prefill.endpoint.name)
            for row in rows
        }
        best = min(costs_ms, key=costs_ms.__getitem__)
        if costs_ms[best] >= (1 - _EDGE) * rows[0].cost_ms:
            reason = choice.reason if choice.reason is SESSION else LOCAL_PREFILL
            return Choice(choice.names[:count], reason), None
        reading.expect_transfer(is_computed=True)
        names = dict.fromkeys((best, *choice.names))
        return Choice(tuple(names)[:count], REMOTE_PREFILL), prefill

    def propose(self, reading: Reading, adapter: str) -> Pick | None:
        """`None`: there is no prompt, or nobody to compute it."""
        chain, _ = reading.content()
        read = None if chain is None or not reading.costs else self.pool.strategy.read_chain(chain)
        try:
            pick = None if read is None else self.pool.propose(read, adapter=adapter)
        except NoEndpoint:
            return None
        return pick if pick is not None and pick.reading.costs else None

    def _gain_ms(self, reading: Reading, row: CostRow, ready_ms: float, helper: str) -> float:
        """How much sooner the row's endpoint would answer if the prompt came computed; 0: from itself."""
        if row.endpoint == helper:
            return 0.0
        ready_ms += self.transfer.ms(row.miss_tokens)
        return reading.compute_ms(row) - max(0.0, ready_ms - row.backlog_ms)
