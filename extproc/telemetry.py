"""Metrics and logs: what operators see. Nothing a client chose becomes a label or is logged."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Final, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc import __version__
from extproc.routing.picker import Decision
from extproc.routing.pool import Pool

# Seconds. A pick is tens of microseconds; a slow one is a large body.
_PICK_BUCKETS: Final = (5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)


class Metrics:
    """Every metric of the service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._pick_counters: dict[tuple[str, str, str], tuple[Counter, Counter]] = {}
        self.requests = self._counter("requests", "Requests by what became of them.", "pool", "outcome")
        self.picks = self._counter(
            "picks", "Picks by why the endpoint was chosen.", "pool", "strategy", "reason"
        )
        self.served_elsewhere = self._counter(
            "picks_served_elsewhere", "Picks that another endpoint answered, as the gateway told.", "pool"
        )
        self.prompt_errors = self._counter(
            "prompt_errors", "Requests routed without their body, which could not be read.", "why"
        )
        self.stream_errors = self._counter("stream_errors", "Streams that ended with a fault.", "why")
        self.watch_restarts = self._counter("watch_restarts", "Lost or refused watches of a source.", "why")
        self.reloads = self._counter("config_reloads", "Attempts to load a changed configuration.", "result")
        self.xds_nacks = self._counter("xds_nacks", "Configurations that an Envoy refused.", "type")
        self.streams_open = Gauge(
            "extproc_streams_open", "ext_proc streams open: requests in flight.", registry=self.registry
        )
        self.pick_duration = Histogram(
            "extproc_pick_duration_seconds",
            "From a request's last message read to its answer ready.",
            buckets=_PICK_BUCKETS,
            registry=self.registry,
        )
        Info("extproc", "The running service.", registry=self.registry).info({"version": __version__})

    def count_decision(self, decision: Decision, elapsed_s: float) -> None:
        pick = decision.pick
        for counter in self._of_pick(pick.pool.name, pick.strategy, pick.reason.value):
            counter.inc()
        self.pick_duration.observe(elapsed_s)
        if decision.fault is not None:
            self.prompt_errors.labels(type(decision.fault).__name__).inc()

    def _of_pick(self, pool: str, strategy: str, reason: str) -> tuple[Counter, Counter]:
        """The counters of one kind of pick, looked up once: a look-up costs more than the counting."""
        kind = (pool, strategy, reason)
        if kind not in self._pick_counters:
            self._pick_counters[kind] = (self.requests.labels(pool, "routed"), self.picks.labels(*kind))
        return self._pick_counters[kind]

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"extproc_{name}_total", text, labels, registry=self.registry)


class PoolCollector(Collector):
    """Reads the pools when it is scraped, so that a request pays nothing for its gauges.

    `ages` tells every pool and the age of its list in seconds, `None` before the first list.
    """

    def __init__(self, ages: Callable[[], Iterable[tuple[Pool, float | None]]]) -> None:
        self._ages = ages

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
        for pool, age_s in self._ages():
            for name, count in pool.book.counts().items():
                in_flight.add_metric([pool.name, name], count)
            endpoints.add_metric([pool.name, "ready"], len(pool.snapshot.names))
            endpoints.add_metric([pool.name, "draining"], len(pool.snapshot.draining))
            if age_s is not None:
                age.add_metric([pool.name], age_s)
        yield from (in_flight, endpoints, age)


class JsonFormatter(logging.Formatter):
    """One JSON object per line. JSON escapes whatever could break a line or a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": time,
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0]:
            # The type only: an exception's text may hold pieces of a prompt.
            line["exception"] = record.exc_info[0].__name__
        return json.dumps(line)


def configure_logging(level: str, stream: TextIO) -> None:
    """Sends this package's logs to `stream`; leaves every other logger alone but for warnings."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("extproc").setLevel(level)
