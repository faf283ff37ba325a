"""The metrics that every request counts. Nothing a client chose becomes a label."""

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from extproc import __version__
from extproc.errors import PromptError
from extproc.router.histogram import Histogram
from extproc.router.routing.picker import Decision
from extproc.router.routing.pool import Pool

# Seconds. A pick is tens of microseconds; a slow one is a large body.
_PICK_BUCKETS: Final = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)


# The values that labels may have; docs/how-to/monitoring.md says what each means.
RELOADS: Final = ("applied", "refused")
STREAM_FAULTS: Final = ("protocol", "internal", "unready")
LOG_FAULTS: Final = ("unreadable", "too_large")
SPAN_RESULTS: Final = ("sent", "refused", "dropped")
XDS_TYPES: Final = ("Cluster", "ClusterLoadAssignment")
_WATCHES: Final = (
    *("closed", "connection", "credentials", "expired", "forbidden", "garbled", "not_found"),
    *("server_error", "silent", "stalled", "throttled", "unauthorized"),
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
# Outcomes of requests that a pool answers itself, and of those answered before a pool is found.
POOL_OUTCOMES: Final = ("no_endpoint", "over_share", "overloaded", "shed_cold", "sheddable")
OUTCOMES: Final = (
    "bad_request",
    "body_too_large",
    "model_not_found",
    "models",
    "no_endpoint",
    "no_room",
)


class _Registry(CollectorRegistry):
    """Without `_created` series: they would double the number, and nobody reads them."""

    def collect(self) -> Iterator[Metric]:
        for family in super().collect():
            family.samples = [
                sample for sample in family.samples if not sample.name.endswith("_created")
            ]
            yield family


def prompt_error_whys(kind: type[PromptError]) -> Iterator[str]:
    yield kind.why
    for below in kind.__subclasses__():
        yield from prompt_error_whys(below)


class Metrics(Collector):
    """Every metric of the service, in a registry of its own; the observer of the streams.

    What is counted for each request is counted in plain integers, and read when it is scraped: a
    counter of the library takes a lock and costs as much as a pick.
    """

    def __init__(self) -> None:
        self.registry = _Registry()
        # Before the others: `collect` adds the labels of new pools to their counters.
        self.registry.register(self)
        self._pools: Callable[[], Iterable[tuple[Pool, str]]] = tuple
        self._picks: dict[tuple[str, str, str], int] = {}
        self._answers: dict[tuple[str, str], int] = {}
        self._pick_seconds = Histogram(_PICK_BUCKETS)
        self.streams_open = Gauge(
            "extproc_streams_open", "Open ext_proc streams.", registry=self.registry
        )
        self._served_elsewhere = self._counter(
            "picks_served_elsewhere", "Picks answered elsewhere.", "pool"
        )
        self._prompt_errors = self._counter(
            "prompt_errors", "Requests whose body could not be read.", "why"
        )
        self._stream_errors = self._counter(
            "stream_errors", "Streams that ended with a fault.", "why"
        )
        self.watch_restarts = self._counter(
            "watch_restarts", "Lost watches of a source.", "pool", "why"
        )
        self.objectives_restarts = self._counter(
            "objectives_watch_restarts",
            "Lost or refused watches of a pool's objectives.",
            "pool",
            "why",
        )
        self._reloads = self._counter(
            "config_reloads", "Attempts to load a changed configuration.", "result"
        )
        self._config_refused = Gauge(
            "extproc_config_refused",
            "1 while the configuration is not the file's.",
            registry=self.registry,
        )
        self.access_log_faults = self._counter(
            "access_log_faults", "Unusable messages of access logs.", "why"
        )
        self._spans = self._counter("spans", "Spans by what became of them.", "result")
        self.xds_nacks = self._counter("xds_nacks", "Configurations that an Envoy refused.", "type")
        Info("extproc", "The running service.", registry=self.registry).info(
            {"version": __version__}
        )
        ProcessCollector(registry=self.registry)
        for counter, values in (
            (self._prompt_errors, sorted(prompt_error_whys(PromptError))),
            (self._stream_errors, STREAM_FAULTS),
            (self._reloads, RELOADS),
            (self.access_log_faults, LOG_FAULTS),
            (self.xds_nacks, XDS_TYPES),
            (self._spans, SPAN_RESULTS),
        ):
            for value in values:
                counter.labels(value)

    def watch(self, pools: Callable[[], Iterable[tuple[Pool, str]]]) -> None:
        """Takes the pools and their sources' kinds, so that their series begin at zero."""
        self._pools = pools

    def routed(self, decision: Decision, elapsed_s: float) -> None:
        pick = decision.pick
        kind = (pick.pool.name, pick.strategy, pick.reason)
        self._picks[kind] = self._picks.get(kind, 0) + 1
        self._pick_seconds.count(elapsed_s)
        if decision.fault is not None:
            self._prompt_errors.labels(decision.fault.why).inc()

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
        picks = counters("extproc_picks", "Picks by reason.", "pool", "strategy", "reason")
        requests = counters(
            "extproc_requests", "Requests by what became of them.", "pool", "outcome"
        )
        routed = Counts[str](dict.fromkeys((pool.name for pool, _ in self._pools()), 0))
        for kind, count in self._picks.items():
            picks.add_metric(kind, count)
            routed[kind[0]] += count
        for pool, count in routed.items():
            requests.add_metric([pool, "routed"], count)
        for outcome, count in self._answers.items():
            requests.add_metric(outcome, count)
        took = HistogramMetricFamily(
            "extproc_pick_duration_seconds",
            "From a request's last message read to its answer ready.",
            buckets=buckets(self._pick_seconds),
            sum_value=self._pick_seconds.sum_s,
        )
        yield from (requests, picks, took)

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

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"extproc_{name}_total", text, labels, registry=self.registry)


# Families that a collector fills.


def counters(name: str, text: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, labels=labels)


def gauges(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def histograms(name: str, text: str, *labels: str) -> HistogramMetricFamily:
    return HistogramMetricFamily(name, text, labels=labels)


def summaries(name: str, text: str, *labels: str) -> SummaryMetricFamily:
    return SummaryMetricFamily(name, text, labels=labels)


def buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """A histogram's buckets as the library wants them."""
    names = [*map(floatToGoString, histogram.bounds), "+Inf"]
    return [*zip(names, accumulate(histogram.counts), strict=True)]
