"""What a prompt would cost at each endpoint worth comparing, and which ones those are. Pure."""

# The rule. All in milliseconds of engine time, for one request and one endpoint e, with n requests in
# flight there:
#
#   cost(e) = (1 + n/10) · prefill · (Σ A(part) · missing(e, part) + evicted(e))
#           + backlog(e) + w · n + prefill · cache · u⁶/6
#
# and the least cost wins. Its constants are the fields of `Rule`. What each is worth: "What each term
# of the cost is worth" in docs/why; that a change moves nothing else: `make golden`.
#
# - 1 + n/10: a prefill holds up the requests that decode there, about a tenth of its time each.
#   Without it a pool near its capacity copies prefixes to idle endpoints, evicts others for them,
#   and tips over (simulated).
# - A prompt falls into parts at its forks: places where others with the same beginning went on
#   differently. The last part is its own, and A is 1. The part before a fork is shared with others:
#   prefilled once more it becomes another copy, of use to those that part from all others there, or
#   further down, while one of these is open. With k copies now, u such requests a second, and a copy
#   living for l seconds, A = 1 / (1 + u·l / (k + 1)): a copy's price divided among its users. l is
#   for how long what is evicted next was not used, in the cache where that is least: what copies
#   push out there is missed. Before caches are full it is how long what fits takes to come.
#   (Until 0.3 each request that passed counted. But a conversation's next turn goes where its own
#   blocks are, and a client that sends one request after the other needs no second copy: an
#   editor's completions copied each file again and again, and documents of 50,000 tokens too.)
# - evicted(e) is missing(e) · exp(-age / 10 s), where e's cache is full and what would be evicted
#   next was last used `age` ago. Blocks used a moment ago will soon be needed. They are prefilled
#   again then, and push out others; so they weigh as much as what the request lacks.
# - backlog(e) is the prefill that was sent to e and cannot be done yet, drained by the clock at 0.8
#   of real time; at most that of the open requests. Without it a burst of new prompts meets on one
#   endpoint.
# - w is what a request in flight costs the next one: a quarter of a step, at least a twentieth of
#   the mean prefill. On a fast engine a step is short, while an agent's context keeps a cache
#   filled.
# - u is the share of e's cache that requests use, at most 1: what the engine said at its last scrape,
#   with what the prompts need that waited there, and what open ones took or gave back since. Where
#   it is full, the next request waits for another's end, which takes as long as answers do; prompts
#   tell nothing of those. So the whole cache has a price, a sixth of its prefill when all of it is in
#   use, and next to nothing below a half. Without metrics u is what open prompts use. (Tried: a linear
#   price, which costs unequal engines a third; twice and half of it; the price by request in flight
#   that it replaces, which was blind to answers: with 3,000 tokens an answer requests waited a minute.)
# - Of an earlier turn the answer counts as cached, too, though it was never seen: the engine wrote
#   it itself.
#
# Compared are the two endpoints that hold most of the prompt, and the two with least to do. Not
# only for speed. With all of them compared, a queue keeps its prompts' blocks pinned, so the index
# counts more and more of them there, and more arrives: that runs away near capacity (simulated).
#
# Mostly nothing has to be compared: a conversation is at one endpoint, and what any other lacks of
# it costs more than what waits there. The least that others may cost shows it, and the choice is
# the same.

from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf
from operator import attrgetter
from typing import Final

from msgspec import Struct

from extproc.router.routing.prompt.chain import Chain
from extproc.router.routing.strategies.base import Candidates, ClockAndRandom, CostRow
from extproc.router.routing.strategies.prefix_cache.engine import EngineModel
from extproc.router.routing.strategies.prefix_cache.homes import (
    NO_HOMES,
    GatewayCount,
    Homes,
    find_homes,
)
from extproc.router.routing.strategies.prefix_cache.index import Holding, PrefixIndex


class Rule(Struct, frozen=True, forbid_unknown_fields=True):
    """The constants of the cost, with what the router ships. They hold for every engine and workload.

    An arm of the simulator changes one (`--arm prefix_cache:evicted=0`); no operator does.
    """

    shared: float = 1.0
    """Weight of a shared part's uses; 0: each copy is as dear as the first, A is 1."""
    hold_up: float = 0.1
    """What a prefill costs more for each request in flight there, which it holds up."""
    evicted: float = 1.0
    """Weight of what a prefill evicts, beside what the request lacks."""
    evicted_s: float = 10.0
    """Of blocks that were used this many seconds ago, a third will be needed again soon."""
    backlog: float = 1.0
    """Weight of prefill that was sent to an endpoint and is not done yet."""
    drain: float = 0.8
    """Milliseconds of prefill that an endpoint does in a millisecond."""
    step: float = 0.25
    """Steps that a request in flight costs the next one."""
    prefill: float = 0.05
    """Mean prefills that it costs at least."""
    memory: float = 1.0
    """Weight of the KV cache in use."""


