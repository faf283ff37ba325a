"""Asking endpoints for their health, for lists that say nothing of it: static, file, DNS.

Kubernetes asks already, and a Pod that is not ready is not in its list as one.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from extproc.router.feedback.pool_feedback import PoolFeedback
from extproc.router.feedback.rounds import RoundPlan, Rounds, Sleep
from extproc.router.routing.endpoint import Endpoint

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProbePlan(RoundPlan):
    """`failures` in a row make an endpoint unhealthy (as the kubelet has it), one good answer healthy."""

    path: str = "/health"
    failures: int = 3


Ask = Callable[[str], Awaitable[bool]]


class Prober:
    """Asks the endpoints of one pool in turn, evenly spread over the interval, and tells its cooling."""

    def __init__(
        self,
        desk: PoolFeedback,
        plan: ProbePlan,
        *,
        rng: Random,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._desk = desk
        self._plan = plan
        self._rounds = Rounds(plan, rng, sleep)
        self._failures = Counter[str]()

    async def run(self) -> None:
        self._desk.cooling.expect_probes()
        limit = ClientTimeout(total=self._plan.timeout_s)
        # A new connection each time: whether one can be had is half of the question.
        connector = TCPConnector(limit=self._plan.parallel, force_close=True)
        jar = DummyCookieJar()
        async with ClientSession(timeout=limit, connector=connector, cookie_jar=jar) as session:

            async def ask(address: str) -> bool:
                return await ask_health(session, f"http://{address}{self._plan.path}")

            while True:
                await self.ask_around(ask)

    async def ask_around(self, ask: Ask) -> None:
        endpoints = list(self._desk.pool.snapshot.ready.values())
        self._failures = Counter({e.name: self._failures[e.name] for e in endpoints})
        await self._rounds.go(endpoints, lambda endpoint: self._ask(ask, endpoint))

    async def _ask(self, ask: Ask, endpoint: Endpoint) -> None:
        is_healthy = await ask(endpoint.address)
        name, limit = endpoint.name, self._plan.failures
        self._desk.confirm(name, is_there=is_healthy)
        before = min(self._failures[name], limit)
        after = self._failures[name] = 0 if is_healthy else before + 1
        if is_healthy or after >= limit:
            self._desk.cooling.set_health(name, is_healthy=is_healthy)
        if (before >= limit) != (after >= limit):
            said = "is healthy again" if is_healthy else f"did not say that it is healthy {limit} times"
            log.warning("pool %s: %s %s", self._desk.pool.name, name, said)


_SICK_FROM: Final = 500


async def ask_health(session: ClientSession, url: str) -> bool:
    """Whether the endpoint answers, and not with a failure of its own.

    A server without that path answers 404 and is as healthy as one can know: 4xx is our doing.
    """
    try:
        async with session.get(url, allow_redirects=False) as answer:
            return answer.status < _SICK_FROM
    except (ClientError, OSError, TimeoutError):
        return False
