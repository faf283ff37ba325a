"""The endpoints while a run goes: who is ready, by the router, and what their own `/metrics` say."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from extproc.bench.record import CacheCounters, Clock, EndpointScrape, FleetSample
from extproc.bench.spec.tree import Spec, Watching

# The names of vLLM 0.32, and those of its earlier versions.
_QUERIES = frozenset({"vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"})
_HITS = frozenset({"vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"})


def read_cache_counters(text: str) -> CacheCounters | None:
    """Sums an exposition's counters over engines; `None` if it has none or is not an exposition."""
    queries = hits = 0.0
    is_found = False
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                is_found |= sample.name in _QUERIES
                queries += sample.value if sample.name in _QUERIES else 0.0
                hits += sample.value if sample.name in _HITS else 0.0
    except ValueError:
        return None
    return CacheCounters(queries, hits) if is_found else None


async def scrape(endpoints: Iterable[str]) -> list[CacheCounters | None]:
    """Asks every endpoint (`ip:port` or a URL) at once; `None` for one that does not answer."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
        return await asyncio.gather(*(_scrape(session, endpoint) for endpoint in endpoints))


def pair(
    endpoints: Sequence[str], before: Sequence[CacheCounters | None], after: Sequence[CacheCounters | None]
) -> tuple[EndpointScrape, ...]:
    return tuple(map(EndpointScrape, endpoints, before, after))


async def _scrape(session: aiohttp.ClientSession, endpoint: str) -> CacheCounters | None:
    text = await fetch_metrics(session, endpoint)
    return None if text is None else read_cache_counters(text)


async def fetch_metrics(session: aiohttp.ClientSession, endpoint: str) -> str | None:
    """Returns what an endpoint (`ip:port` or a URL) says at `/metrics`; `None` if it does not answer."""
    base = endpoint if "://" in endpoint else f"http://{endpoint}"
    try:
        async with session.get(f"{base.rstrip('/')}/metrics") as response:
            return await response.text() if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
        return None


# The names of vLLM 0.32, and the one that it had before.
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Gauges:
    """What one endpoint says: requests running and waiting, the share of its KV cache in use."""

    running: float | None
    waiting: float | None
    kv_use: float | None


def read_gauges(text: str) -> Gauges:
    """Reads an exposition; engines of one endpoint are added up, of their KV caches the mean is told."""
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        name, _, rest = line.partition("{" if "{" in line.split(" ", 1)[0] else " ")
        if name in {_RUNNING, _WAITING, *_KV_USE}:
            found.setdefault(name, []).append(_value(rest))
    kv = next((found[name] for name in _KV_USE if name in found), None)
    return Gauges(_sum(found.get(_RUNNING)), _sum(found.get(_WAITING)), sum(kv) / len(kv) if kv else None)


def _value(rest: str) -> float:
    """The number after the labels; a label's value may hold spaces."""
    try:
        return float(rest.rpartition("}")[2].split()[0])
    except (ValueError, IndexError):
        return 0.0


def _sum(values: Sequence[float] | None) -> float | None:
    return None if values is None else sum(values)


def add_up(at_s: float, ready: int, gauges: Iterable[Gauges | None]) -> FleetSample:
    """One look at all endpoints; those that said nothing are left out."""
    told = [each for each in gauges if each is not None]
    kv = [each.kv_use for each in told if each.kv_use is not None]
    return FleetSample(
        at_s,
        ready,
        _sum([each.running for each in told if each.running is not None] or None),
        _sum([each.waiting for each in told if each.waiting is not None] or None),
        sum(kv) / len(kv) if kv else None,
    )


class FleetWatch:
    """Samples while it runs; times are the clock's, to be put on the run's when it is known."""

    def __init__(self, watching: Watching, endpoints: Sequence[str], clock: Clock = time.monotonic) -> None:
        self._watching, self._endpoints, self._clock = watching, endpoints, clock
        self._samples: list[FleetSample] = []

    async def run(self) -> None:
        """Looks again and again until it is cancelled; an endpoint or router that is away is not an error."""
        timeout = aiohttp.ClientTimeout(total=min(_TIMEOUT_S, self._watching.every))
        async with aiohttp.ClientSession(timeout=timeout) as http:
            due_s = self._clock()
            while True:
                self._samples.append(await self._look(http))
                due_s = max(due_s + self._watching.every, self._clock())
                await asyncio.sleep(due_s - self._clock())

    def samples(self, start_s: float) -> tuple[FleetSample, ...]:
        """What was seen, on a clock that is 0 at `start_s`; the last look before that counts as at 0."""
        placed = [_at(sample, sample.at_s - start_s) for sample in self._samples]
        early = [_at(sample, 0.0) for sample in placed if sample.at_s <= 0.0]
        return (*early[-1:], *(sample for sample in placed if sample.at_s > 0.0))

    async def _look(self, http: aiohttp.ClientSession) -> FleetSample:
        at_s, listed = self._clock(), await self._list_ready(http)
        gauges = await asyncio.gather(*(_ask(http, endpoint) for endpoint in listed))
        # Without a router those that answer are ready.
        ready = len(listed) if self._watching.admin else sum(each is not None for each in gauges)
        return add_up(at_s, ready, gauges)

    async def _list_ready(self, http: aiohttp.ClientSession) -> Sequence[str]:
        if self._watching.admin is None:
            return self._endpoints
        try:
            async with http.get(f"http://{self._watching.admin}/pools") as answer:
                pools = await answer.json()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return ()
        named = [pool for pool in pools if self._watching.pool in {None, pool["name"]}]
        return [
            each["address"] for pool in named[:1] for each in pool["endpoints"] if each["state"] == "ready"
        ]


def _at(sample: FleetSample, at_s: float) -> FleetSample:
    return FleetSample(at_s, sample.ready, sample.running, sample.waiting, sample.kv_use)


async def _ask(http: aiohttp.ClientSession, endpoint: str) -> Gauges | None:
    base = endpoint if "://" in endpoint else f"http://{endpoint}"
    try:
        async with http.get(f"{base.rstrip('/')}/metrics") as answer:
            return read_gauges(await answer.text()) if answer.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
        return None


def build_watch(spec: Spec) -> FleetWatch | None:
    return None if spec.watch is None else FleetWatch(spec.watch, spec.scrape)
