"""Where the outcomes of one pool's requests arrive: counted, passed to its cooling, logged."""

import logging
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from extproc.router.feedback.cooling import Change, Cooling
from extproc.router.feedback.doubts import Doubts
from extproc.router.feedback.outcome import Outcome, Verdict, class_of
from extproc.router.histogram import Histogram
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.pool import Pool
from extproc.router.routing.signals import EndpointSignals

log = logging.getLogger(__name__)

# Seconds: from a cached prompt on an idle endpoint to a long one in a queue. vLLM's own
# `time_to_first_token_seconds` uses most of these.
FIRST_BYTE_BOUNDS_S: Final = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    40.0,
    80.0,
)


# So many answers or so are the last ones of an endpoint.
_RECENT: Final = 16


@dataclass(slots=True)
class FirstByteTimes:
    """Of one endpoint's good answers: how many, all together, and how long the last ones took, seconds."""

    count: int = 0
    sum_s: float = 0.0
    recent_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.sum_s += seconds
        self.recent_s += (seconds - self.recent_s) / min(self.count, _RECENT)


class Counters:
    """What was counted since the pool exists.

    `answers` by endpoint and class, `coolings` and `endpoint_times` by endpoint; `first_bytes` by
    the endpoint's zone, empty where no source gives one, and the answer's class.
    """

    def __init__(self) -> None:
        self.answers = Counter[tuple[str, str]]()
        self.coolings = Counter[str]()
        self.first_bytes: dict[tuple[str, str], Histogram] = {}
        self.endpoint_times: dict[str, FirstByteTimes] = {}

    def count(self, name: str, outcome: Outcome, zone: str = "") -> None:
        class_ = class_of(outcome)
        self.answers[name, class_] += 1
        if outcome.first_byte_s is not None:
            times = self.first_bytes.get((zone, class_))
            if times is None:
                times = self.first_bytes[zone, class_] = Histogram(FIRST_BYTE_BOUNDS_S)
            times.count(outcome.first_byte_s)
            if class_ == "2xx":
                self.endpoint_times.setdefault(name, FirstByteTimes()).add(outcome.first_byte_s)

    def keep(self, names: Collection[str]) -> None:
        """Forgets endpoints that are gone: with pods that come and go the counts would only grow."""
        self.answers = Counter(
            {key: count for key, count in self.answers.items() if key[0] in names}
        )
        self.coolings = Counter(
            {name: count for name, count in self.coolings.items() if name in names}
        )
        self.endpoint_times = {
            name: times for name, times in self.endpoint_times.items() if name in names
        }


