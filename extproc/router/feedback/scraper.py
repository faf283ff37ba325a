"""Reads the endpoints' metrics where a pool's settings want it (`signals`)."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import isfinite
from random import Random
from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from extproc.errors import ProtocolError
from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.feedback.rounds import NO_HEADERS, RoundPlan, Rounds, Sleep
from extproc.router.logs import ONCE_A_MINUTE
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.signals import EndpointSignals

log = logging.getLogger(__name__)

# A server of eight engines has a page of 400 kB.
MAX_PAGE_BYTES: Final = 2_097_152
_OK: Final = 200
_IDLE_S: Final = 15.0
_NOT_SHARED: Final = (
    "pool %s: about %g services route it and share no picks: see docs/how-to/several-replicas.md"
)


@dataclass(frozen=True, slots=True)
class ScrapePlan(RoundPlan):
    timeout_s: float = 2.0
    parallel: int = 8


Fetch = Callable[[str], Awaitable[EndpointSignals | None]]


class Scraper:
    """Scrapes the endpoints of one pool, evenly spread over the interval; the signals go to its feedback.

    `headers` go with every question: the engines' key.
    """

    def __init__(
        self,
        feedback: PoolFeedback,
        plan: ScrapePlan,
        headers: Mapping[str, str] = NO_HEADERS,
        *,
        rng: Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._headers = headers
        self._feedback = feedback
        self._plan = plan
        self._rounds = Rounds(plan, rng, sleep)
        self._silent: frozenset[str] = frozenset()
        self._is_alone = True

    async def run(self) -> None:
        limit = ClientTimeout(total=self._plan.timeout_s)
        # Connections stay open from one time to the next, if the server likes: vLLM closes them
        # after 5 s.
        connector = TCPConnector(limit=0, keepalive_timeout=_IDLE_S + self._plan.interval_s)
        jar = DummyCookieJar()
        async with ClientSession(
            timeout=limit,
            connector=connector,
            cookie_jar=jar,
            auto_decompress=False,
            headers=self._headers,
        ) as session:

            async def fetch(address: str) -> EndpointSignals | None:
                return await fetch_signals(session, f"http://{address}/metrics")

            while True:
                await self.scrape_all(fetch)

    async def scrape_all(self, fetch: Fetch) -> None:
        endpoints = list(self._feedback.pool.snapshot.ready.values())
        self._silent &= {endpoint.name for endpoint in endpoints}
        was_silent = bool(self._silent)
        await self._rounds.go(endpoints, lambda endpoint: self._scrape(fetch, endpoint))
        pool, count, strategy = (
            self._feedback.pool.name,
            len(self._silent),
            self._feedback.pool.strategy.signals,
        )
        if was_silent != bool(count):
            if count:
                first = min(self._silent)
                log.warning("pool %s: %d endpoints give no metrics, %s for one", pool, count, first)
            else:
                log.info("pool %s: every endpoint gives its metrics", pool)
        was_alone, gateways = self._is_alone, 1.0 if strategy is None else strategy.count_gateways()
        self._is_alone = gateways == 1
        if was_alone and not self._is_alone:
            log.warning(_NOT_SHARED, pool, gateways, extra=ONCE_A_MINUTE)

    async def _scrape(self, fetch: Fetch, endpoint: Endpoint) -> None:
        signals = await fetch(endpoint.address)
        self._feedback.apply_signals(endpoint, signals)
        self._silent = self._silent - {endpoint.name} if signals else self._silent | {endpoint.name}


async def fetch_signals(session: ClientSession, url: str) -> EndpointSignals | None:
    """Returns an endpoint's signals; `None` without an answer, or if its page is too long or not vLLM's."""
    try:
        async with session.get(
            url, allow_redirects=False, headers={"accept-encoding": "identity"}
        ) as answer:
            page = bytearray()
            async for piece in answer.content.iter_any():
                page += piece
                if len(page) > MAX_PAGE_BYTES:
                    return None
            return read_signals(bytes(page)) if answer.status == _OK else None
    except (ClientError, OSError, TimeoutError, ProtocolError):
        return None


# Names as of vLLM 0.32; older ones have them, too, but for `kv_cache_size_tokens`.
_RUNNING: Final = b"vllm:num_requests_running"
_WAITING: Final = b"vllm:num_requests_waiting"
_USAGE: Final = b"vllm:kv_cache_usage_perc"
_QUERIED: Final = b"vllm:prefix_cache_queries_total"
_HIT: Final = b"vllm:prefix_cache_hits_total"
_PROMPT: Final = b"vllm:prompt_tokens_total"
_PREFILLS: Final = b"vllm:request_prefill_time_seconds_count"
_PREFILL_S: Final = b"vllm:request_prefill_time_seconds_sum"
_FIRST: Final = tuple(b"vllm:time_to_first_token_seconds_" + end for end in (b"count", b"sum"))
_GENERATED: Final = b"vllm:generation_tokens_total"
_ANSWERS: Final = b"vllm:e2e_request_latency_seconds_count"
_ANSWER_S: Final = b"vllm:e2e_request_latency_seconds_sum"
_CONFIG: Final = b"vllm:cache_config_info"
_STARTED: Final = b"process_start_time_seconds"

_SIZE: Final = re.compile(rb'[{,]kv_cache_size_tokens="(\d{1,12})"')
_BLOCKS: Final = re.compile(rb'[{,]num_gpu_blocks="(\d{1,12})"')
_BLOCK: Final = re.compile(rb'[{,]block_size="(\d{1,6})"')

# Engines of one server, and models of one engine.
_MAX_LINES: Final = 256
# Of all engines of one server: a thousand times what the largest has.
_MOST_KV_TOKENS: Final = 10**10


def read_signals(page: bytes) -> EndpointSignals:
    """Reads vLLM's `/metrics`; raises `ProtocolError` for another page, or for values that are no counts.

    A page is 50 kB and more, of which a dozen families matter; a parser of everything would take
    fifty times as long. Engines of one server (data parallel) are added up.
    """
    total = partial(_sum, page)
    running = total(_RUNNING)
    if running is None:
        raise ProtocolError("no metrics of vLLM")
    waiting, usage = total(_WAITING), [*map(_number, _lines(page, _USAGE))]
    queried, hit, prompt = map(total, (_QUERIED, _HIT, _PROMPT))
    prefills, prefill_s, started_s = map(total, (_PREFILLS, _PREFILL_S, _STARTED))
    first_tokens, first_token_s, answers, answer_s = map(total, (*_FIRST, _ANSWERS, _ANSWER_S))
    config = _lines(page, _CONFIG)
    kv_tokens = sum(map(_kv_tokens, config))
    if kv_tokens > _MOST_KV_TOKENS:
        raise ProtocolError("a cache of more tokens than any engine has")
    return EndpointSignals(
        running,
        waiting or 0.0,
        kv_tokens or None,
        queried or 0.0,
        hit or 0.0,
        prompt or 0.0,
        prefills or 0.0,
        prefill_s or 0.0,
        started_s or 0.0,
        max((int(block[1]) for line in config if (block := _BLOCK.search(line))), default=0),
        answers or 0.0,
        answer_s or 0.0,
        sum(usage) / (len(usage) or 1),
        first_tokens or 0.0,
        first_token_s or 0.0,
        total(_GENERATED) or 0.0,
    )


def _sum(page: bytes, name: bytes) -> float | None:
    """The samples of a family added up; `None` where there are none."""
    lines = _lines(page, name)
    return sum(map(_number, lines)) if lines else None


def _lines(page: bytes, name: bytes) -> list[bytes]:
    """The samples of one family, which stand together."""
    found = list[bytes]()
    at = 0 if page.startswith(name) else page.find(b"\n" + name) + 1 or len(page)
    while page.startswith(name, at) and len(found) < _MAX_LINES:
        end = page.find(b"\n", at)
        end = len(page) if end < 0 else end
        if page[at + len(name) : at + len(name) + 1] in {b"{", b" "}:
            found.append(page[at:end])
        at = end + 1
    return found


def _number(line: bytes) -> float:
    try:
        value = float(line.rpartition(b" ")[2])
    except ValueError:
        raise ProtocolError("a sample without a number") from None
    if not isfinite(value) or value < 0:
        raise ProtocolError("a sample that is no count")
    return value


def _kv_tokens(line: bytes) -> int:
    size, blocks, block = _SIZE.search(line), _BLOCKS.search(line), _BLOCK.search(line)
    if size is not None:
        return int(size[1])
    return int(blocks[1]) * int(block[1]) if blocks is not None and block is not None else 0
