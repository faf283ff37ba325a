"""A model of a pool's engines: what their work costs, how large their caches are, which ones are slow. Pure.

It starts with the constants of one kind of engine. Requests and the endpoints' metrics correct it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from random import Random
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.base import PredictedHits, Reason
from extproc.router.routing.strategies.prefix_cache.homes import GatewayCount
from extproc.router.routing.strategies.prefix_cache.learning import Learner, LearntCosts, Slowdown
from extproc.router.routing.strategies.prefix_cache.prefix_index import PrefixIndex
from extproc.router.routing.strategies.prefix_cache.signal_history import (
    SignalChange,
    SignalHistory,
    foreign_requests,
)

_STEPS_PER_REQUEST: Final = 0.25
_PREFILL_PER_REQUEST: Final = 0.05

# Weight of a new figure against those before it: a mean of many requests, and a single one.
_SLOWLY: Final = 0.25
_RARELY: Final = 0.02

# A cost may be wrong by a quarter; a capacity had better not be too small.
BYTES_PER_TOKEN: Final = 4.0

# What a request waits for that waits for no other: the rest of a step, and its own.
_STEPS_TO_FIRST: Final = 1.5
_ALONE: Final = 0.25
# Of so many samples that waited, the one with the shortest wait counts all the same.
_CROWDED: Final = 16
_NOBODY: Final = (inf, 0.0, "", 0.0, 0.0)


class EngineCosts(Struct, frozen=True):
    """One vLLM endpoint: `step_ms` is a step that only decodes, of an almost empty engine."""

    prefill_ms_per_token: float
    step_ms: float
    kv_tokens: int


ENGINES: Final[Mapping[str, EngineCosts]] = MappingProxyType(
    {
        "l4-llama8b-fp8": EngineCosts(0.19, 39, 84_000),
        "l4-llama8b-fp8-fitted": EngineCosts(0.19, 39, 60_000),
        "l4-llama8b-fp8-kvfp8": EngineCosts(0.19, 39, 168_000),
        "h100-llama70b-fp8": EngineCosts(0.16, 27, 26_000),
        "h100-llama8b-bf16": EngineCosts(0.03, 6, 430_000),
    }
)
"""The simulator's profiles, by their names there."""

DEFAULT_ENGINE: Final = "l4-llama8b-fp8"


