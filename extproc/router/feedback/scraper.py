"""Asking endpoints for their metrics, where a pool's settings want it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from extproc.errors import ProtocolError
from extproc.router.feedback.desk import Desk
from extproc.router.feedback.rounds import Rounds, Sleep
from extproc.router.feedback.vitals import read_vitals
from extproc.router.routing.endpoint import Endpoint
from extproc.router.routing.vitals import Vitals

log = logging.getLogger(__name__)

# A server of eight engines tells 400 kB.
MAX_PAGE_BYTES: Final = 2_097_152
_OK: Final = 200
_IDLE_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class ScrapePlan:
    """Each endpoint is asked every `interval_s`, seconds, or less often where that were more than `per_s`.

    `parallel` bounds the questions that wait for an answer at one time.
    """

    interval_s: float
    timeout_s: float = 2.0
    parallel: int = 8
    per_s: float = 50.0


Ask = Callable[[str], Awaitable[Vitals | None]]


class Scraper:
    """Asks the endpoints of one pool in turn, evenly spread over the interval, and tells its desk."""

    def __init__(
        self,
        desk: Desk,
        plan: ScrapePlan,
        *,
        rng: Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._desk = desk
        self._plan = plan
        self._rounds = Rounds(plan, rng, sleep)
        self._silent: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"<Scraper of {self._desk.pool.name}: every {self._plan.interval_s} s>"

    async def run(self) -> None:
        """Asks until cancelled."""
        limit = ClientTimeout(total=self._plan.timeout_s)
        # Connections stay open from one time to the next, if the server likes: vLLM closes them after 5 s.
        connector = TCPConnector(limit=0, keepalive_timeout=_IDLE_S + self._plan.interval_s)
        jar = DummyCookieJar()
        async with ClientSession(
            timeout=limit, connector=connector, cookie_jar=jar, auto_decompress=False
        ) as session:

            async def ask(address: str) -> Vitals | None:
                return await ask_vitals(session, f"http://{address}/metrics")

            while True:
                await self.ask_around(ask)

    async def ask_around(self, ask: Ask) -> None:
        """Asks every endpoint once, in an order of chance, and takes an interval for it."""
        endpoints = list(self._desk.pool.snapshot.ready.values())
        self._silent &= {endpoint.name for endpoint in endpoints}
        await self._rounds.go(endpoints, lambda endpoint: self._ask(ask, endpoint))

    async def _ask(self, ask: Ask, endpoint: Endpoint) -> None:
        vitals = await ask(endpoint.address)
        self._desk.sense(endpoint, vitals)
        was_silent = endpoint.name in self._silent
        if was_silent != (vitals is None):
            self._silent ^= {endpoint.name}
            said = "tells its metrics again" if was_silent else "does not tell its metrics"
            log.warning("pool %s: %s %s", self._desk.pool.name, endpoint.name, said)


async def ask_vitals(session: ClientSession, url: str) -> Vitals | None:
    """Returns what the endpoint says of itself; `None` if it does not, or says too much."""
    try:
        async with session.get(url, allow_redirects=False, headers={"accept-encoding": "identity"}) as answer:
            page = bytearray()
            async for piece in answer.content.iter_any():
                page += piece
                if len(page) > MAX_PAGE_BYTES:
                    return None
            return read_vitals(bytes(page)) if answer.status == _OK else None
    except (ClientError, OSError, TimeoutError, ProtocolError):
        return None
