"""A model of a pool's engines: what their work costs, how large their caches are, which ones are slow. Pure.

It starts with the constants of one kind of engine. Requests and the endpoints' metrics correct it.
"""

# What an endpoint's metrics say, and how far it is trusted:
#
# - **Waiting** is old when it comes, and every gateway reads the same: taken at its word, it sends
#   all of them to the same idle endpoint at once (simulated: with eight gateways three times the time
#   to the first token). So it is smoothed, and it can only raise an endpoint's cost. An endpoint
#   without metrics counts as the mean of the others.
# - **Hits** show whether the index is right: an endpoint that repeatedly finds far less than was
#   predicted evicts earlier than we think. Then its part of the index is dropped, and its cache is
#   presumed half as large, until the predictions hold again. Between the two limits nothing changes.
# - **Tokens** counted over bytes sent make the bytes of a token; only where all of an endpoint's
#   requests are ours.

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from msgspec import Struct

from extproc.router.routing.signals import EndpointSignals
from extproc.router.routing.strategies.base import (
    EngineFigures,
    PredictedHits,
    ReadsSignals,
    Reason,
)
from extproc.router.routing.strategies.prefix_cache.homes import GatewayCount
from extproc.router.routing.strategies.prefix_cache.index import PrefixIndex
from extproc.router.routing.strategies.prefix_cache.speeds import Prefills, Speeds

# Weight of a new figure against those before it: a mean of many requests, and a single one.
_SLOWLY: Final = 0.25
_RARELY: Final = 0.02

# A cost may be wrong by a quarter; a capacity had better not be too small.
BYTES_PER_TOKEN: Final = 4.0

# What a request waits for that waits for no other: the rest of a step, and its own.
_STEPS_TO_FIRST: Final = 1.5


# Judged after so many tokens, in so many rounds. A round is some minutes of one endpoint's traffic.
_ROUND_TOKENS: Final = 20_000
_ROUNDS: Final = 3
# Shares of the queried tokens. Predictions are wrong by some per cent where all is well.
_WRONG: Final = 0.25
_RIGHT: Final = 0.1
# The smallest that a cache is presumed to be: an eighth.
_LEAST: Final = 3

_SMOOTH: Final = 0.3
_NEARLY_NONE: Final = 0.05
_ROUND_REQUESTS: Final = 50
_FEWEST_BYTES, _MOST_BYTES = 1.5, 8.0
# Ours and theirs are counted at different moments.
_SAME: Final = 0.1


class Trust:
    """Whether an endpoint holds what the index says. `level` is how often its presumed size was halved."""

    __slots__ = (
        "_found",
        "_predicted",
        "_queried",
        "_rounds",
        "level",
        "measured_rate",
        "predicted_rate",
    )

    def __init__(self) -> None:
        self.level = 0
        self.predicted_rate = self.measured_rate = 0.0
        self._queried = self._found = self._predicted = 0.0
        self._rounds = 0  # so many right ones in a row, or wrong ones where it is negative

    @property
    def share(self) -> float:
        """How much of its cache it is presumed to have."""
        return 0.5**self.level

    def add(self, queried: float, found: float, predicted_rate: float | None) -> bool:
        """Adds tokens queried and found, and the share that was predicted; `None`: nothing was.

        Returns whether the endpoint's part of the index should be dropped.
        """
        if predicted_rate is None or queried <= 0:
            return False
        self._queried += queried
        self._found += found
        self._predicted += predicted_rate * queried
        if self._queried < _ROUND_TOKENS:
            return False
        self.predicted_rate, self.measured_rate = (
            self._predicted / self._queried,
            self._found / self._queried,
        )
        self._queried = self._found = self._predicted = 0.0
        return self._judge(self.predicted_rate - self.measured_rate)

    def _judge(self, missing: float) -> bool:
        if missing > _WRONG:
            self._rounds = min(self._rounds, 0) - 1
        elif missing < _RIGHT:
            self._rounds = max(self._rounds, 0) + 1
        else:
            self._rounds = 0
        if abs(self._rounds) < _ROUNDS:
            return False
        is_wrong, self._rounds = self._rounds < 0, 0
        self.level = min(self.level + 1, _LEAST) if is_wrong else max(self.level - 1, 0)
        return is_wrong


class SentTotals(Struct):
    """What was sent to an endpoint: requests, their bytes, and how many of these it should have cached."""

    requests: int = 0
    size: float = 0.0
    cached: float = 0.0


class SignalChange(Struct, frozen=True):
    """What new metrics of an endpoint mean, beside its load.

    `is_lost`: its cache is empty, or the index is too wrong to keep. `bytes_per_token` is `None`
    where there is no new figure, `prefills` what it prefilled since the metrics before.
    """

    is_lost: bool = False
    bytes_per_token: float | None = None
    prefills: Prefills | None = None


