"""Builds the service's state for the live page, from its counters and from the recording of its decisions.

Pure: time comes in. Everything is read in one step, so the figures fit together: some 0.3 ms for a
thousand endpoints. Their rows take ten times as long, so a thread may build them of what was read.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from math import floor
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from extproc import __version__
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.lint.partings import PoolLint
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool
from extproc.router.service.configuration import Configuration
from extproc.router.service.live.recorder import RecordedDecision, Recording
from extproc.router.service.live.service_state import (
    ConfigurationState,
    DecisionRow,
    EndpointRow,
    PoolState,
    RefusalState,
    State,
)
from extproc.router.service.pools import Pools
from extproc.router.service.running_pool import RunningPool
from extproc.router.shadow.forecast import Forecast

# The window of "now": long enough to count something at one request a second.
WINDOW_S: Final = 60


class LiveService(Protocol):
    """What the live page shows of the running service."""

    @property
    def pools(self) -> Pools: ...

    @property
    def configuration(self) -> Configuration: ...

    def faults(self) -> list[str]:
        """Why the service is not ready; empty if it is."""

    def record(self, recording: Recording) -> Callable[[], None]:
        """Adds every decision to `recording` until the returned function is called."""


Pair = tuple[float, float]
_NOTHING: Final = (0.0, 0.0)


class EndpointCounts(Struct, frozen=True):
    """What was counted of a pool's endpoints up to one moment, by name.

    Pairs: answers and their seconds to the first token; bytes sent and predicted in the cache;
    tokens looked for and found there.
    """

    picks: Mapping[str, int]
    first_tokens: Mapping[str, Pair]
    sent: Mapping[str, Pair]
    found: Mapping[str, Pair]


_NO_COUNTS: Final = EndpointCounts({}, {}, {}, {})


class StateBuilder:
    """Builds one state after the other, and remembers the counts of the last minute."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._before: deque[tuple[float, dict[str, EndpointCounts]]] = deque()
        self._number = 0

    def read(self, service: LiveService, now_s: float) -> Callable[[], State]:
        """Reads everything; returns what builds a state of it, in any thread."""
        counts = {each.name: self._count(each.feedback) for each in service.pools}
        then = self._remember(now_s, counts)
        self._number += 1
        faults = service.faults()
        seen = [
            _read_pool(
                each,
                counts[each.name],
                then.get(each.name, _NO_COUNTS),
                each.foretell(),
            )
            for each in service.pools
        ]
        state = State(
            number=self._number,
            version=__version__,
            is_ready=not faults,
            faults=faults,
            remarks=service.pools.remarks(),
            configuration=_build_configuration(service.configuration, now_s),
            reasons={pool: dict(reasons) for pool, reasons in self._recording.reasons.items()},
            decisions=[_build_decision(one, now_s) for one in reversed(self._recording.last)],
        )
        return lambda: replace(state, pools=[_build_pool(one) for one in seen])

    def _count(self, feedback: PoolFeedback) -> EndpointCounts:
        found = {
            name: (each.queried_tokens, each.hit_tokens) for name, each in feedback.signals.items()
        }
        first = {
            name: (each.first_tokens, each.first_token_s) for name, each in feedback.signals.items()
        }
        picks = dict(self._recording.picks.get(feedback.pool.name, {}))
        strategy = feedback.pool.strategy.signals
        sent = strategy.predicted_by_endpoint() if strategy is not None else {}
        return EndpointCounts(picks, first, sent, found)

    def _remember(
        self, now_s: float, counts: dict[str, EndpointCounts]
    ) -> dict[str, EndpointCounts]:
        """Returns the oldest counts of the window."""
        before = self._before
        before.append((now_s, counts))
        while before[0][0] < now_s - WINDOW_S:
            before.popleft()
        return before[0][1]


def _build_decision(one: RecordedDecision, now_s: float) -> DecisionRow:
    prefix = None if one.key is None else f"{one.key:016x}"
    return DecisionRow(
        one.number, round(now_s - one.at_s, 2), one.pool, one.reason, one.endpoint, prefix
    )


def _build_configuration(configuration: Configuration, now_s: float) -> ConfigurationState:
    last = configuration.refusal
    refusal = None if last is None else RefusalState(round(now_s - last.at_s, 1), last.why)
    age_s = round(now_s - configuration.since_s, 1)
    return ConfigurationState(configuration.where, configuration.number, age_s, refusal)


