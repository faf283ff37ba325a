"""The cheapest endpoint: what of a prompt each one holds, and what the wait there costs."""

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
#
# Several gateways do not know each other's picks. Then conversations, and what the operator puts before them,
# have homes on a ring, the same for all of them; see `homes`.

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from random import Random
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from extproc.routing.chain import Chain, chain_of
from extproc.routing.endpoint import Endpoint
from extproc.routing.prefix import routing_key
from extproc.routing.prefix_index import Holding, PrefixIndex, Taken
from extproc.routing.prompt import Prompt
from extproc.routing.ring import Ring
from extproc.routing.strategies.backlog import Backlogs
from extproc.routing.strategies.balanced import LeastLoad
from extproc.routing.strategies.base import (
    Bid,
    Candidates,
    Choice,
    Ending,
    Foreseen,
    Neighbours,
    Offer,
    Outside,
    Placement,
    Reading,
    Reason,
    Strategy,
)
from extproc.routing.strategies.engines import DEFAULT_ENGINE, ENGINES
from extproc.routing.strategies.homes import NO_HOMES, Company, Homes, find_homes, find_root
from extproc.routing.strategies.learning import Costs, Learner, Pace
from extproc.routing.strategies.senses import News, Sense, reasons_to_leave
from extproc.routing.vitals import Vitals

_KEEP: Final = 3.0
_STEPS_PER_REQUEST: Final = 0.25

_FAILED: Final = 500

_BY_PROMPT: Final = (Reason.SESSION, Reason.PREFIX, Reason.COLD, Reason.HOME, Reason.SPILL)

# What a new figure counts against those before it: of many requests, and of one.
_SLOWLY: Final = 0.25
_RARELY: Final = 0.02

# A cost may be wrong by a quarter; a capacity had better not be too small.
_BYTES_PER_TOKEN: Final = 4.0

# Who is nominated, of so many looked at: the least of 16 is hardly worse than the least of a thousand.
_NOMINEES: Final = 2
_LOOKED_AT: Final = 16

_POSITIONS: Final = 64

# What a request waits for that waits for no other: the rest of a step, and its own.
_STEPS_TO_FIRST: Final = 1.5
_ALONE: Final = 0.25


class Stretch(Struct, frozen=True):
    """Bytes of a prompt between two forks, and what a missing one weighs."""

    start: int
    stop: int
    weight: float

    def missing(self, reach: int) -> float:
        """Weighed bytes that an endpoint lacks which has `reach` bytes of the prompt."""
        return self.weight * max(0, self.stop - max(self.start, reach))


class Start(Struct, frozen=True):
    """What a request began with: what it took of the index, bytes it seems to lack, what waited there.

    `to_do` is what it lacks as far as was seen; `missing` leaves out what a home is presumed to have.
    """

    taken: Taken
    missing: float
    backlog_ms: float
    to_do: int = 0


_NOTHING_TAKEN: Final = Start(Taken(0, 0), 0, 0)


class _Look(Struct, frozen=True):
    """One request as it looks now: `known` of its blocks are held by somebody.

    `homes` are empty where we are alone.
    """

    chain: Chain
    candidates: Candidates
    now: float
    known: int
    stretches: Sequence[Stretch]
    homes: Homes


