"""The gauges of the running pools, read when somebody scrapes."""

from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Mapping
from math import nan
from statistics import fmean
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from extproc.router.service.running_pool import RunningPool
from extproc.router.telemetry import buckets, counters, gauges, histograms

# An engine is full where so many requests wait, or so much of its cache is in use (llm-d's
# defaults).
_FULL_WAITING: Final = 5
_FULL_USAGE: Final = 0.8


class PoolCollector(Collector):
    """Reads the running pools when it is scraped, so that a request pays nothing for their gauges."""

    def __init__(self, pools: Iterable[RunningPool]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        in_flight = gauges("extproc_endpoint_in_flight", "Requests in flight.", "pool", "endpoint")
        endpoints = gauges("extproc_pool_endpoints", "Endpoints by state.", "pool", "state")
        age = gauges(
            "extproc_pool_age_seconds", "Since the source last confirmed the list.", "pool"
        )
        fault = gauges(
            "extproc_pool_fault", "1 while a pool's source has no good list.", "pool", "why"
        )
        objectives = gauges(
            "extproc_objectives_age_seconds", "Since objectives were last confirmed.", "pool"
        )
        recorded = counters(
            "extproc_record_rows", "Rows of a trace, in its file or in none.", "pool", "result"
        )
        for running in self._pools:
            pool, name = running.pool, running.name
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
            for result, count in running.trace_file.rows.items() if running.trace_file else ():
                recorded.add_metric([name, result], count)
        yield from (in_flight, endpoints, age, fault, objectives, recorded)
        yield from _collect_saturations(self._pools)
        yield from _collect_queues(self._pools)
        yield from _collect_events(self._pools)
        yield from _collect_forecasts(self._pools)


def _collect_saturations(pools: Iterable[RunningPool]) -> Iterable[Metric]:
    full = gauges(
        "extproc_pool_saturation",
        "How full the pool is; 1: full, or no endpoint. With a stage: that alone.",
        "pool",
        "stage",
    )
    saturations = measure_saturations(pools)
    for running in pools:
        name, stage = running.name, ["prefill"] if running.settings.only_prefills else []
        if name in saturations:
            full.add_metric([name, *stage], saturations[name])
        own = None if running.pool.prefill is None else _measure(running)
        if own is not None:
            full.add_metric([name, "decode"], own)
    return (full,)


def _collect_forecasts(pools: Iterable[RunningPool]) -> Iterable[Metric]:
    """Of pools with a `shadow`; no number before there is something to say."""
    hits = gauges(
        "extproc_shadow_hit_rate",
        "Share of prompt tokens found in caches, by two pictures.",
        "pool",
        "picture",
    )
    engines = gauges(
        "extproc_shadow_prefill_engines",
        "Prefill, in engines' time, by two pictures.",
        "pool",
        "picture",
    )
    verdicts = gauges("extproc_shadow_verdict", "1: what is foretold.", "pool", "verdict")
    for running in pools:
        told = running.foretell()
        if told is None:
            continue
        verdicts.add_metric([running.name, told.verdict], 1)
        for name, figures in (("served", told.as_served), ("picked", told.as_picked)):
            hit_rate, busy = (
                (nan, nan) if figures is None else (figures.hit_rate.value, figures.engines.value)
            )
            hits.add_metric([running.name, name], hit_rate)
            engines.add_metric([running.name, name], busy)
    return hits, engines, verdicts


def _collect_queues(pools: Iterable[RunningPool]) -> Iterable[Metric]:
    waiting = gauges(
        "extproc_held_requests", "Requests that wait for the pool to have room.", "pool"
    )
    stays = histograms("extproc_held_seconds", "How long requests were held.", "pool", "end")
    for running in pools:
        queue = running.pool.queue
        if queue is not None:
            waiting.add_metric([running.name], len(queue))
            for end, stay in queue.stays.items():
                stays.add_metric([running.name, end], buckets(stay), stay.sum_s)
    return waiting, stays


def _collect_events(pools: Iterable[RunningPool]) -> Iterable[Metric]:
    heard = gauges(
        "extproc_kv_events",
        "1: how an endpoint's KV events come.",
        "pool",
        "endpoint",
        "state",
        "why",
    )
    cached = gauges(
        "extproc_kv_cached_tokens", "In its cache, by its KV events.", "pool", "endpoint"
    )
    blocks = counters(
        "extproc_kv_blocks", "Cache blocks by its KV events.", "pool", "endpoint", "change"
    )
    emptied = counters(
        "extproc_kv_emptied", "How often its cache was, by its KV events.", "pool", "endpoint"
    )
    for running in pools:
        for endpoint, said in running.describe_events().items():
            heard.add_metric([running.name, endpoint, said["state"], said["why"]], 1)
            for change in ("stored", "removed"):
                blocks.add_metric([running.name, endpoint, change], said[change])
            emptied.add_metric([running.name, endpoint], said["emptied"])
            if said["cached_tokens"] is not None:
                cached.add_metric([running.name, endpoint], said["cached_tokens"])
    return heard, cached, blocks, emptied


def measure_saturations(pools: Iterable[RunningPool]) -> Mapping[str, float]:
    """How full pools are, by name; one with prefill endpoints is as full as the fuller of its stages."""
    found = {each.name: full for each in pools if (full := _measure(each)) is not None}
    for each in pools:
        stage = each.pool.prefill
        # Without any it is no fuller: each endpoint computes its own prompts.
        if stage is not None and stage.pool.candidates():
            both = [found[name] for name in (each.name, stage.pool.name) if name in found]
            found.update({each.name: max(both)} if both else {})
    return found


def _measure(running: RunningPool) -> float | None:
    """How full a pool is by itself, 1 at most: in flight over `max_in_flight`; without that what its engines say.

    `None`: nobody says anything. A pool without an endpoint is full.
    """
    candidates, each = running.pool.candidates(), running.pool.max_in_flight
    if not candidates:
        return 1.0
    if each is not None:
        return min(1.0, candidates.total / (each * len(candidates)))
    signals = [running.feedback.signals.get(name) for name in candidates.names]
    parts = [
        max(one.waiting / _FULL_WAITING, one.kv_usage / _FULL_USAGE)
        for one in signals
        if one is not None
    ]
    return min(1.0, fmean(parts)) if parts else None


def collect_llmd(pools: Iterable[RunningPool]) -> Iterable[Metric]:
    """The same by the names that llm-d's dashboards and autoscalers read, the older ones, too."""
    families, saturations = dict[str, Metric](), measure_saturations(pools)
    for running in pools:
        for name, labels, value in _llmd_samples(running, saturations.get(running.name)):
            family = families.setdefault(name, Metric(name, "As llm-d's router names it.", "gauge"))
            family.add_sample(name, labels, value)
    return families.values()


def _llmd_samples(
    running: RunningPool, saturation: float | None
) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yields family, labels and value. No label is a client's word: a fairness id stays empty."""
    pool, signals = running.pool, running.feedback.signals.values()
    name, inference_pool = {"name": pool.name}, {"inference_pool": pool.name}
    model = {"model_name": min(running.route(running.settings).names(), default="")}
    waiting = {0: 0} | Counts(waiter.lane.priority for waiter in pool.queue or ())
    for family in ("llm_d_epp_flow_control", "inference_extension_flow_control"):
        if saturation is not None:
            yield f"{family}_pool_saturation", inference_pool, saturation
        for priority, count in waiting.items():
            labels = {**inference_pool, **model, "priority": str(priority), "fairness_id": ""}
            yield f"{family}_queue_size", labels, count
    for family, ready in (("llm_d_epp", "ready_endpoints"), ("inference_pool", "ready_pods")):
        yield f"{family}_{ready}", name, len(pool.snapshot.names)
        if signals:
            yield (
                f"{family}_average_kv_cache_utilization",
                name,
                fmean(one.kv_usage for one in signals),
            )
            yield f"{family}_average_queue_size", name, fmean(one.waiting for one in signals)
    yield "llm_d_epp_request_running", model, sum(pool.book.ours().values())
