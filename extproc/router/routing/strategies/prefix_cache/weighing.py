"""What a prompt would cost at each endpoint worth asking, and which ones those are. Pure."""

# The rule. All in milliseconds of engine time, for one request and one endpoint e:
#
#   cost(e) = KEEP · prefill · Σ A(part) · missing(e, part)  +  backlog(e)  +  step / 4 · in flight(e)
#
# and the least cost wins.
#
# - A prompt falls into parts at its forks: places where others with the same beginning went on differently.
#   The last part is its own, and A is 1 there. What stands before a fork is shared with others: prefilled
#   once more it becomes another copy, of use to all of them. With k copies now, asked for u times a second,
#   and a copy living for l seconds, A = 1 / (1 + u·l / (k + 1)): a copy's price over those who will use it.
# - KEEP is 3: a prompt's own part will be asked for again, by the conversation's next turn, which would find
#   it in one place or the other; moving it costs the prefill now, and evicts what others would have found.
# - backlog(e) is the prefill that was sent to e and cannot be done yet, drained by the clock at 0.8 of
#   real time. Without it a burst of new prompts meets on one endpoint.
# - Of an earlier turn the answer counts as cached, too, though it was never seen: the engine wrote it itself.
#
# Who is asked for the cost: the two that hold most of the prompt, and the two with least to do. Not only for
# speed. With all of them asked, a queue keeps its prompts' blocks pinned, so the index believes in more and
# more of them there, and more arrives: that runs away near capacity (simulated).

from collections.abc import Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from extproc.router.routing.prompt.chain import Chain
from extproc.router.routing.strategies.base import Candidates, Offer, Outside
from extproc.router.routing.strategies.prefix_cache.backlog import Backlogs
from extproc.router.routing.strategies.prefix_cache.belief import Belief
from extproc.router.routing.strategies.prefix_cache.holding import Holding
from extproc.router.routing.strategies.prefix_cache.homes import (
    NO_HOMES,
    Company,
    Homes,
    find_homes,
    find_root,
)
from extproc.router.routing.strategies.prefix_cache.prefix_index import PrefixIndex

_KEEP: Final = 3.0

# Who is nominated, of so many looked at: the least of 16 is hardly worse than the least of a thousand.
_NOMINEES: Final = 2
_LOOKED_AT: Final = 16


class Stretch(Struct, frozen=True):
    """Bytes of a prompt between two forks, and what a missing one weighs."""

    start: int
    stop: int
    weight: float

    def missing(self, reach: int) -> float:
        """Weighed bytes that an endpoint lacks which has `reach` bytes of the prompt."""
        return self.weight * max(0, self.stop - max(self.start, reach))


class _Look(Struct, frozen=True):
    """One request as it looks now: `known` of its blocks are held by somebody.

    `homes` are empty where we are alone; `times` is how many times what we know of is sent by all.
    """

    chain: Chain
    candidates: Candidates
    now: float
    known: int
    stretches: Sequence[Stretch]
    homes: Homes
    times: float