class SignalHistory:
    """The metrics of one endpoint over time. `waiting` is smoothed; `None` without a figure.

    `is_emptied`: that its cache was, was heard elsewhere since the last metrics came.
    """

    __slots__ = (
        "_last",
        "_sized",
        "_was_sent",
        "_was_sized",
        "is_emptied",
        "kv_tokens",
        "sent",
        "signals",
        "trust",
        "waiting",
    )

    def __init__(self) -> None:
        self.sent = SentTotals()
        self.trust = Trust()
        self.signals: EndpointSignals | None = None
        self.waiting: float | None = None
        self.is_emptied = False
        self.kv_tokens: int | None = None
        self._last = self._sized = EndpointSignals()
        self._was_sent = self._was_sized = SentTotals()

    def miss(self) -> None:
        """It gave no metrics: there is no figure of how many requests wait there."""
        self.signals = self.waiting = None

    def add(self, signals: EndpointSignals) -> SignalChange:
        before, is_first = self._last, self._last == EndpointSignals()
        is_known, self.is_emptied = self.is_emptied, False
        self.signals = self._last = signals
        self.kv_tokens = signals.kv_tokens or self.kv_tokens
        smoothed = signals.waiting if self.waiting is None else self.waiting
        waiting = smoothed + _SMOOTH * (signals.waiting - smoothed)
        self.waiting = waiting if waiting > _NEARLY_NONE else 0.0
        if is_first or not signals.is_after(before):
            self._sized = signals
            self._was_sent, self._was_sized = _copy(self.sent), _copy(self.sent)
            return SignalChange(is_lost=not (is_first or is_known))
        return SignalChange(
            self._judge(before, signals), self._size(signals), _prefills(before, signals)
        )

    def _judge(self, before: EndpointSignals, signals: EndpointSignals) -> bool:
        size, cached = (
            self.sent.size - self._was_sent.size,
            self.sent.cached - self._was_sent.cached,
        )
        self._was_sent = _copy(self.sent)
        queried = signals.queried_tokens - before.queried_tokens
        return self.trust.add(
            queried, signals.hit_tokens - before.hit_tokens, cached / size if size else None
        )

    def _size(self, signals: EndpointSignals) -> float | None:
        """The bytes of a token, where it has read what we sent and nothing else."""
        requests = signals.prefills - self._sized.prefills
        tokens = signals.prompt_tokens - self._sized.prompt_tokens
        sent, size = (
            self.sent.requests - self._was_sized.requests,
            self.sent.size - self._was_sized.size,
        )
        if min(requests, sent) < _ROUND_REQUESTS:
            return None
        self._sized, self._was_sized = signals, _copy(self.sent)
        is_ours = abs(requests - sent) <= _SAME * sent
        return min(max(size / tokens, _FEWEST_BYTES), _MOST_BYTES) if is_ours and tokens else None


def _copy(sent: SentTotals) -> SentTotals:
    return SentTotals(sent.requests, sent.size, sent.cached)


def _prefills(before: EndpointSignals, signals: EndpointSignals) -> Prefills | None:
    requests = signals.prefills - before.prefills
    if requests < 1:
        return None
    queried, found = (
        signals.queried_tokens - before.queried_tokens,
        signals.hit_tokens - before.hit_tokens,
    )
    seconds = signals.prefill_s - before.prefill_s
    return Prefills(requests, max(0.0, queried - found), seconds * 1000)


def foreign_requests(
    waiting: Mapping[str, float | None],
    in_flight: Mapping[str, int],
    running: Mapping[str, float],
    gateways: float,
) -> dict[str, float]:
    """How many requests wait at each endpoint that we did not send; endpoints without any are left out.

    With several gateways, the others' part of those that wait. Alone, those far beyond our own:
    what `running` and `waiting` say together may be a second old.
    """
    foreign = {
        name: _foreign(count, running.get(name, 0.0), in_flight.get(name, 0), gateways)
        for name, count in waiting.items()
        if count is not None
    }
    if not any(foreign.values()):
        return {}
    mean = sum(foreign.values()) / len(foreign)
    counts = {name: foreign.get(name, mean) for name in waiting}
    return {name: count for name, count in counts.items() if count}


def _foreign(waiting: float, running: float, ours: int, gateways: float) -> float:
    if gateways > 1:
        return waiting * (1 - 1 / gateways)
    total = running + waiting
    return min(waiting, total - ours) if total > 2 * ours + 8 else 0.0


