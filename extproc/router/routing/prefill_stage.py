"""Who computes a prompt: the endpoint that answers, or one that only prefills and sends it the result. Pure."""

# The rule. For a decode endpoint d with n requests in flight, and the cheapest prefill endpoint p, in milliseconds as
# `rule` has them:
#
#   ready    = cost(p) + overhead + tokens that d lacks · bytes a token / bandwidth
#   stay(d)  = cost(d) - lacking(d): what waits there, and what the prompt evicts
#   w(d)     = lacking(d) / (compute(d) · (1 + n/10))
#   there(d) = stay(d) + w(d) · max(0, ready - backlog(d))
#   here(d)  = stay(d) + w(d) · compute(d) · (1 + n/2)
#
# where lacking(d) is the term of cost(d) for what d lacks of the prompt. The least there(d) is
# compared with here(d) of the cheapest d. So one formula has both queues:
# that of d, where the request stands in line with or without p, and that of p, in cost(p). What
# stays at d either way (requests in flight, memory, what the prompt evicts) cancels out.
#
# - w is 1 where a prompt is its own. What others share counts less, as in `rule`: one more copy is of use
#   to them, wherever it was computed. (Simulated: without w agents get their answers 3 % later.)
# - What a prompt does to the answers that stream counts five times as much as where endpoints are
#   compared that all answer: there somebody is held up wherever it goes, and here nobody need be. A
#   millisecond between two tokens is then worth half of one before the first. (Simulated: with a
#   tenth whole answers take up to 20 % longer than with everything sent away. With all of it they are
#   no faster, but first tokens wait up to a fifth longer for p.)
# - Nobody's answer streams from p: by `NOBODY_STREAMS` a request in flight there costs nothing but its backlog, which
#   the clock drains. Else a queue at p looks longer than it is, and keeps prompts where they hold up
#   others. An answer that is not streamed counts at p until it is there, since nothing tells us
#   before; so that count must not decide.
# - Others send a prompt away from so many tokens on, whatever waits where; a study of that found
#   first tokens up to 20 times later than need be. Here a queue at p brings prompts back to d.
# - An endpoint that holds the whole prompt saves nothing, so nothing is gained by sending it away.
# - Near the edge nothing is won, and a second engine is one more that may fail: a prompt stays local
#   unless it is done a twentieth sooner. A prefill endpoint that fails and comes back is no reason to go
#   back and forth either: it is cooled down like any other, each time for longer.
# - p is a pick of a pool of its own, so that it has an index, a load, a backlog and a health of its
#   own, and other replicas hear of it: nothing here keeps any of that.
# - Only what llm-d's sidecar does in two steps is sent away: one answer to one prompt, by the paths
#   that it knows. For vLLM a batch, or several answers, are as many requests, and its response has
#   one handle of blocks (`kv_transfer_params`): the first one's.
# - Endpoints of different revisions may lay out keys and values differently. Where a label tells them
#   apart, each d has the cheapest p of its own revision, and a retry goes to no other one either.
#
# What was left out: the bandwidth, learnt from first tokens, which come late by much else. A wrong one costs
# little (simulated: a third of what there is makes answers of agents 3 % slower, and three times as
# much none). And a threshold beside the cost, which only repeats `overhead_ms`; a memory of the
# last decision, since two prompts of different lengths have nothing to do with each other.

from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from extproc.errors import NoEndpoint
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pick, Pool
from extproc.router.routing.strategies.base import Candidates, Choice, CostRow, Reading
from extproc.router.routing.strategies.prefix_cache.rule import Rule
from extproc.router.routing.strategies.prefix_cache.strategy import (
    LOCAL_PREFILL,
    REMOTE_PREFILL,
    SESSION,
)

STEPS_OF_A_TRANSFER: Final = 1.5
"""What a second engine adds whatever the prompt: the rest of the step that runs there, and one more."""

NOBODY_STREAMS: Final = Rule(hold_up=0.0, step=0.0, prefill=0.0)
"""The rule by which prefill endpoints are compared."""

# How often a prefill's harm to answers that stream counts, of what `hold_up` has of it.
_HARM: Final = 5
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
        return self.overhead_ms + self.way_ms(tokens)

    def way_ms(self, tokens: int) -> float:
        """How long the bytes of so many tokens are under way."""
        return tokens * self.bytes_per_token * 8 / (self.gbit_per_s * 1e6)


