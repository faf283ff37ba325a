"""The gauges of the running pools, read when somebody scrapes."""

from collections import Counter as Counts
from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from extproc.router.service.running_pool import RunningPool
from extproc.router.telemetry import buckets, gauges, histograms


class PoolCollector(Collector):
    """Reads the running pools when it is scraped, so that a request pays nothing for their gauges."""

    def __init__(self, pools: Iterable[RunningPool]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        in_flight = gauges("extproc_endpoint_in_flight", "Requests in flight.", "pool", "endpoint")
        endpoints = gauges("extproc_pool_endpoints", "Endpoints by state.", "pool", "state")
        age = gauges("extproc_pool_age_seconds", "Since the source last confirmed the list.", "pool")
        held = gauges("extproc_held_requests", "Requests that wait for the pool to have room.", "pool")
        stays = histograms(
            "extproc_held_seconds", "How long requests were held, by how that ended.", "pool", "end"
        )
        fault = gauges(
            "extproc_pool_fault", "1 while a pool's source has no good list to tell.", "pool", "why"
        )
        objectives = gauges(
            "extproc_objectives_age_seconds",
            "Since the API server last confirmed a pool's objectives.",
            "pool",
        )
        for running in self._pools:
            pool, name = running.pool, running.name
            if pool.queue is not None:
                held.add_metric([name], len(pool.queue))
                for end, stay in pool.queue.stays.items():
                    stays.add_metric([name, end], buckets(stay), stay.sum_s)
            for endpoint, count in pool.book.ours().items():
                in_flight.add_metric([name, endpoint], count)
            states = Counts(state for _, state in pool.states())
            for state in ("ready", "unknown", "cooling", "busy", "unhealthy", "draining"):
                endpoints.add_metric([name, state], states[state])
            if running.keeper.age_s is not None:
                age.add_metric([name], running.keeper.age_s)
            if running.keeper.fault is not None:
                fault.add_metric([name, running.keeper.fault.why], 1)
            if running.objectives.age_s is not None:
                objectives.add_metric([name], running.objectives.age_s)
        yield from (in_flight, endpoints, age, held, stays, fault, objectives)
