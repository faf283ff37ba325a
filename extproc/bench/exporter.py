"""A run as Prometheus metrics while it goes."""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from extproc.bench.result import Snapshot

_TTFT_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 25, 50, 100)
_LAG_BUCKETS_S = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1)


class Exporter:
    """Implements `Progress` by keeping metrics up to date in a registry of its own."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sent = Gauge("extproc_bench_sent", "Requests sent so far", registry=registry)
        self._finished = Gauge(
            "extproc_bench_finished", "Requests ended so far, well or not", registry=registry
        )
        self._in_flight = Gauge("extproc_bench_in_flight", "Requests sent and not ended", registry=registry)
        self._failures = Gauge(
            "extproc_bench_failures", "Requests failed so far", ["kind"], registry=registry
        )
        self._ttft = Histogram(
            "extproc_bench_ttft_seconds",
            "Time to first token from the intended start",
            buckets=_TTFT_BUCKETS_S,
            registry=registry,
        )
        self._lag = Histogram(
            "extproc_bench_lag_seconds", "How late the client was", buckets=_LAG_BUCKETS_S, registry=registry
        )
        self._updates = Counter(
            "extproc_bench_updates", "Times the run reported its state", registry=registry
        )

    def update(self, snapshot: Snapshot) -> None:
        self._sent.set(snapshot.sent)
        self._finished.set(snapshot.finished)
        self._in_flight.set(snapshot.in_flight)
        for kind, count in snapshot.failures.items():
            self._failures.labels(kind).set(count)
        for ttft_s in snapshot.ttft_s:
            self._ttft.observe(ttft_s)
        for lag_s in snapshot.lag_s:
            self._lag.observe(lag_s)
        self._updates.inc()


@contextmanager
def serving(port: int, address: str = "0.0.0.0") -> Iterator[tuple[Exporter, int]]:
    """Serves `/metrics` for as long as the context lasts; yields the exporter and the port in use."""
    registry = CollectorRegistry()
    server, thread = start_http_server(port, address, registry)
    try:
        yield Exporter(registry), server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
