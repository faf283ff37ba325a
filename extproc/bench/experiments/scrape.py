"""Prefix-cache counters from the endpoints' own `/metrics`."""

import asyncio
from collections.abc import Iterable, Sequence

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from extproc.bench.record import CacheCounters, EndpointScrape

# The names of vLLM 0.32, and those of its earlier versions.
_QUERIES = frozenset({"vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"})
_HITS = frozenset({"vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"})
_TIMEOUT_S = 5.0


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
