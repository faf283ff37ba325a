"""The endpoints while a run goes: how many are ready, by the router, and what their own `/metrics` say."""

import asyncio
import time
from collections.abc import Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

import aiohttp

from extproc.bench.record import CacheCounters, Clock, FleetSample
from extproc.bench.spec.tree import Watching

# The names of vLLM 0.32, and those of its earlier versions.
_QUERIES = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
_HITS = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV_USE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_TIMEOUT_S = 5.0


def read_samples(text: str, names: Container[str]) -> dict[str, list[float]]:
    """Returns the values of the metrics of those names, one per engine; what is no number is left out."""
    found: dict[str, list[float]] = {}
    for line in text.splitlines():
        name, _, rest = line.partition("{" if "{" in line.split(" ", 1)[0] else " ")
        if name in names:
            # A label's value may hold spaces.
            with suppress(ValueError, IndexError):
                value = float(rest.rpartition("}")[2].split()[0])
                found.setdefault(name, []).append(value)
    return found


def read_cache_counters(text: str) -> CacheCounters | None:
    """Sums an exposition's counters over engines; `None` if it has none."""
    found = read_samples(text, {*_QUERIES, *_HITS})
    queries, hits = (
        [value for name in names for value in found.get(name, ())] for names in (_QUERIES, _HITS)
    )
    return CacheCounters(sum(queries), sum(hits)) if queries else None


async def scrape(endpoints: Iterable[str]) -> list[CacheCounters | None]:
    """Asks every endpoint (`ip:port` or a URL) at once; `None` for one that does not answer."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S)) as session:
        texts = await asyncio.gather(*(fetch_metrics(session, endpoint) for endpoint in endpoints))
    return [None if text is None else read_cache_counters(text) for text in texts]


async def fetch_metrics(session: aiohttp.ClientSession, endpoint: str) -> str | None:
    """Returns what an endpoint (`ip:port` or a URL) says at `/metrics`; `None` if it does not answer."""
    base = endpoint if "://" in endpoint else f"http://{endpoint}"
    try:
        async with session.get(f"{base.rstrip('/')}/metrics") as response:
            return await response.text() if response.status == 200 else None
    except (aiohttp.ClientError, TimeoutError, UnicodeDecodeError):
        return None


def read_gauges(text: str) -> tuple[float | None, float | None, float | None]:
    """Reads one endpoint's requests running and waiting, summed over its engines, and their mean KV use."""
    found = read_samples(text, {_RUNNING, _WAITING, *_KV_USE})
    kv = next((found[name] for name in _KV_USE if name in found), None)
    running, waiting = (
        sum(found[name]) if name in found else None for name in (_RUNNING, _WAITING)
    )
    return running, waiting, sum(kv) / len(kv) if kv else None


def add_up(at_s: float, ready: int, texts: Iterable[str | None]) -> FleetSample:
    """One look at all endpoints; those that said nothing are left out."""
    gauges = [read_gauges(text) for text in texts if text is not None]
    running, waiting, kv = ([each[i] for each in gauges if (each[i]) is not None] for i in range(3))
    sums = [sum(filter(None, values)) if values else None for values in (running, waiting, kv)]
    return FleetSample(
        at_s, ready, sums[0], sums[1], None if sums[2] is None else sums[2] / len(kv)
    )


class FleetWatch:
    """Samples while it runs; times are the clock's, to be put on the run's when it is known."""

    def __init__(
        self, watching: Watching, endpoints: Sequence[str], clock: Clock = time.monotonic
    ) -> None:
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
        placed = [replace(sample, at_s=sample.at_s - start_s) for sample in self._samples]
        early = [replace(sample, at_s=0.0) for sample in placed if sample.at_s <= 0.0]
        return (*early[-1:], *(sample for sample in placed if sample.at_s > 0.0))

    async def _look(self, http: aiohttp.ClientSession) -> FleetSample:
        at_s, listed = self._clock(), await self._list_ready(http)
        texts = await asyncio.gather(*(fetch_metrics(http, endpoint) for endpoint in listed))
        # Without a router those that answer are ready.
        ready = len(listed) if self._watching.admin else sum(text is not None for text in texts)
        return add_up(at_s, ready, texts)

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
            each["address"]
            for pool in named[:1]
            for each in pool["endpoints"]
            if each["state"] == "ready"
        ]