class PoolFeedback:
    """Finds a pool's endpoints by their addresses; passes outcomes to its `cooling` and its `counters`.

    Connection failures wait for its `doubts`, where there are any.
    """

    def __init__(self, pool: Pool, cooling: Cooling, doubts: Doubts | None = None) -> None:
        self.pool = pool
        self.cooling = cooling
        self.doubts = doubts
        self.counters = Counters()
        self.signals: dict[str, EndpointSignals] = {}
        self.has_log = False
        self._lost: set[str] = set()  # gave no answer at all, as the log says

    def observe(self, outcome: Outcome) -> None:
        """Takes an outcome from an access log, which has every request, when it has ended."""
        self.has_log = True
        if outcome.verdict is Verdict.ANSWERED:
            self.pool.note_duration(outcome.duration_s)
        self._take(outcome)

    def observe_response(self, outcome: Outcome) -> None:
        """Takes an outcome from a response's headers, which come at once, but not for all requests.

        Ignored where there is a log, too: it has the same answers, and each must count once.
        """
        if not self.has_log:
            self._take(outcome)

    def confirm(self, name: str, *, is_there: bool) -> None:
        """Takes whether an endpoint answered our probe or scrape.

        If it did not, and its requests got no answer at all, its process is gone and its cache with
        it. The log alone does not prove that: a stale network path between proxy and endpoint looks
        the same.
        """
        if name in self._lost:
            self._lost.discard(name)
            if not is_there and self.pool.strategy.signals is not None:
                self.pool.strategy.signals.forget_cache(name)

    def apply_signals(self, endpoint: Endpoint, signals: EndpointSignals | None) -> None:
        """Takes an endpoint's metrics; `None`: it does not answer."""
        current = self.pool.snapshot.ready.get(endpoint.name)
        if current is None or current.address != endpoint.address:
            return  # it is gone, or another one has its name by now
        self.confirm(endpoint.name, is_there=signals is not None)
        if signals is not None:
            self._learn_duration(self.signals.get(endpoint.name), signals)
            self.signals[endpoint.name] = signals
            if self.pool.watcher is not None:
                self.pool.watcher.apply_signals(endpoint.name, signals)
        if self.pool.strategy.signals is not None:
            self.pool.strategy.signals.apply_signals(endpoint.name, signals, self.pool.book.counts)

    def _learn_duration(self, before: EndpointSignals | None, signals: EndpointSignals) -> None:
        """Takes how long requests took since the last scrape; ignored where a log says it for each."""
        if before is None or not signals.is_after(before):
            before = EndpointSignals()
        answers = signals.answers - before.answers
        if answers >= 1 and not self.has_log:
            self.pool.note_duration((signals.answer_s - before.answer_s) / answers)

    def forget_signals(self) -> None:
        """Nobody scrapes any more: the last signals may not be true any longer."""
        self.signals.clear()
        if self.pool.strategy.signals is not None:
            for name in self.pool.snapshot.ready:
                self.pool.strategy.signals.apply_signals(name, None, dict)

    def describe_answers(self, name: str) -> dict[str, float | None]:
        """How fast an endpoint answers, JSON-ready; `None` where no answer of it is known."""
        times = self.counters.endpoint_times.get(name)
        return {
            "first_byte_s": None if times is None else round(times.recent_s, 3),
            "silent_s": round(self.silent_for_s(name), 1),
        }

    def silent_for_s(self, name: str) -> float:
        """As its cooling has it; 0 where the proxy does not say what became of requests."""
        return self.cooling.silent_for_s(name) if self.counters.answers else 0.0

    def keep(self, names: Collection[str]) -> None:
        self.counters.keep(names)
        self._lost &= set(names)
        self.signals = {name: signals for name, signals in self.signals.items() if name in names}

    def _take(self, outcome: Outcome) -> None:
        name = self._name(outcome.address)
        if name is None:
            return
        endpoint = self.pool.snapshot.ready.get(name)
        zone = (endpoint.zone or "") if endpoint is not None else ""
        self.counters.count(name, outcome, zone)
        if self.doubts is None or self.doubts.weigh(outcome):
            self._judge(name, outcome)

    def settle(self, address: str, *, is_there: bool) -> None:
        """Takes whether an endpoint answered when it was asked about a connection that failed."""
        for outcome in self.doubts.settle(address, is_there=is_there) if self.doubts else ():
            if (name := self._name(address)) is not None:
                self._judge(name, outcome)

    def _judge(self, name: str, outcome: Outcome) -> None:
        change = self.cooling.observe(name, outcome)
        if change is Change.BACK:
            log.info("pool %s: %s answers again", self.pool.name, name)
        elif change is Change.COOLED:
            if outcome.status == 0:
                self._lost.add(name)
            self.counters.coolings[name] += 1
            for_s = self.cooling.cooled_for_s(name)
            log.warning(
                "pool %s: %s fails and is cooled down for %.1f s", self.pool.name, name, for_s
            )

    def _name(self, address: str) -> str | None:
        snapshot = self.pool.snapshot
        names = snapshot.by_location.get(address)
        if names:
            return names[0]
        return next((one.name for one in snapshot.draining if one.address == address), None)
