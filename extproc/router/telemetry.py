"""Metrics and logs: what operators see. Nothing a client chose becomes a label or is logged."""

import json
import logging
from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from time import monotonic
from types import MappingProxyType
from typing import Final, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from extproc import __version__
from extproc.errors import PromptError
from extproc.router.routing.picker import Decision
from extproc.router.routing.pool import Pool
from extproc.router.routing.queue import STAY_BUCKETS
from extproc.router.stream.events import Answer, Routed

# Seconds. A pick is tens of microseconds; a slow one is a large body.
_PICK_BUCKETS: Final = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)


Buckets = list[tuple[str, float] | tuple[str, float, Exemplar]]

# The label values that we know of; docs/metrics.md says what each means.
RELOADS: Final = ("applied", "refused")
STREAM_FAULTS: Final = ("protocol", "internal", "unready")
LOG_FAULTS: Final = ("unreadable", "too_large")
SPAN_RESULTS: Final = ("sent", "refused", "dropped")
XDS_TYPES: Final = ("Cluster", "ClusterLoadAssignment")
_WATCHES: Final = (
    *("closed", "connection", "credentials", "expired", "forbidden", "garbled", "not_found"),
    *("server_error", "stalled", "throttled", "unauthorized"),
)
# By kind of source.
RESTARTS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "static": (),
        "file": ("file_invalid", "file_unreadable"),
        "dns": ("dns_failure", "dns_no_address", "dns_timeout"),
        "kubernetes": _WATCHES,
        "inference_pool": _WATCHES,
    }
)
# What a pool answers itself, and what is answered before there is a pool.
POOL_OUTCOMES: Final = ("cold", "no_endpoint", "over_share", "overloaded", "sheddable")
OUTCOMES: Final = ("bad_request", "body_too_large", "model_not_found", "models", "no_endpoint", "no_room")