class PrefixCache(Strategy):
    """The endpoint where a prompt costs least, by an index of what each one holds.

    `engine` names the constants, see `ENGINES`; `kv_tokens` is the size of an endpoint's KV cache, if
    other than the engine's. With several `gateways`, each with an index of its own, prompts have homes;
    how many there are is told or found out.
    """

    name = "prefix_cache"
    headers: Collection[str] = ()

    def __init__(
        self,
        outside: Outside,
        *,
        engine: str = DEFAULT_ENGINE,
        learn: bool = False,
        kv_tokens: int | None = None,
        gateways: int | None = None,
    ) -> None:
        if engine not in ENGINES:
            raise ValueError(f"{engine!r} is no engine: choose from {', '.join(ENGINES)}")
        costs = ENGINES[engine]
        self._clock = outside.clock
        self._rng: Random = outside.rng
        self._engine, self._kv_tokens = costs, kv_tokens or costs.kv_tokens
        self.company = Company(gateways)
        self.bytes_per_token = _BYTES_PER_TOKEN
        self._is_measured = False
        self._use(Costs(costs.prefill_ms_per_token / _BYTES_PER_TOKEN, costs.step_ms))
        self.learner = Learner(self._costs, outside.rng) if learn else None
        self._has_first_tokens = False
        self._paces: dict[str, Pace] = {}
        # Of those that are not as fast as the others; empty where all are alike.
        self._slow: dict[str, float] = {}
        self._senses: dict[str, Sense] = {}
        # What others' requests that wait there cost; empty where nobody tells of any.
        self._others_ms: dict[str, float] = {}
        self._mean_ms = 0.0
        self._foreseen = {reason: Foreseen() for reason in _BY_PROMPT}
        self._without_prompt = LeastLoad(outside, Reason.NO_PREFIX)
        self._backlogs = Backlogs()
        self.index = PrefixIndex(int(self._kv_tokens * _BYTES_PER_TOKEN))

    def needs_body(self, headers: Mapping[str, str]) -> bool:  # noqa: ARG002  # no header says as much
        return True

    def read(self, prompt: Prompt | None, headers: Mapping[str, str], adapter: str) -> Reading:  # noqa: ARG002  # likewise
        # What is beyond a whole cache is in none.
        text = prompt.head(self.index.capacity) if prompt else ""
        if prompt is None or not text:
            return self._without_prompt
        seed = routing_key("", model=prompt.model or "", adapter=adapter, cache_salt=prompt.cache_salt)
        return _Cached(self, chain_of(text, seed))

    def place(self, ready: Mapping[str, Endpoint], before: Placement) -> Placement:
        return Ring.grown(before, ready, _POSITIONS)

    def follow(self, ready: Mapping[str, Endpoint]) -> None:
        self.index.follow({name: endpoint.address for name, endpoint in ready.items()})
        self._backlogs.follow(ready)
        self._paces = {name: self._paces.get(name) or Pace() for name in ready}
        self._slow = {name: factor for name, factor in self._slow.items() if name in ready}
        self._senses = {name: self._senses.get(name) or Sense() for name in ready}
        self._others_ms = {name: ms for name, ms in self._others_ms.items() if name in ready}

    def lose(self, endpoint: str) -> None:
        self.index.lose(endpoint)

    def meet(self, neighbours: Neighbours) -> None:
        self.company.meet(neighbours, self._clock())

    def hear_pick(self, endpoint: str, chain: Chain, missing: int | None) -> None:
        holding, now = self.index.holding(endpoint), self._clock()
        if holding is not None:
            self.index.hear(holding, chain, now, is_new=True)
            self._backlogs.add(endpoint, (missing or 0) * self._ms_per_byte, now)

    def hear_end(self, endpoint: str, chain: Chain) -> None:
        holding = self.index.holding(endpoint)
        if holding is not None:
            self.index.hear(holding, chain, self._clock(), is_new=False)

    def sense(self, endpoint: str, vitals: Vitals | None, in_flight: Callable[[], Mapping[str, int]]) -> None:
        sense = self._senses.get(endpoint)
        if sense is None:
            return
        if vitals is None:
            sense.miss()
        else:
            self._believe(endpoint, sense, sense.hear(vitals))
        if not sense.waiting and not self._others_ms:
            return  # and nobody else is the worse for it
        senses = self._senses.items()
        waiting = {name: sense.waiting for name, sense in senses}
        running = {name: sense.vitals.running for name, sense in senses if sense.vitals}
        leave = reasons_to_leave(waiting, in_flight(), running, self.company.times)
        self._others_ms = {name: count * self._mean_ms for name, count in leave.items()}

    def _believe(self, endpoint: str, sense: Sense, news: News) -> None:
        if news.is_lost:
            self.index.lose(endpoint)
        if news.bytes_per_token is not None and self.company.is_alone:
            # The first one tells more than a guess does.
            share = _SLOWLY if self._is_measured else 1.0
            self._is_measured = True
            self.bytes_per_token += share * (news.bytes_per_token - self.bytes_per_token)
            if self.learner is None or not self.learner.lines:
                per_byte = self._engine.prefill_ms_per_token / self.bytes_per_token
                self._use(Costs(per_byte, self._costs.step_ms))
        kv_tokens = sense.kv_tokens or self._kv_tokens
        self.index.resize(endpoint, int(kv_tokens * self.bytes_per_token * sense.trust.share))
        learner = self.learner
        if news.prefill is not None and learner is not None and not self._has_first_tokens:
            tokens, ms = news.prefill
            if learner.hear(tokens * self.bytes_per_token, ms):
                self._use(learner.costs)

    def learnt(self) -> Mapping[str, object]:
        learner, costs = self.learner, self._costs
        return {
            "prefill_ms_per_token": round(costs.ms_per_byte * self.bytes_per_token, 4),
            "step_ms": round(costs.step_ms, 2),
            "bytes_per_token": round(self.bytes_per_token, 2),
            "source": "access_log" if self._has_first_tokens else "signals" if learner else None,
            "samples": learner.samples if learner else 0,
            "lines": learner.lines if learner else 0,
            "endpoints": {name: self._learnt_of(name, sense) for name, sense in self._senses.items()},
        }

    def _learnt_of(self, name: str, sense: Sense) -> Mapping[str, object]:
        holding, trust = self.index.holding(name), sense.trust
        return {
            "slower_by": round(self._slow.get(name, 1.0), 2),
            "cache_tokens": _tokens(holding.capacity, self.bytes_per_token) if holding is not None else 0,
            "presumed_share": trust.share,
            "foreseen_hit_rate": round(trust.foreseen_rate, 3),
            "measured_hit_rate": round(trust.found_rate, 3),
            "waiting": None if sense.waiting is None else round(sense.waiting, 1),
        }

    def foreseen(self) -> Mapping[Reason, Foreseen]:
        return self._foreseen

    def foreseen_by_endpoint(self) -> Mapping[str, tuple[float, float]]:
        return {name: (sense.sent.size, sense.sent.cached) for name, sense in self._senses.items()}

    def foresee(self, endpoint: str, size: float, missing: float, reason: Reason) -> None:
        """Counts what a pick is believed to find."""
        sense, per_token = self._senses[endpoint], self.bytes_per_token
        cached = (size - missing) / per_token
        if sense.vitals is not None and sense.vitals.block_tokens:
            cached -= cached % sense.vitals.block_tokens
        sent = sense.sent
        sent.requests += 1
        sent.size += size
        sent.cached += cached * per_token
        told = self._foreseen[reason]
        told.prompt += size / per_token
        told.cached += cached
        told.saved_ms += cached * per_token * self._ms_per_byte
        self._mean_ms += _RARELY * (missing * self._ms_per_byte - self._mean_ms)

    def take(self, holding: Holding, chain: Chain, presumed: int) -> Start:
        """Writes a request down; its endpoint may have `presumed` bytes of it from other gateways."""
        now = self._clock()
        self.company.hear(chain, chain.reach(self.index.known(chain.hashes)))
        taken = self.index.take(holding, chain, now)
        reach = chain.reach(taken.had)
        to_do = chain.size - reach
        start = Start(taken, min(to_do, chain.size - presumed), self._backlogs.ms(holding.name, now), to_do)
        self._backlogs.add(holding.name, to_do * self._ms_per_byte, now)
        return start

    def learn(self, endpoint: str, start: Start, first_token_s: float) -> None:
        """Hears how long a request took to its first token; why, is known where it waited for no other."""
        costs, learner = self._costs, self.learner
        if learner is not None and not self._has_first_tokens:
            # Better than what the endpoints tell, which leaves out the rest of a step.
            self._has_first_tokens = True
            learner.forget()
        own_ms = costs.step_ms * _STEPS_TO_FIRST + start.missing * costs.ms_per_byte
        if learner is None or start.backlog_ms > _ALONE * own_ms:
            return
        if learner.hear(start.missing, first_token_s * 1000):
            self._use(learner.costs)
        pace = self._paces.get(endpoint)
        if pace is not None and learner.lines:
            pace.hear(own_ms, first_token_s * 1000)
            if pace.factor != self._slow.get(endpoint, 1.0):
                self._slow = {name: pace.factor for name, pace in self._paces.items() if pace.factor != 1}

    def _use(self, costs: Costs) -> None:
        self._costs = costs
        self._ms_per_byte = costs.ms_per_byte
        self._ms_per_request = costs.step_ms * _STEPS_PER_REQUEST

    def offers(self, chain: Chain, candidates: Candidates) -> list[Offer]:
        """What the endpoints worth asking would cost, the cheapest first; never empty."""
        look = self._look(chain, candidates)
        nominees = dict.fromkeys((*self._warmest(look), *self._idlest(look), *look.homes.names))
        return sorted([self._offer(name, look) for name in nominees], key=_cost)

    def fill(self, names: list[str], candidates: Candidates, count: int) -> list[str]:
        """Adds the least loaded of the others, up to `count` together."""
        others = (name for name in candidates.least_loaded(self._rng) if name not in names)
        return [*names, *islice(others, count - len(names))]

    def explain(self, chain: Chain, candidates: Candidates) -> dict[str, object]:
        """What each endpoint worth asking would cost. In tokens, as far as text tells them."""
        stretches = self._look(chain, candidates).stretches
        return {
            "prompt_tokens": _tokens(chain.size, self.bytes_per_token),
            "stretches": [
                {
                    "tokens": _tokens(stretch.stop - stretch.start, self.bytes_per_token),
                    "weight": round(stretch.weight, 3),
                }
                for stretch in stretches
            ],
            "candidates": [asdict(bid) for bid in self.tell(chain, self.offers(chain, candidates))],
        }

    def tell(self, chain: Chain, offers: Sequence[Offer]) -> Sequence[Bid]:
        return [_bid(offer, chain, self.bytes_per_token) for offer in offers]

    def _look(self, chain: Chain, candidates: Candidates) -> _Look:
        now, known = self._clock(), self.index.known(chain.hashes)
        forks = self.index.forks(chain.hashes, known)
        homes = self._homes(chain, known, candidates)
        return _Look(chain, candidates, now, known, self._stretches(chain, forks, now), homes)

    def _homes(self, chain: Chain, known: int, candidates: Candidates) -> Homes:
        reach = chain.reach(known)
        if self.company.believes(chain, reach, self._clock()):
            seen = next(iter(self.index.holders(chain.hashes, known)))
            if len(seen) == 1:
                return Homes({seen[0].name: chain.answered}) if candidates.allows(seen[0].name) else NO_HOMES
        if not self.company.is_alone:
            return find_homes(chain, reach, candidates.walk)
        return find_root(chain, reach, candidates.walk) if self.company.misses else NO_HOMES

    def _stretches(self, chain: Chain, forks: Sequence[int], now: float) -> list[Stretch]:
        stretches: list[Stretch] = []
        start = 0
        for blocks in forks:
            stop, fork = chain.ends[blocks - 1], chain.hashes[blocks - 1]
            uses = self.index.uses(fork, now) * self.index.life_s(now)
            stretches.append(Stretch(start, stop, 1 / (1 + uses / (self.index.copies(fork) + 1))))
            start = stop
        stretches.append(Stretch(start, chain.size, 1.0))
        return stretches

    def _offer(self, name: str, look: _Look) -> Offer:
        chain, holding = look.chain, self.index.holding(name)
        blocks = holding.depth(chain.hashes, look.known) if holding is not None and look.known else 0
        reach = max(chain.reach(blocks), look.homes.presumed.get(name, 0))
        *shared, own = look.stretches
        keep = 1.0 if name == look.homes.own else _KEEP
        missing = _KEEP * sum([stretch.missing(reach) for stretch in shared]) + keep * own.missing(reach)
        backlog_ms, in_flight = self._backlog_ms(name, look.now), look.candidates.in_flight(name)
        cost_ms = missing * self._ms_per_byte + backlog_ms + in_flight * self._ms_per_request
        if self._others_ms:
            cost_ms += self._others_ms.get(name, 0.0)
        if self._slow:
            cost_ms *= self._slow.get(name, 1.0)
        return Offer(name, blocks, reach, backlog_ms, in_flight, cost_ms, name in look.homes)

    def _warmest(self, look: _Look) -> list[str]:
        """Those that hold most of the chain, of equals the ones with least to do."""
        found: list[str] = []
        levels = self.index.holders(look.chain.hashes, look.known)
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
        now, in_flight, per_request = look.now, look.candidates.in_flight, self._ms_per_request
        if self._slow or self._others_ms:
            slow, others = self._slow, self._others_ms

            def todo(name: str) -> float:
                ms = self._backlog_ms(name, now) + in_flight(name) * per_request + others.get(name, 0.0)
                return ms * slow.get(name, 1.0)

            names.sort(key=todo)
        else:
            names.sort(key=lambda name: self._backlog_ms(name, now) + in_flight(name) * per_request)
        return names

    def _some(self, holders: Sequence[Holding]) -> Sequence[Holding]:
        if len(holders) <= _LOOKED_AT:
            return holders
        start = int(self._rng.random() * (len(holders) - _LOOKED_AT + 1))
        return holders[start : start + _LOOKED_AT]

    def _backlog_ms(self, name: str, now: float) -> float:
        return self._backlogs.with_others(name, now, self.company.times)