THE_RULE: Final = Rule()


class _Backlog(Struct, gc=False):
    """When an endpoint's prefill is done by the clock, and the prefill of its open requests."""

    done_at: float = -inf
    open_ms: float = 0.0


class Backlogs:
    """Prefill sent to endpoints, by name, and not done yet, drained by the clock.

    Of an endpoint that is not followed there is none, and nothing is added.
    """

    __slots__ = ("_drain_ms", "_found", "_weight")

    def __init__(self, rule: Rule = THE_RULE) -> None:
        self._found: dict[str, _Backlog] = {}
        self._weight = rule.backlog
        self._drain_ms = 1000 * rule.drain  # a second

    def follow(self, names: Iterable[str]) -> None:
        self._found = {name: self._found.get(name) or _Backlog() for name in names}

    def add(self, name: str, ms: float, now: float) -> None:
        found = self._found.get(name)
        if found is not None:
            ms *= self._weight
            found.open_ms += ms
            found.done_at = max(found.done_at, now) + ms / self._drain_ms

    def end(self, name: str, ms: float, now: float) -> None:
        """Ends a request that was added with so much: no more waits than the open ones brought.

        The clock alone may be wrong by seconds where a pool is overloaded, and an idle endpoint
        was left alone for them.
        """
        found = self._found.get(name)
        if found is not None:
            found.open_ms = max(0.0, found.open_ms - self._weight * ms)
            found.done_at = min(found.done_at, now + found.open_ms / self._drain_ms)

    def ms(self, name: str, now: float) -> float:
        found = self._found.get(name)
        return (found.done_at - now) * self._drain_ms if found and found.done_at > now else 0.0


# Endpoints nominated, of so many looked at: the least of 16 is hardly worse than the least of
# 1,000.
_NOMINEES: Final = 2
_LOOKED_AT: Final = 16


class Stretch(Struct, frozen=True):
    """Bytes of a prompt between two forks, and what a missing one weighs."""

    start: int
    stop: int
    weight: float

    def missing(self, reach: int) -> float:
        """Weighed bytes that an endpoint lacks which has `reach` bytes of the prompt."""
        start = max(reach, self.start)
        return self.weight * (self.stop - start) if self.stop > start else 0.0


# A share of a cache. Less is not felt: a trace of it, seen at a scrape seconds ago, would decide
# between idle endpoints until the next scrape.
_FELT: Final = 0.02


class _Request(Struct, frozen=True):
    """One request at one moment: `matched` of its blocks are in some cache.

    `homes` are empty for a single gateway. `waits` has what waits at an endpoint, by name, of those
    that were looked at.
    """

    chain: Chain
    candidates: Candidates
    now: float
    matched: int
    stretches: Sequence[Stretch]
    homes: Homes
    waits: dict[str, float]


def _missing(reach: int, request: _Request) -> float:
    """Weighed bytes that an endpoint lacks which has `reach` bytes of the prompt."""
    return sum(stretch.missing(reach) for stretch in request.stretches)


