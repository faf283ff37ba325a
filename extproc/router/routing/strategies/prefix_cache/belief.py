"""What is believed of a pool's engines: what their work costs, what they hold at most, who is slow. Pure.

It begins with the constants of one kind of engine, and goes by what requests and endpoints tell.
"""

from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Final

from extproc.router.routing.strategies.base import Foreseen, Reason
from extproc.router.routing.strategies.prefix_cache.engines import EngineCosts
from extproc.router.routing.strategies.prefix_cache.homes import Company
from extproc.router.routing.strategies.prefix_cache.learning import Costs, Learner, Pace
from extproc.router.routing.strategies.prefix_cache.prefix_index import PrefixIndex
from extproc.router.routing.strategies.prefix_cache.senses import News, Sense, reasons_to_leave
from extproc.router.routing.vitals import Vitals

_STEPS_PER_REQUEST: Final = 0.25

_BY_PROMPT: Final = (Reason.SESSION, Reason.PREFIX, Reason.COLD, Reason.HOME, Reason.SPILL)

# What a new figure counts against those before it: of many requests, and of one.
_SLOWLY: Final = 0.25
_RARELY: Final = 0.02

# A cost may be wrong by a quarter; a capacity had better not be too small.
BYTES_PER_TOKEN: Final = 4.0

# What a request waits for that waits for no other: the rest of a step, and its own.
_STEPS_TO_FIRST: Final = 1.5
_ALONE: Final = 0.25


class Belief:
    """`kv_tokens` is how much a cache holds whose endpoint says nothing else; `rng` is for learning, if any.

    `slow` are the factors of those that are not as fast as the others, `others_ms` what others' requests
    that wait there cost; both are empty where nobody tells of any.
    """

    def __init__(self, engine: EngineCosts, kv_tokens: int, company: Company, rng: Random | None) -> None:
        self.bytes_per_token = BYTES_PER_TOKEN
        self.foreseen = {reason: Foreseen() for reason in _BY_PROMPT}
        self.slow: dict[str, float] = {}
        self.others_ms: dict[str, float] = {}
        self._engine, self._kv_tokens, self._company = engine, kv_tokens, company
        self._is_measured = False
        self._use(Costs(engine.prefill_ms_per_token / BYTES_PER_TOKEN, engine.step_ms))
        self.learner = Learner(self._costs, rng) if rng is not None else None
        self._has_first_tokens = False
        self._paces: dict[str, Pace] = {}
        self._senses: dict[str, Sense] = {}
        self._mean_ms = 0.0

    def follow(self, ready: Collection[str]) -> None:
        self._paces = {name: self._paces.get(name) or Pace() for name in ready}
        self.slow = {name: factor for name, factor in self.slow.items() if name in ready}
        self._senses = {name: self._senses.get(name) or Sense() for name in ready}
        self.others_ms = {name: ms for name, ms in self.others_ms.items() if name in ready}

    def tokens(self, size: float) -> int:
        """How many so many bytes of a prompt are, about."""
        return round(size / self.bytes_per_token)

    def sense(
        self,
        endpoint: str,
        vitals: Vitals | None,
        in_flight: Callable[[], Mapping[str, int]],
        index: PrefixIndex,
    ) -> None:
        """Takes what an endpoint says of itself; the `index` is told what it cannot hold."""
        sense = self._senses.get(endpoint)
        if sense is None:
            return
        if vitals is None:
            sense.miss()
        else:
            self._take(endpoint, sense, sense.hear(vitals), index)
        if not sense.waiting and not self.others_ms:
            return  # and nobody else is the worse for it
        senses = self._senses.items()
        waiting = {name: sense.waiting for name, sense in senses}
        running = {name: sense.vitals.running for name, sense in senses if sense.vitals}
        leave = reasons_to_leave(waiting, in_flight(), running, self._company.times)
        self.others_ms = {name: count * self._mean_ms for name, count in leave.items()}

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
        told = self.foreseen[reason]
        told.prompt += size / per_token
        told.cached += cached
        told.saved_ms += cached * per_token * self.ms_per_byte
        self._mean_ms += _RARELY * (missing * self.ms_per_byte - self._mean_ms)

    def foreseen_by_endpoint(self) -> Mapping[str, tuple[float, float]]:
        return {name: (sense.sent.size, sense.sent.cached) for name, sense in self._senses.items()}

    def learn(self, endpoint: str, missing: float, backlog_ms: float, first_token_s: float) -> None:
        """Hears how long a request took to its first token; why, is known where it waited for no other."""
        costs, learner = self._costs, self.learner
        if learner is not None and not self._has_first_tokens:
            # Better than what the endpoints tell, which leaves out the rest of a step.
            self._has_first_tokens = True
            learner.forget()
        own_ms = costs.step_ms * _STEPS_TO_FIRST + missing * costs.ms_per_byte
        if learner is None or backlog_ms > _ALONE * own_ms:
            return
        if learner.hear(missing, first_token_s * 1000):
            self._use(learner.costs)
        pace = self._paces.get(endpoint)
        if pace is not None and learner.lines:
            pace.hear(own_ms, first_token_s * 1000)
            if pace.factor != self.slow.get(endpoint, 1.0):
                self.slow = {name: pace.factor for name, pace in self._paces.items() if pace.factor != 1}

    def learnt(self, index: PrefixIndex) -> Mapping[str, object]:
        learner, costs = self.learner, self._costs
        return {
            "prefill_ms_per_token": round(costs.ms_per_byte * self.bytes_per_token, 4),
            "step_ms": round(costs.step_ms, 2),
            "bytes_per_token": round(self.bytes_per_token, 2),
            "source": "access_log" if self._has_first_tokens else "signals" if learner else None,
            "samples": learner.samples if learner else 0,
            "lines": learner.lines if learner else 0,
            "endpoints": {name: self._learnt_of(name, sense, index) for name, sense in self._senses.items()},
        }

    def _learnt_of(self, name: str, sense: Sense, index: PrefixIndex) -> Mapping[str, object]:
        holding, trust = index.holding(name), sense.trust
        return {
            "slower_by": round(self.slow.get(name, 1.0), 2),
            "cache_tokens": self.tokens(holding.capacity) if holding is not None else 0,
            "presumed_share": trust.share,
            "foreseen_hit_rate": round(trust.foreseen_rate, 3),
            "measured_hit_rate": round(trust.found_rate, 3),
            "waiting": None if sense.waiting is None else round(sense.waiting, 1),
        }

    def _take(self, endpoint: str, sense: Sense, news: News, index: PrefixIndex) -> None:
        if news.is_lost:
            index.lose(endpoint)
        if news.bytes_per_token is not None and self._company.is_alone:
            # The first one tells more than a guess does.
            share = _SLOWLY if self._is_measured else 1.0
            self._is_measured = True
            self.bytes_per_token += share * (news.bytes_per_token - self.bytes_per_token)
            if self.learner is None or not self.learner.lines:
                per_byte = self._engine.prefill_ms_per_token / self.bytes_per_token
                self._use(Costs(per_byte, self._costs.step_ms))
        kv_tokens = sense.kv_tokens or self._kv_tokens
        index.resize(endpoint, int(kv_tokens * self.bytes_per_token * sense.trust.share))
        learner = self.learner
        if news.prefill is not None and learner is not None and not self._has_first_tokens:
            tokens, ms = news.prefill
            if learner.hear(tokens * self.bytes_per_token, ms):
                self._use(learner.costs)

    def _use(self, costs: Costs) -> None:
        self._costs = costs
        self.ms_per_byte = costs.ms_per_byte
        self.ms_per_request = costs.step_ms * _STEPS_PER_REQUEST