class _PoolMoment(Struct, frozen=True):
    """A pool at one moment, with its counts up to now and up to the window's begin.

    `pool` is without means and rows. `left_s`: for how long those that cool are left alone yet.
    """

    pool: PoolState
    states: Sequence[tuple[Endpoint, str]]
    in_flight: Mapping[str, int]
    elsewhere: Mapping[str, int]
    left_s: Mapping[str, float]
    now: EndpointCounts
    then: EndpointCounts
    events: Mapping[str, str]
    lint: PoolLint | None


def _read_pool(
    running: RunningPool, now: EndpointCounts, then: EndpointCounts, forecast: Forecast | None
) -> _PoolMoment:
    keeper, feedback = running.keeper, running.feedback
    pool = keeper.pool
    states = list(pool.states())
    in_flight, elsewhere = pool.book.counts(), pool.book.elsewhere()
    cache, loads = pool.strategy.signals, [in_flight[name] for name in pool.snapshot.names]
    left_s = {
        endpoint.name: feedback.cooling.cooled_for_s(endpoint.name)
        for endpoint, state in states
        if state == "cooling"
    }
    named = [*(running.settings.models or ()), *sorted(pool.snapshot.models)]
    state = PoolState(
        name=pool.name,
        strategy=pool.strategy.name,
        age_s=None if keeper.age_s is None else round(keeper.age_s, 1),
        fault=None if keeper.fault is None else str(keeper.fault),
        in_flight=pool.book.total,
        max_in_flight=pool.max_in_flight,
        bound=_bound(pool),
        balance=_ratio(max(loads, default=0) * len(loads), sum(loads)),
        picks=sum(now.picks.values()) - sum(then.picks.values()),
        states=Counter(state for _, state in states),
        saved_s=None
        if cache is None
        else sum(hits.saved_ms for hits in cache.predicted().values()) / 1000,
        # The batches are for a report, not for each second.
        forecast=None if forecast is None else replace(forecast, batches=(), open_batch=None),
        model=next((name for name in named if "*" not in name), None),
    )
    events = {
        name: ": ".join(filter(None, (said["state"], said["why"])))
        for name, said in running.describe_events().items()
    }
    return _PoolMoment(state, states, in_flight, elsewhere, left_s, now, then, events, running.lint)


def _build_pool(seen: _PoolMoment) -> PoolState:
    now, then = seen.now, seen.then
    return replace(
        seen.pool,
        first_token_s=_mean_of_all(now.first_tokens, then.first_tokens),
        predicted=_mean_of_all(now.sent, then.sent),
        found=_mean_of_all(now.found, then.found),
        lint=None if seen.lint is None else seen.lint.tell().lines,
        endpoints=[_build_row(seen, endpoint, state) for endpoint, state in seen.states],
    )


def _build_row(seen: _PoolMoment, endpoint: Endpoint, state: str) -> EndpointRow:
    name, now, then = endpoint.name, seen.now, seen.then
    left_s = seen.left_s.get(name)
    return EndpointRow(
        name,
        endpoint.address,
        state,
        seen.in_flight.get(name, 0),
        _ratio(now.picks.get(name, 0) - then.picks.get(name, 0), seen.pool.picks),
        None if left_s is None else round(left_s, 1),
        _mean(now.first_tokens, then.first_tokens, name),
        _mean(now.sent, then.sent, name),
        _mean(now.found, then.found, name),
        endpoint.zone,
        seen.elsewhere.get(name, 0),
        seen.events.get(name),
    )


def _bound(pool: Pool) -> int | None:
    candidates = pool.candidates()
    bound = pool.strategy.bound(candidates) if candidates else None
    return None if bound is None else floor(bound) + 1


def _mean(now: Mapping[str, Pair], then: Mapping[str, Pair], name: str) -> float | None:
    pair = now.get(name)
    if pair is None:
        return None
    whole, part = _added(pair, then.get(name, _NOTHING)) or pair
    return _ratio(part, whole)


def _mean_of_all(now: Mapping[str, Pair], then: Mapping[str, Pair]) -> float | None:
    added = [_added(pair, then.get(name, _NOTHING)) for name, pair in now.items()]
    pairs = [pair for pair in added if pair is not None] or now.values()
    return _ratio(sum(part for _, part in pairs), sum(whole for whole, _ in pairs))


def _added(now: Pair, then: Pair) -> Pair | None:
    """What was counted in between; `None` where that is nothing, or the counts began again."""
    whole, part = now[0] - then[0], now[1] - then[1]
    return (whole, part) if whole > 0 and part >= 0 else None


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole > 0 else None