class CostModel:
    """Computes costs from an `index`, `backlogs`, the `engine` model and the number of `gateways`."""

    def __init__(
        self,
        outside: ClockAndRandom,
        index: PrefixIndex,
        backlogs: Backlogs,
        engine: EngineModel,
        gateways: GatewayCount,
        *,
        rule: Rule = THE_RULE,
    ) -> None:
        self._clock, self._rng = outside.clock, outside.rng
        self._index, self._backlogs = index, backlogs
        self._engine, self._gateways = engine, gateways
        self._rule = rule

    @property
    def ms_per_request(self) -> float:
        """What a request in flight costs the next one: its part of a step, or of prefills that it will bring."""
        rule, engine = self._rule, self._engine
        return max(rule.step * engine.step_ms, rule.prefill * engine.mean_prefill_ms)

    def rows(self, chain: Chain, candidates: Candidates, count: int) -> list[CostRow]:
        """What the endpoints worth comparing would cost, the cheapest first; never empty.

        Where `count` is 1, and one is cheapest for sure, that one alone.
        """
        request = self._see(chain, candidates)
        sure = self._sure(request) if count == 1 and request.matched else None
        if sure is not None:
            return [sure]
        warmest = self._warmest(request)
        idle = self._least([*islice(candidates.least_loaded(self._rng), _LOOKED_AT)], request)
        nominees = dict.fromkeys((*warmest, *idle[:_NOMINEES], *request.homes.names))
        return sorted([self._row(name, request) for name in nominees], key=attrgetter("cost_ms"))

    def compute_ms(self, row: CostRow) -> tuple[float, float]:
        """What the row's endpoint needs to compute what it lacks, and what those count that it holds up."""
        ms = (row.prompt_bytes - row.match_bytes) * self._engine.prefill_ms(row.endpoint)
        return ms, ms * self._rule.hold_up * row.in_flight

    def stretches(self, chain: Chain) -> Sequence[Stretch]:
        """The parts of a prompt, and what they weigh now."""
        return self._stretches(chain, self._index.matched(chain.hashes), self._clock())

    def _see(self, chain: Chain, candidates: Candidates) -> _Request:
        now, matched = self._clock(), self._index.matched(chain.hashes)
        stretches, homes = (
            self._stretches(chain, matched, now),
            self._homes(chain, matched, candidates),
        )
        return _Request(chain, candidates, now, matched, stretches, homes, {})

    def _homes(self, chain: Chain, matched: int, candidates: Candidates) -> Homes:
        gateways = self._gateways
        if gateways.is_alone and not gateways.is_cut:
            return NO_HOMES
        reach = chain.cached_bytes(matched)
        if gateways.is_whole_at_one(chain, reach, self._index.since(chain.home)):
            _, seen = next(self._index.holders(chain.hashes, matched))
            if len(seen) == 1:
                return (
                    Homes({seen[0].name: chain.answered_bytes})
                    if candidates.allows(seen[0].name)
                    else NO_HOMES
                )
        return NO_HOMES if gateways.is_alone else find_homes(chain, reach, candidates.walk)

    def _stretches(self, chain: Chain, matched: int, now: float) -> list[Stretch]:
        index, rule = self._index, self._rule
        forks = index.forks(chain.hashes, matched)
        life_s = index.life_s(now) if forks else 0.0
        stretches, stop, weight, uses = [], chain.size, 1.0, 0.0
        for blocks in reversed(forks):
            start, fork = chain.ends[blocks - 1], chain.hashes[blocks - 1]
            stretches.append(Stretch(start, stop, weight))
            uses += rule.shared * index.uses(fork, now)
            stop, weight = start, 1 / (1 + uses * life_s / (index.copies(fork) + 1))
        stretches.append(Stretch(0, stop, weight))
        return stretches[::-1]

    def _sure(self, request: _Request) -> CostRow | None:
        """The one that holds most, if it costs less than the least that any other may cost."""
        chain, engine = request.chain, self._engine
        levels = self._index.holders(chain.hashes, request.matched)
        blocks, holders = next(levels)
        if len(holders) != 1 or request.homes is not NO_HOMES or engine.slow:
            return None
        row = self._row(holders[0].name, request, blocks)
        elsewhere, _ = next(levels, (0, ()))
        lacking_ms = _missing(chain.cached_bytes(elsewhere), request) * engine.ms_per_byte
        if row.cost_ms > lacking_ms and len(request.candidates) <= _LOOKED_AT:
            self._weigh(request.candidates.names, request)
            lacking_ms += min(request.waits.values())
        return (
            row if row.cost_ms <= lacking_ms and request.candidates.allows(row.endpoint) else None
        )

    def _row(self, name: str, request: _Request, blocks: int = 0) -> CostRow:
        """As far as it is known, an endpoint has so many `blocks` of the prompt."""
        chain, holding, engine, homes = (
            request.chain,
            self._index.holding(name),
            self._engine,
            request.homes,
        )
        if holding is not None and not blocks:
            blocks = holding.depth(chain.hashes, request.matched)
        reach = chain.cached_ends[blocks - 1] if blocks else 0
        is_own_home, is_home = False, False
        if homes is not NO_HOMES:
            reach = max(reach, homes.presumed.get(name, 0))
            is_own_home, is_home = name == homes.own, name in homes.names
        missing, in_flight = _missing(reach, request), request.candidates.in_flight(name)
        lacking = missing
        if holding is not None:
            rule = self._rule
            missing += rule.evicted * holding.evicts(
                chain.size - reach, request.now, rule.evicted_s
            )
        held_up = 1 + self._rule.hold_up * in_flight
        missing *= held_up
        if is_own_home:
            missing = lacking = 0.0
        if name not in request.waits:
            self._weigh((name,), request)
        each_ms = engine.prefill_ms(name)
        cost_ms = missing * each_ms + request.waits[name]
        waits = self._backlogs.ms(name, request.now), in_flight
        return CostRow(
            name,
            blocks,
            reach,
            chain.size,
            engine.bytes_per_token,
            *waits,
            cost_ms,
            is_home,
            lacking * held_up * each_ms,
        )

    def _weigh(self, names: Iterable[str], request: _Request) -> None:
        """Notes what a request would wait for at these endpoints, in milliseconds."""
        engine, waits, in_flight = self._engine, request.waits, request.candidates.in_flight
        backlog_ms, now, per_request = self._backlogs.ms, request.now, self.ms_per_request
        has_more = engine.slow or engine.others_ms
        for name in names:
            if name in waits:
                continue
            ms = in_flight(name) * per_request + self._memory_ms(name)
            if has_more:
                ms = (ms + engine.others_ms.get(name, 0.0)) * engine.slow.get(name, 1.0)
            waits[name] = ms + backlog_ms(name, now)

    def _memory_ms(self, name: str) -> float:
        """What the endpoint's cache in use costs: the fuller, the sooner a request waits for memory."""
        holding = self._index.holding(name)
        if holding is None or not self._rule.memory:
            return 0.0
        used = holding.pinned_bytes / max(1, holding.capacity) + self._engine.unseen.get(name, 0.0)
        if used < _FELT:
            return 0.0
        used = min(1.0, used)
        return self._rule.memory * self._engine.ms_per_byte * holding.capacity * used**6 / 6

    def _warmest(self, request: _Request) -> list[str]:
        """Those that hold most of the chain, of equals the ones with least to do."""
        found: list[str] = []
        levels = self._index.holders(request.chain.hashes, request.matched)
        for _, holders in islice(levels, _LOOKED_AT):
            names = [holding.name for holding in self._some(holders)]
            fit = [name for name in names if name not in found and request.candidates.allows(name)]
            found += self._least(fit, request)[: _NOMINEES - len(found)]
            if len(found) == _NOMINEES:
                break
        return found

    def _least(self, names: list[str], request: _Request) -> list[str]:
        """Sorts endpoints by what waits there."""
        self._weigh(names, request)
        names.sort(key=request.waits.__getitem__)
        return names

    def _some(self, holders: Sequence[Holding]) -> Sequence[Holding]:
        if len(holders) <= _LOOKED_AT:
            return holders
        start = int(self._rng.random() * (len(holders) - _LOOKED_AT + 1))
        return holders[start : start + _LOOKED_AT]