class EngineCosts(Struct, frozen=True):
    """One vLLM endpoint: `step_ms` is a step that only decodes, of an almost empty engine.

    It is longer by `context_us_per_token` for each token that its requests keep in the cache.
    """

    prefill_ms_per_token: float
    step_ms: float
    kv_tokens: int
    context_us_per_token: float = 0.0


ENGINES: Final[Mapping[str, EngineCosts]] = MappingProxyType(
    {
        "l4-llama8b-fp8": EngineCosts(0.19, 39, 84_000, 0.583),
        "l4-llama8b-fp8-fitted": EngineCosts(0.19, 39, 60_000, 0.583),
        "l4-llama8b-fp8-kvfp8": EngineCosts(0.19, 39, 168_000, 0.29),
        "h100-llama70b-fp8": EngineCosts(0.16, 27, 26_000, 0.06),
        "h100-llama8b-bf16": EngineCosts(0.03, 6, 430_000, 0.05),
        "h200-llama8b-bf16": EngineCosts(0.0208, 5.24, 380_000, 0.0178),
    }
)
"""The simulator's profiles, by their names there."""

DEFAULT_ENGINE: Final = "l4-llama8b-fp8"


def find_engine(engine: str | Mapping[str, float]) -> EngineCosts:
    """Returns the costs of a name in `ENGINES`, or those that are given. Raises `ValueError` for another name."""
    if not isinstance(engine, str):
        return EngineCosts(**engine)  # type: ignore[arg-type]  # an int among floats
    if engine not in ENGINES:
        raise ValueError(f"{engine!r} is no engine: choose from {', '.join(ENGINES)}")
    return ENGINES[engine]