class EngineModel:
    """What `prefix_cache` has learnt of a pool's engines.

    `kv_tokens` is the size of a cache whose endpoint does not say it, `reasons` those of picks by a
    prompt. With an `rng` it learns the engine's constants, and calls `forget_backlogs` when they
    change. `slow` has the factors of slower endpoints, `others_ms` the cost of other gateways'
    requests that wait there.
    """

    def __init__(
        self,
        engine: EngineCosts,
        kv_tokens: int,
        gateways: GatewayCount,
        reasons: Iterable[Reason],
        rng: Random | None,
        *,
        forget_backlogs: Callable[[], None],
    ) -> None:
        self.bytes_per_token = BYTES_PER_TOKEN
        self.predicted = {reason: PredictedHits() for reason in reasons}
        self._waited, self._least = 0, _NOBODY
        self.slow: dict[str, float] = {}
        self.others_ms: dict[str, float] = {}
        self._engine, self._kv_tokens, self._gateways = engine, kv_tokens, gateways
        self._forget_backlogs = forget_backlogs
        self._is_measured = False
        self._use(LearntCosts(engine.prefill_ms_per_token / BYTES_PER_TOKEN, engine.step_ms))
        self.learner = Learner(self._costs, rng) if rng is not None else None
        self._has_first_tokens = False
        self._slowdowns: dict[str, Slowdown] = {}
        self._histories: dict[str, SignalHistory] = {}
        self._mean_ms = 0.0

    @property
    def ms_per_request(self) -> float:
        """What one request in flight costs the next: its part of a step, or of the prefills it will bring."""
        return max(self._step_ms_per_request, _PREFILL_PER_REQUEST * self._mean_ms)

    def follow(self, ready: Collection[str]) -> None:
        self._slowdowns = {name: self._slowdowns.get(name) or Slowdown() for name in ready}
        self.slow = {name: factor for name, factor in self.slow.items() if name in ready}
        self._histories = {name: self._histories.get(name) or SignalHistory() for name in ready}
        self.others_ms = {name: ms for name, ms in self.others_ms.items() if name in ready}

    def tokens(self, size: float) -> int:
        """How many so many bytes of a prompt are, about."""
        return round(size / self.bytes_per_token)

    def apply_signals(
        self,
        endpoint: str,
        signals: EndpointSignals | None,
        in_flight: Callable[[], Mapping[str, int]],
        index: PrefixIndex,
    ) -> None:
        """Takes an endpoint's metrics; resizes its part of the `index`."""
        history = self._histories.get(endpoint)
        if history is None:
            return
        if signals is None:
            history.miss()
        else:
            self._take(endpoint, history, history.take(signals), index)
        if not history.waiting and not self.others_ms:
            return  # the other endpoints' figures do not depend on it
        histories = self._histories.items()
        waiting = {name: history.waiting for name, history in histories}
        running = {name: history.signals.running for name, history in histories if history.signals}
        waiting_there = foreign_requests(waiting, in_flight(), running, self._gateways.times)
        self.others_ms = {name: count * self._mean_ms for name, count in waiting_there.items()}

    def note_emptied(self, endpoint: str) -> None:
        """Its cache is empty, and was forgotten: metrics of a new process will be no news."""
        if endpoint in self._histories:
            self._histories[endpoint].is_emptied = True

    def predict(self, endpoint: str, size: float, missing: float, reason: Reason) -> None:
        history, per_token = self._histories[endpoint], self.bytes_per_token
        cached = (size - missing) / per_token
        if history.signals is not None and history.signals.block_tokens:
            cached -= cached % history.signals.block_tokens
        sent = history.sent
        sent.requests += 1
        sent.size += size
        sent.cached += cached * per_token
        hits = self.predicted[reason]
        hits.prompt += size / per_token
        hits.cached += cached
        hits.saved_ms += cached * per_token * self.ms_per_byte
        self._mean_ms += _RARELY * (missing * self.ms_per_byte - self._mean_ms)

    def predicted_by_endpoint(self) -> Mapping[str, tuple[float, float]]:
        return {
            name: (history.sent.size, history.sent.cached)
            for name, history in self._histories.items()
        }

    def learn(self, endpoint: str, missing: float, backlog_ms: float, first_token_s: float) -> None:
        """Takes a request's time to its first token; only one that waited for no other explains it.

        Constants that are too large make a backlog of nothing: so of many that seem to have waited,
        the one with the least before it is taken.
        """
        costs, learner = self._costs, self.learner
        if learner is not None and not self._has_first_tokens:
            # Better than the endpoints' own figures, which leave out the rest of a step.
            self._has_first_tokens = True
            learner.forget()
        own_ms = costs.step_ms * _STEPS_TO_FIRST + missing * costs.ms_per_byte
        if learner is None:
            return
        self._waited += 1
        self._least = min(
            self._least, (backlog_ms / own_ms, own_ms, endpoint, missing, first_token_s)
        )
        if self._least[0] > _ALONE and self._waited < _CROWDED:
            return
        _, own_ms, endpoint, missing, first_token_s = self._least
        self._waited, self._least = 0, _NOBODY
        self._fit(missing, first_token_s * 1000)
        slowdown = self._slowdowns.get(endpoint)
        if slowdown is not None and learner.lines:
            slowdown.take(own_ms, first_token_s * 1000)
            if slowdown.factor != self.slow.get(endpoint, 1.0):
                self.slow = {
                    name: each.factor for name, each in self._slowdowns.items() if each.factor != 1
                }

    def describe(self, index: PrefixIndex) -> Mapping[str, object]:
        learner, costs = self.learner, self._costs
        return {
            "prefill_ms_per_token": round(costs.ms_per_byte * self.bytes_per_token, 4),
            "step_ms": round(costs.step_ms, 2),
            "bytes_per_token": round(self.bytes_per_token, 2),
            "source": "access_log" if self._has_first_tokens else "signals" if learner else None,
            "samples": learner.samples if learner else 0,
            "lines": learner.lines if learner else 0,
            "gateways": round(self._gateways.count, 1),
            "endpoints": {
                name: self._describe_endpoint(name, history, index)
                for name, history in self._histories.items()
            },
        }

    def _describe_endpoint(
        self, name: str, history: SignalHistory, index: PrefixIndex
    ) -> Mapping[str, object]:
        holding, trust = index.holding(name), history.trust
        return {
            "slower_by": round(self.slow.get(name, 1.0), 2),
            "cache_tokens": self.tokens(holding.capacity) if holding is not None else 0,
            "presumed_share": trust.share,
            "predicted_hit_rate": round(trust.predicted_rate, 3),
            "measured_hit_rate": round(trust.measured_rate, 3),
            "waiting": None if history.waiting is None else round(history.waiting, 1),
        }

    def _take(
        self, endpoint: str, history: SignalHistory, change: SignalChange, index: PrefixIndex
    ) -> None:
        if change.is_lost:
            index.lose(endpoint)
        if change.bytes_per_token is not None and self._gateways.is_alone:
            # The first sample is better than the default.
            share = _SLOWLY if self._is_measured else 1.0
            self._is_measured = True
            self.bytes_per_token += share * (change.bytes_per_token - self.bytes_per_token)
            if self.learner is None or not self.learner.lines:
                per_byte = self._engine.prefill_ms_per_token / self.bytes_per_token
                self._use(LearntCosts(per_byte, self._costs.step_ms))
        kv_tokens = history.kv_tokens or self._kv_tokens
        index.resize(endpoint, int(kv_tokens * self.bytes_per_token * history.trust.share))
        if change.prefill is not None and not self._has_first_tokens:
            tokens, ms = change.prefill
            self._fit(tokens * self.bytes_per_token, ms)

    def _fit(self, missing: float, first_token_ms: float) -> None:
        if self.learner is not None and self.learner.take(missing, first_token_ms):
            self._use(self.learner.costs)
            self._forget_backlogs()  # counted with other constants, they outweigh what a prefill costs now

    def _use(self, costs: LearntCosts) -> None:
        self._costs = costs
        self.ms_per_byte = costs.ms_per_byte
        self._step_ms_per_request = costs.step_ms * _STEPS_PER_REQUEST