class _Registry(CollectorRegistry):
    """Without the series that only tell when another one began: twice the series, and nobody reads them."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family


def _whys(kind: type[PromptError]) -> Iterator[str]:
    yield kind.why
    for below in kind.__subclasses__():
        yield from _whys(below)


class Metrics(Collector):
    """Every metric of the service, in a registry of its own; the observer of the streams.

    What is counted for each request is counted in plain integers, and read when it is scraped: a counter
    of the library takes a lock and costs as much as a pick.
    """

    def __init__(self) -> None:
        self.registry = _Registry()
        # Before the others: what there is to count is known before they are asked.
        self.registry.register(self)
        self._pools: Callable[[], Iterable[tuple[Pool, str]]] = tuple
        self.streams_open = 0
        self._picks: dict[tuple[str, str, str], int] = {}
        self._answers: dict[tuple[str, str], int] = {}
        self._pick_counts = [0] * (len(_PICK_BUCKETS) + 1)
        self._pick_sum_s = 0.0
        # The last trace of each series: by bucket of the pick's duration, by label values of the others.
        self._slow_traces: dict[int, Exemplar] = {}
        self._pick_traces: dict[tuple[str, str, str], Exemplar] = {}
        self._answer_traces: dict[tuple[str, str], Exemplar] = {}
        self._served_elsewhere = self._counter(
            "picks_served_elsewhere", "Picks that another endpoint answered, as the gateway told.", "pool"
        )
        self._prompt_errors = self._counter(
            "prompt_errors", "Requests routed without their body, which could not be read.", "why"
        )
        self._stream_errors = self._counter("stream_errors", "Streams that ended with a fault.", "why")
        self.watch_restarts = self._counter(
            "watch_restarts", "Lost or refused watches of a source.", "pool", "why"
        )
        self.objectives_restarts = self._counter(
            "objectives_watch_restarts", "Lost or refused watches of a pool's objectives.", "pool", "why"
        )
        self._reloads = self._counter("config_reloads", "Attempts to load a changed configuration.", "result")
        self._config_refused = Gauge(
            "extproc_config_refused",
            "1 while the configuration in force is not the file's.",
            registry=self.registry,
        )
        self.access_log_faults = self._counter(
            "access_log_faults", "Messages of a proxy's access log that could not be used.", "why"
        )
        self._spans = self._counter("spans", "Spans by what became of them.", "result")
        self.xds_nacks = self._counter("xds_nacks", "Configurations that an Envoy refused.", "type")
        Info("extproc", "The running service.", registry=self.registry).info({"version": __version__})
        ProcessCollector(registry=self.registry)
        for counter, values in (
            (self._prompt_errors, sorted(_whys(PromptError))),
            (self._stream_errors, STREAM_FAULTS),
            (self._reloads, RELOADS),
            (self.access_log_faults, LOG_FAULTS),
            (self.xds_nacks, XDS_TYPES),
            (self._spans, SPAN_RESULTS),
        ):
            for value in values:
                counter.labels(value)

    def watch(self, pools: Callable[[], Iterable[tuple[Pool, str]]]) -> None:
        """Tells the pools and the kinds of their sources, so that what may come is shown as nothing yet."""
        self._pools = pools

    def opened(self) -> None:
        self.streams_open += 1

    def closed(self) -> None:
        self.streams_open -= 1

    def routed(self, decision: Decision, elapsed_s: float) -> None:
        pick = decision.pick
        kind = (pick.pool.name, pick.strategy, pick.reason)
        self._picks[kind] = self._picks.get(kind, 0) + 1
        self._pick_counts[bisect_left(_PICK_BUCKETS, elapsed_s)] += 1
        self._pick_sum_s += elapsed_s
        if decision.fault is not None:
            self._prompt_errors.labels(decision.fault.why).inc()

    def traced(self, told: Routed | Answer, elapsed_s: float, trace_id: str) -> None:
        if isinstance(told, Answer):
            self._answer_traces[told.pool, told.outcome] = exemplar(trace_id, 1)
            return
        pick = told.decision.pick
        self._pick_traces[pick.pool.name, pick.strategy, pick.reason] = exemplar(trace_id, 1)
        self._slow_traces[bisect_left(_PICK_BUCKETS, elapsed_s)] = exemplar(trace_id, elapsed_s)

    def count_spans(self, result: str, count: int) -> None:
        """From any thread."""
        self._spans.labels(result).inc(count)

    def answered(self, pool: str, outcome: str) -> None:
        self._answers[pool, outcome] = self._answers.get((pool, outcome), 0) + 1

    def reloaded(self, result: str) -> None:
        """Counts a changed configuration, one of `RELOADS`."""
        self._reloads.labels(result).inc()
        self._config_refused.set(result == "refused")

    def served_elsewhere(self, pool: str) -> None:
        self._served_elsewhere.labels(pool).inc()

    def failed(self, why: str) -> None:
        self._stream_errors.labels(why).inc()

    def collect(self) -> Iterator[Metric]:
        self._expect()
        picks = CounterMetricFamily(
            "extproc_picks", "Picks by why the endpoint was chosen.", labels=["pool", "strategy", "reason"]
        )
        requests = CounterMetricFamily(
            "extproc_requests", "Requests by what became of them.", labels=["pool", "outcome"]
        )
        routed = Counts[str](dict.fromkeys((pool.name for pool, _ in self._pools()), 0))
        for kind, count in self._picks.items():
            picks.add_metric(kind, count, exemplar=self._pick_traces.get(kind))
            routed[kind[0]] += count
        for pool, count in routed.items():
            requests.add_metric([pool, "routed"], count)
        for outcome, count in self._answers.items():
            requests.add_metric(outcome, count, exemplar=self._answer_traces.get(outcome))
        streams = GaugeMetricFamily(
            "extproc_streams_open", "ext_proc streams open: requests in flight.", value=self.streams_open
        )
        yield from (requests, picks, streams, self._pick_duration())

    def _expect(self) -> None:
        """Counts nothing of everything that may come: `increase()` does not see a series' first value."""
        for pool, source in self._pools():
            for reason in pool.strategy.reasons:
                self._picks.setdefault((pool.name, pool.strategy.name, reason), 0)
            for outcome in POOL_OUTCOMES:
                self._answers.setdefault((pool.name, outcome), 0)
            self._served_elsewhere.labels(pool.name)
            for why in (*RESTARTS[source], "internal"):
                self.watch_restarts.labels(pool.name, why)
            if source == "inference_pool" and pool.max_in_flight is not None:
                for why in (*_WATCHES, "internal"):
                    self.objectives_restarts.labels(pool.name, why)
        for outcome in OUTCOMES:
            self._answers.setdefault(("", outcome), 0)

    def _pick_duration(self) -> Metric:
        return HistogramMetricFamily(
            "extproc_pick_duration_seconds",
            "From a request's last message read to its answer ready.",
            buckets=buckets(_PICK_BUCKETS, self._pick_counts, self._slow_traces),
            sum_value=self._pick_sum_s,
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"extproc_{name}_total", text, labels, registry=self.registry)


def exemplar(trace_id: str, value: float) -> Exemplar:
    """A request that a series counted, by its trace; OpenMetrics shows it, Prometheus' text does not."""
    return Exemplar({"trace_id": trace_id}, value)


def buckets(bounds: Iterable[float], counts: Iterable[int], traces: Mapping[int, Exemplar]) -> Buckets:
    """A histogram's buckets as the library wants them; `counts` has one more, without a bound."""
    names = [*map(floatToGoString, bounds), "+Inf"]
    told = zip(names, accumulate(counts), strict=True)
    return [(*each, traces[place]) if place in traces else each for place, each in enumerate(told)]