class EngineModel(ReadsSignals):
    """What `prefix_cache` has learnt of a pool's engines, and resizes its `index` by.

    `kv_tokens` is the size of a cache whose endpoint does not say it, `reasons` those of picks by a
    prompt. `slow` has the factors of endpoints that are slower or faster than most, `others_ms` the
    cost of other gateways' requests that wait there.
    """

    def __init__(
        self,
        engine: EngineCosts,
        kv_tokens: int,
        index: PrefixIndex,
        gateways: GatewayCount,
        *,
        reasons: Iterable[Reason],
    ) -> None:
        self.bytes_per_token = BYTES_PER_TOKEN
        self._predicted = {reason: PredictedHits() for reason in reasons}
        self.slow: dict[str, float] = {}
        self.others_ms: dict[str, float] = {}
        self.unseen: dict[str, float] = {}
        self._engine, self._kv_tokens = engine, kv_tokens
        self._index, self._gateways = index, gateways
        self._is_measured = False
        self.ms_per_byte = engine.prefill_ms_per_token / BYTES_PER_TOKEN
        self.step_ms = engine.step_ms
        self._speeds = Speeds()
        self._histories: dict[str, SignalHistory] = {}
        self.mean_prefill_ms = 0.0

    def follow(self, ready: Collection[str]) -> None:
        self._speeds.follow(ready)
        self.slow = self._speeds.slow
        self._histories = {name: self._histories.get(name) or SignalHistory() for name in ready}
        self.others_ms = {name: ms for name, ms in self.others_ms.items() if name in ready}
        self.unseen = {name: share for name, share in self.unseen.items() if name in ready}

    def figures(self) -> EngineFigures:
        holdings = {name: self._index.holding(name) for name in self._histories}
        capacities = {name: one.capacity for name, one in holdings.items() if one is not None}
        return EngineFigures(
            self.ms_per_byte, self.step_ms, self.bytes_per_token, self.slow, capacities
        )

    def adopt(self, figures: EngineFigures) -> None:
        """Takes over what was learnt elsewhere of the same engines."""
        self.bytes_per_token = figures.bytes_per_token
        self.ms_per_byte, self.step_ms = figures.ms_per_byte, figures.step_ms
        self._speeds.slow = self.slow = dict(figures.slow)
        for name, capacity in figures.capacities.items():
            self._index.resize(name, capacity)

    def tokens(self, size: float) -> int:
        """How many so many bytes of a prompt are, about."""
        return round(size / self.bytes_per_token)

    def step_ms_with(self, size: float) -> float:
        """A step of an engine whose requests keep so many bytes of prompts in its cache."""
        tokens = size / self.bytes_per_token
        return self.step_ms + tokens * self._engine.context_us_per_token / 1000

    def prefill_ms(self, endpoint: str) -> float:
        """What a byte that is not cached takes there."""
        return self.ms_per_byte * self.slow.get(endpoint, 1.0)

    def apply_signals(
        self,
        endpoint: str,
        signals: EndpointSignals | None,
        in_flight: Callable[[], Mapping[str, int]],
        /,
    ) -> None:
        """Takes an endpoint's metrics; resizes its part of the index."""
        history = self._histories.get(endpoint)
        if history is None:
            return
        if signals is None:
            history.miss()
            self.unseen.pop(endpoint, None)
        else:
            self._apply_change(endpoint, history, history.add(signals))
            holding = self._index.holding(endpoint)
            if holding is not None:
                # What waits holds none of the cache yet, and will.
                admitted = 1 - signals.waiting / max(1.0, signals.running + signals.waiting)
                known = admitted * holding.pinned_bytes / max(1, holding.capacity)
                self.unseen[endpoint] = signals.kv_usage - known
        if not history.waiting and not self.others_ms:
            return  # the other endpoints' figures do not depend on it
        histories = self._histories.items()
        waiting = {name: history.waiting for name, history in histories}
        running = {name: history.signals.running for name, history in histories if history.signals}
        waiting_there = foreign_requests(waiting, in_flight(), running, self._gateways.times)
        self.others_ms = {
            name: count * self.mean_prefill_ms for name, count in waiting_there.items()
        }

    def forget_cache(self, endpoint: str, /) -> None:
        self._index.lose(endpoint)
        self._expect_misses(endpoint)

    def forget_idle(self, endpoint: str, /) -> Iterator[None]:
        self._expect_misses(endpoint)
        return self._index.lose_idle(endpoint)

    def _expect_misses(self, endpoint: str) -> None:
        if endpoint in self._histories:
            # Metrics of a new process will be no news.
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
        hits = self._predicted[reason]
        hits.prompt += size / per_token
        hits.cached += cached
        hits.saved_ms += cached * per_token * self.ms_per_byte
        self.mean_prefill_ms += _RARELY * (missing * self.ms_per_byte - self.mean_prefill_ms)

    def predict_peer_pick(self, endpoint: str, size: float, missing: float) -> None:
        """Takes what another gateway sent, since the engine's counters have it, too.

        Held against our own requests alone they looked wrong by chance, and caches were presumed to
        be small: four gateways took 1.3 times as long with `tenants` (simulated).
        """
        history = self._histories.get(endpoint)
        if history is not None:
            history.sent.size += size
            history.sent.cached += max(0.0, size - missing)

    def count_gateways(self) -> float:
        return self._gateways.count

    def predicted(self) -> Mapping[Reason, PredictedHits]:
        return self._predicted

    def predicted_by_endpoint(self) -> Mapping[str, tuple[float, float]]:
        return {
            name: (history.sent.size, history.sent.cached)
            for name, history in self._histories.items()
        }

    def describe_engines(self) -> Mapping[str, object]:
        return {
            "prefill_ms_per_token": round(self.ms_per_byte * self.bytes_per_token, 4),
            "step_ms": round(self.step_ms, 2),
            "bytes_per_token": round(self.bytes_per_token, 2),
            "gateways": round(self._gateways.count, 1),
            "endpoints": {
                name: self._describe_endpoint(name, history)
                for name, history in self._histories.items()
            },
        }

    def _describe_endpoint(self, name: str, history: SignalHistory) -> Mapping[str, object]:
        holding, trust = self._index.holding(name), history.trust
        return {
            "slower_by": round(self.slow.get(name, 1.0), 2),
            "cache_tokens": self.tokens(holding.capacity) if holding is not None else 0,
            "presumed_share": trust.share,
            "predicted_hit_rate": round(trust.predicted_rate, 3),
            "measured_hit_rate": round(trust.measured_rate, 3),
            "waiting": None if history.waiting is None else round(history.waiting, 1),
        }

    def _apply_change(self, endpoint: str, history: SignalHistory, change: SignalChange) -> None:
        if change.is_lost:
            self._index.lose(endpoint)
        if change.bytes_per_token is not None and self._gateways.is_alone:
            # The first sample is better than the default.
            share = _SLOWLY if self._is_measured else 1.0
            self._is_measured = True
            self.bytes_per_token += share * (change.bytes_per_token - self.bytes_per_token)
        kv_tokens = history.kv_tokens or self._kv_tokens
        self._index.resize(endpoint, int(kv_tokens * self.bytes_per_token * history.trust.share))
        if change.prefills is not None:
            did, engine = change.prefills, self._engine
            step_ms = did.requests * engine.step_ms * _STEPS_TO_FIRST
            self._speeds.add(endpoint, did, step_ms + did.tokens * engine.prefill_ms_per_token)
            self.slow, self.step_ms = self._speeds.slow, engine.step_ms * self._speeds.scale
        prefill_ms = self._engine.prefill_ms_per_token * self._speeds.scale
        self.ms_per_byte = prefill_ms / self.bytes_per_token