# When new conversations are refused, and why.
#
# While conversations go on, their contexts have to stay in the caches from turn to turn. Beyond
# some load they do not: evicted parts are computed again, answers come later, conversations last
# longer, more of them are open at a time, and each new one evicts what another needs next. Hits
# fall to nothing, whatever the strategy, and stay there (simulated): the endpoints are as busy as
# before, and answer a fraction.
#
# The first sign is how much of its earlier turns a conversation still finds. Each request with
# earlier turns shows that when it comes; here it is averaged over some fifty of them. From `_FEW_FOUND`
# of it down a part of the new conversations is refused, at `_NONE` all of them, and those that go
# on keep what they have. A new one costs the others most and itself least: nobody waits for its
# next word yet.
#
# - A conversation is new if it has no earlier turn, and less than half of its prompt is cached:
#   where a long system prompt or a document is shared, a new conversation adds little, and is let
#   in.
# - Turns that other gateways answered look like evicted ones. So this is for a single gateway, or
#   for several that share their picks; while some of the others are silent, nothing is refused.
# - Nothing is refused while the caches are not full: after a start nothing is found, either.
# - A part is refused, not all: refusing all would empty the endpoints, and let too many in a moment
#   later.

_FEW_FOUND: Final = 0.9
_NONE: Final = 0.6
_EACH: Final = 0.02


class Shedding:
    """The share of earlier turns that is still in some cache, averaged."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found = 1.0

    def note_turn(self, answered: int, reach: int) -> None:
        """Notes how many bytes of earlier turns a request has, and how many of it are in some cache."""
        self.found += _EACH * (min(1.0, reach / answered) - self.found)

    @property
    def refused(self) -> float:
        """The share of new conversations that had better not begin now."""
        return min(1.0, max(0.0, (_FEW_FOUND - self.found) / (_FEW_FOUND - _NONE)))