class PoolCollector(Collector):
    """Reads the pools when it is scraped, so that a request pays nothing for its gauges.

    `ages` tells every pool and the age of its list in seconds, `None` before the first list; `faults`
    the pools whose sources fail now, with a word for why; `objectives` the pools whose objectives are
    followed, and the age of what is known of them.
    """

    def __init__(
        self,
        ages: Callable[[], Iterable[tuple[Pool, float | None]]],
        faults: Callable[[], Iterable[tuple[str, str]]] = tuple,
        objectives: Callable[[], Iterable[tuple[str, float]]] = tuple,
    ) -> None:
        self._ages = ages
        self._faults = faults
        self._objectives = objectives

    def collect(self) -> Iterator[Metric]:
        in_flight = GaugeMetricFamily(
            "extproc_endpoint_in_flight", "Requests in flight.", labels=["pool", "endpoint"]
        )
        endpoints = GaugeMetricFamily(
            "extproc_pool_endpoints", "Endpoints by state.", labels=["pool", "state"]
        )
        age = GaugeMetricFamily(
            "extproc_pool_age_seconds", "Since the source last confirmed the list.", labels=["pool"]
        )
        held = GaugeMetricFamily(
            "extproc_held_requests", "Requests that wait for the pool to have room.", labels=["pool"]
        )
        stays = HistogramMetricFamily(
            "extproc_held_seconds", "How long requests were held, by how that ended.", labels=["pool", "end"]
        )
        for pool, age_s in self._ages():
            if pool.queue is not None:
                held.add_metric([pool.name], len(pool.queue))
                for end, stay in pool.queue.stays.items():
                    stays.add_metric([pool.name, end], buckets(STAY_BUCKETS, stay.counts, {}), stay.sum_s)
            for name, count in pool.book.ours().items():
                in_flight.add_metric([pool.name, name], count)
            left_out = Counts(pool.left_out().values())
            for state in ("cooling", "busy", "unhealthy"):
                endpoints.add_metric([pool.name, state], left_out[state])
            endpoints.add_metric([pool.name, "ready"], len(pool.snapshot.names) - left_out.total())
            endpoints.add_metric([pool.name, "draining"], len(pool.snapshot.draining))
            if age_s is not None:
                age.add_metric([pool.name], age_s)
        yield from (
            in_flight,
            endpoints,
            age,
            held,
            stays,
            self._collect_faults(),
            self._collect_objectives(),
        )

    def _collect_faults(self) -> Metric:
        fault = GaugeMetricFamily(
            "extproc_pool_fault", "1 while a pool's source has no good list to tell.", labels=["pool", "why"]
        )
        for pool, why in self._faults():
            fault.add_metric([pool, why], 1)
        return fault

    def _collect_objectives(self) -> Metric:
        age = GaugeMetricFamily(
            "extproc_objectives_age_seconds",
            "Since the API server last confirmed a pool's objectives.",
            labels=["pool"],
        )
        for pool, age_s in self._objectives():
            age.add_metric([pool], age_s)
        return age


class RateLimit(logging.Filter):
    """Lets a message through a few times at once, then once a second, however often it is said.

    Messages are told apart by their text before its arguments: a flood of refusals is one message, whatever
    each of them quotes. How many were left out is told with the next one. DEBUG says all it is asked to.
    """

    def __init__(self, clock: Callable[[], float], *, burst: int = 10, kinds: int = 256) -> None:
        super().__init__()
        self._clock = clock
        self._burst = burst
        self._kinds = kinds
        self._known: dict[tuple[str, int, str], _Allowance] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        kind, now_s = (record.name, record.levelno, str(record.msg)), self._clock()
        # The longest unheard goes first: a text that is never the same twice takes no memory for good.
        known = self._known.pop(kind, None) or _Allowance(self._burst, now_s)
        self._known[kind] = known
        if len(self._known) > self._kinds:
            del self._known[next(iter(self._known))]
        return known.takes(record, now_s, self._burst)


@dataclass(slots=True)
class _Allowance:
    """How often one kind of message may be said now, and how often it was not."""

    left: float
    seen_s: float
    unsaid: int = 0

    def takes(self, record: logging.LogRecord, now_s: float, burst: int) -> bool:
        self.left = min(burst, self.left + now_s - self.seen_s)
        self.seen_s = now_s
        if self.left < 1:
            self.unsaid += 1
            return False
        self.left -= 1
        record.unsaid, self.unsaid = self.unsaid, 0
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per line. JSON escapes whatever could break a line or a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if unsaid := getattr(record, "unsaid", 0):
            line["unsaid"] = unsaid  # of the same kind, since the last one
        if record.exc_info and record.exc_info[0]:
            # The type only: an exception's text may hold pieces of a prompt.
            line["exception"] = record.exc_info[0].__name__
        return json.dumps(line)


def configure_logging(level: str, stream: TextIO, clock: Callable[[], float] = monotonic) -> None:
    """Sends this package's logs to `stream`; leaves every other logger alone but for warnings."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(RateLimit(clock))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("extproc").setLevel(level)