def _bid(offer: Offer, chain: Chain, per_token: float) -> Bid:
    return Bid(
        offer.name,
        _tokens(offer.reach, per_token),
        _tokens(chain.size - offer.reach, per_token),
        round(offer.backlog_ms, 1),
        offer.in_flight,
        round(offer.cost_ms, 1),
    )


def _tokens(size: float, per_token: float) -> int:
    return round(size / per_token)


def _cost(offer: Offer) -> float:
    return offer.cost_ms


class _Cached(Reading):
    """One request's chain, and where it was written down."""

    __slots__ = (
        "_chain",
        "_first",
        "_holding",
        "_is_open",
        "_late",
        "_start",
        "_strategy",
        "_why",
        "key",
        "offers",
    )

    key: int
    learns = True

    def __init__(self, strategy: PrefixCache, chain: Chain) -> None:
        self._strategy = strategy
        self._chain = chain
        self._holding: Holding | None = None
        self._start = _NOTHING_TAKEN
        self._why = Reason.COLD
        self._is_open = False
        self._first: Offer | None = None
        self._late: tuple[str, Ending] | None = None
        self.key = chain.home
        self.offers: Sequence[Offer] = ()

    def choose(self, candidates: Candidates, count: int) -> Choice:
        self.offers = offers = self._strategy.offers(self._chain, candidates)
        names = [offer.name for offer in offers[:count]]
        if len(names) < min(count, len(candidates)):
            names = self._strategy.fill(names, candidates, count)
        self._why, self._first = self._reason(offers), offers[0]
        return Choice(tuple(names), self._why)

    def explain(self, candidates: Candidates) -> dict[str, object]:
        return self._strategy.explain(self._chain, candidates)

    def tell(self, offers: Sequence[Offer]) -> Sequence[Bid]:
        return self._strategy.tell(self._chain, offers)

    def taken(self, endpoint: str) -> None:
        self.offers = ()
        self._withdraw()
        index = self._strategy.index
        self._is_open = True
        self._holding = index.holding(endpoint)
        if self._holding is not None:
            first = self._first
            presumed = first.reach if first is not None and first.name == endpoint else 0
            self._start = start = self._strategy.take(self._holding, self._chain, presumed)
            self._strategy.foresee(endpoint, self._chain.size, start.missing, self._why)

    def sent(self) -> tuple[Chain | None, int]:
        return self._chain, self._start.to_do

    def ended(self, endpoint: str) -> None:  # noqa: ARG002  # where it was taken
        self._is_open = False
        if self._holding is not None:
            self._strategy.index.release(self._holding, self._chain, self._start.taken)
        if self._late is not None:
            late, self._late = self._late, None
            self.learn(*late)

    def learn(self, endpoint: str, ending: Ending) -> None:
        if self._is_open:
            # Blocks of an open request can be neither withdrawn nor moved.
            self._late = endpoint, ending
        elif self._holding is None:
            return
        elif ending.status is not None and ending.status >= _FAILED:
            self._withdraw()
        elif endpoint != self._holding.name:
            self.taken(endpoint)
            self.ended(endpoint)
        elif ending.first_token_s is not None:
            self._strategy.learn(endpoint, self._start, ending.first_token_s)

    def _withdraw(self) -> None:
        """This one never read it, or did not keep it."""
        if self._holding is not None:
            self._strategy.index.withdraw(self._holding, self._chain, self._start.taken)
            self._holding = None

    def _reason(self, offers: Sequence[Offer]) -> Reason:
        first, chain = offers[0], self._chain
        best = max(offer.blocks for offer in offers)
        if first.blocks < best:
            return Reason.SPILL
        if chain.answered and first.reach >= chain.answered:
            return Reason.SESSION
        if best:
            return Reason.PREFIX
        return Reason.HOME if first.is_home else Reason.COLD