class Weighing:
    """Weighs prompts by what is known: an `index`, `backlogs`, a `belief` in the engines, our `company`."""

    def __init__(
        self, outside: Outside, index: PrefixIndex, backlogs: Backlogs, belief: Belief, company: Company
    ) -> None:
        self._clock, self._rng = outside.clock, outside.rng
        self._index, self._backlogs = index, backlogs
        self._belief, self._company = belief, company

    def offers(self, chain: Chain, candidates: Candidates) -> list[Offer]:
        """What the endpoints worth asking would cost, the cheapest first; never empty."""
        look = self._look(chain, candidates)
        nominees = dict.fromkeys((*self._warmest(look), *self._idlest(look), *look.homes.names))
        return sorted([self._offer(name, look) for name in nominees], key=_cost)

    def stretches(self, chain: Chain) -> Sequence[Stretch]:
        """The parts of a prompt, and what they weigh now."""
        return self._stretches(chain, self._index.known(chain.hashes), self._clock())

    def _look(self, chain: Chain, candidates: Candidates) -> _Look:
        now, known = self._clock(), self._index.known(chain.hashes)
        stretches, homes = self._stretches(chain, known, now), self._homes(chain, known, candidates)
        return _Look(chain, candidates, now, known, stretches, homes, self._company.times)

    def _homes(self, chain: Chain, known: int, candidates: Candidates) -> Homes:
        reach, company = chain.reach(known), self._company
        if company.believes(chain, reach, self._index.since(chain.home)):
            seen = next(iter(self._index.holders(chain.hashes, known)))
            if len(seen) == 1:
                return Homes({seen[0].name: chain.answered}) if candidates.allows(seen[0].name) else NO_HOMES
        if not company.is_alone:
            return find_homes(chain, reach, candidates.walk)
        return find_root(chain, reach, candidates.walk) if company.misses else NO_HOMES

    def _stretches(self, chain: Chain, known: int, now: float) -> list[Stretch]:
        stretches: list[Stretch] = []
        index, start = self._index, 0
        for blocks in index.forks(chain.hashes, known):
            stop, fork = chain.ends[blocks - 1], chain.hashes[blocks - 1]
            uses = index.uses(fork, now) * index.life_s(now)
            stretches.append(Stretch(start, stop, 1 / (1 + uses / (index.copies(fork) + 1))))
            start = stop
        stretches.append(Stretch(start, chain.size, 1.0))
        return stretches

    def _offer(self, name: str, look: _Look) -> Offer:
        chain, holding, belief = look.chain, self._index.holding(name), self._belief
        blocks = holding.depth(chain.hashes, look.known) if holding is not None and look.known else 0
        reach = max(chain.reach(blocks), look.homes.presumed.get(name, 0))
        *shared, own = look.stretches
        keep = 1.0 if name == look.homes.own else _KEEP
        missing = _KEEP * sum([stretch.missing(reach) for stretch in shared]) + keep * own.missing(reach)
        backlog_ms = self._backlogs.with_others(name, look.now, look.times)
        in_flight = look.candidates.in_flight(name)
        cost_ms = missing * belief.ms_per_byte + backlog_ms + in_flight * belief.ms_per_request
        if belief.others_ms:
            cost_ms += belief.others_ms.get(name, 0.0)
        if belief.slow:
            cost_ms *= belief.slow.get(name, 1.0)
        return Offer(name, blocks, reach, backlog_ms, in_flight, cost_ms, name in look.homes)

    def _warmest(self, look: _Look) -> list[str]:
        """Those that hold most of the chain, of equals the ones with least to do."""
        found: list[str] = []
        levels = self._index.holders(look.chain.hashes, look.known)
        for holders in islice(levels, _LOOKED_AT):
            names = [holding.name for holding in self._some(holders)]
            fit = [name for name in names if name not in found and look.candidates.allows(name)]
            found += self._least(fit, look)[: _NOMINEES - len(found)]
            if len(found) == _NOMINEES:
                break
        return found

    def _idlest(self, look: _Look) -> list[str]:
        names = [*islice(look.candidates.least_loaded(self._rng), _LOOKED_AT)]
        return self._least(names, look)[:_NOMINEES]

    def _least(self, names: list[str], look: _Look) -> list[str]:
        """Those with least to do first."""
        now, in_flight, per_request = look.now, look.candidates.in_flight, self._belief.ms_per_request
        backlog_ms, times = self._backlogs.with_others, look.times
        if self._belief.slow or self._belief.others_ms:
            slow, others = self._belief.slow, self._belief.others_ms

            def todo(name: str) -> float:
                ms = backlog_ms(name, now, times) + in_flight(name) * per_request + others.get(name, 0.0)
                return ms * slow.get(name, 1.0)

            names.sort(key=todo)
        else:
            names.sort(key=lambda name: backlog_ms(name, now, times) + in_flight(name) * per_request)
        return names

    def _some(self, holders: Sequence[Holding]) -> Sequence[Holding]:
        if len(holders) <= _LOOKED_AT:
            return holders
        start = int(self._rng.random() * (len(holders) - _LOOKED_AT + 1))
        return holders[start : start + _LOOKED_AT]


def _cost(offer: Offer) -> float:
    return offer.cost_ms