class PrefillStage:
    """The prefill endpoints of a pool: `pool` is theirs, of a strategy that compares costs as the other's does.

    They compute for the endpoints of `answering`, the other pool, each for those of its own revision.
    """

    def __init__(self, pool: Pool, transfer: Transfer, answering: Pool) -> None:
        self.pool = pool
        self.transfer = transfer
        self._answering = answering

    def __repr__(self) -> str:
        return f"<PrefillStage {self.pool!r}>"

    def choose(
        self, reading: Reading, candidates: Candidates, count: int, adapter: str
    ) -> tuple[Choice, Pick | None]:
        """Returns the endpoints that answer, best first, and the pick that prefills; `None`: the first of them."""
        reading.expect_transfer(is_computed=False)
        choice = reading.choose(candidates, max(count, _FEWEST))
        ready = self._answering.snapshot.ready
        revisions = {row.endpoint: ready[row.endpoint].revision for row in reading.costs}
        picks = {
            revision: pick
            for revision in dict.fromkeys(revisions.values())
            if (pick := self.propose(reading, adapter, revision)) is not None
        }
        offers = [
            (self._there_ms(reading, row, pick), row.endpoint)
            for row in reading.costs
            if (pick := picks.get(revisions[row.endpoint])) is not None
        ]
        if not offers:
            return Choice(choice.names[:count], choice.reason), None
        there_ms, best = min(offers)
        if there_ms >= (1 - _EDGE) * self._here_ms(reading, reading.costs[0]):
            reason = choice.reason if choice.reason is SESSION else LOCAL_PREFILL
            return Choice(choice.names[:count], reason), None
        reading.expect_transfer(is_computed=True)
        helper = picks[revisions[best]]
        # A retry takes the header along: who gets it must suit the helper, and not be it.
        alike = [
            name
            for name in dict.fromkeys((best, *choice.names))
            if ready[name].revision == revisions[best] and not _is_one(ready[name], helper.endpoint)
        ]
        others = [each for each in helper.fallbacks if not _is_one(ready[best], each)]
        return Choice(tuple(alike[:count]), REMOTE_PREFILL), replace(
            helper, fallbacks=tuple(others)
        )

    def propose(self, reading: Reading, adapter: str, revision: str = "") -> Pick | None:
        """`None`: there is no prompt, or nobody to compute it."""
        chain, _ = reading.content()
        read = None if chain is None or not reading.costs else self.pool.strategy.read_chain(chain)
        if read is None:
            return None
        snapshots = self.pool.snapshot, self._answering.snapshot
        is_learnt = any(adapter in each.by_adapter for each in snapshots)
        # Not left to the pool: of endpoints that are named to it, it takes one on trial rather than none.
        names = self.pool.candidates().names
        fit = [
            each.address
            for each in map(self.pool.snapshot.ready.__getitem__, names)
            if each.revision == revision and (not is_learnt or adapter in each.adapters)
        ]
        try:
            return self.pool.propose(read, subset=None if len(fit) == len(names) else fit)
        except NoEndpoint:
            return None

    def _here_ms(self, reading: Reading, row: CostRow) -> float:
        """What it costs that the row's endpoint computes the prompt."""
        compute_ms, held_up_ms = reading.compute_ms(row)
        return _cost_ms(reading, row, compute_ms + _HARM * held_up_ms)

    def _there_ms(self, reading: Reading, row: CostRow, helper: Pick) -> float:
        """What it costs that the helper computes the prompt for the row's endpoint; of no use to itself."""
        if _is_one(self._answering.snapshot.ready[row.endpoint], helper.endpoint):
            return inf
        ready_ms = helper.reading.costs[0].cost_ms + self.transfer.ms(row.miss_tokens)
        return _cost_ms(reading, row, max(0.0, ready_ms - row.backlog_ms))


def _cost_ms(reading: Reading, row: CostRow, prompt_ms: float) -> float:
    """The row's cost if it takes so long until its endpoint has what it lacks."""
    alone_ms = sum(reading.compute_ms(row))
    weight = row.lacking_ms / alone_ms if alone_ms else 0.0
    return row.cost_ms - row.lacking_ms + weight * prompt_ms


def _is_one(endpoint: Endpoint, other: Endpoint) -> bool:
    """Whether two lists have the same endpoint, by another name perhaps, or at another port of its Pod."""
    return endpoint.name == other.name or endpoint.address == other.address
